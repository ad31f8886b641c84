// What reaches a worker that pulls: streams of headers and chunks, the object that comes of them,
// and the engine that fetches it as a state or merges it as an answer.
//
// Input: a byte of options, the step to continue from (4 bytes), then for the state and for
// the answer: how many bytes of content, the content, and the messages' fields. Messages start out
// right and are merged with fields of the input.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"
#include "worker/link/pull_receiver.h"
#include "worker/sync/host_replica.h"
#include "worker/sync/sync_engine.h"

namespace causeway::fuzz {
namespace {

using worker::PulledObject;
using worker::PullReceiver;

constexpr int kMaxGroups = 4;
constexpr int kMaxAnswers = 6;

void Edit(Input& input, google::protobuf::MessageLite& message) {
  const auto length = input.Take<uint8_t>();
  if (length >= 64) return;
  const std::vector<uint8_t> bytes = input.TakeBytes(length);
  message.MergeFromString(std::string(bytes.begin(), bytes.end()));
}

absl::Status Receive(PullReceiver& receiver, const v1::PullResponse& response, bool& has_header) {
  const std::string message = response.SerializeAsString();
  return receiver
      .Receive(FlatMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()}),
               has_header)
      .status();
}

// Groups of one stream about `object`, until one brings it whole or the fuzzer has no more.
std::optional<PulledObject> Pull(Input& input, const v1::PullRequest& request,
                                 const v1::PullHeader& header, const std::vector<uint8_t>& object) {
  const auto expected = static_cast<int64_t>(object.size());
  PullReceiver receiver(request, expected);
  for (int group = 1; group <= kMaxGroups; ++group) {
    receiver.BeginGroup(static_cast<uint64_t>(group));
    const v1::PullRequest asked = receiver.Request();
    FUZZ_REQUIRE(asked.fragment() == request.fragment() && asked.object() == request.object() &&
                     asked.held_chunks().empty() == (receiver.received_bytes() == 0),
                 "another object is asked for");
    const bool plain = input.empty();
    bool has_header = false;
    v1::PullResponse response;
    *response.mutable_header() = header;
    Edit(input, *response.mutable_header());
    absl::Status problem = Receive(receiver, response, has_header);
    // As often as the fuzzer likes, but once at least.
    bool cut = false;
    for (size_t offset = 0; problem.ok() && offset < object.size() && !cut;) {
      const std::span<const uint8_t> data =
          std::span(object).subspan(offset, std::min(kChunkBytes, object.size() - offset));
      v1::Chunk& chunk = *response.mutable_chunk();
      chunk.Clear();
      chunk.set_offset(static_cast<int64_t>(offset));
      chunk.set_checksum(Checksum64(data));
      chunk.set_data(data.data(), data.size());
      Edit(input, response);
      problem = Receive(receiver, response, has_header);
      const uint8_t next = plain ? 0 : input.Take<uint8_t>();
      cut = next % 8 == 1;
      if (next % 8 != 2) offset += data.size();
    }
    FUZZ_REQUIRE(receiver.received_bytes() <= expected, "more bytes than there are");
    const auto end = static_cast<absl::StatusCode>(plain ? 0 : input.Take<uint8_t>() % 17);
    const absl::Status status = problem.ok() ? absl::Status(end, "the stream's end") : problem;
    if (receiver.EndGroup(status).ok()) {
      PulledObject pulled = receiver.TakeObject();
      FUZZ_REQUIRE(static_cast<int64_t>(pulled.bytes.size()) == expected, "another size");
      return pulled;
    }
  }
  return std::nullopt;
}

v1::RunConfig SmallRun(uint8_t choice) {
  static constexpr v1::Codec kDown[] = {v1::INT4, v1::FP32, v1::BF16, v1::INT8,
                                        v1::E3M0, v1::E2M1, v1::INT4, v1::TOPK2};
  v1::RunConfig config;
  v1::ModelConfig& model = *config.mutable_model();
  model.set_vocabulary_size(1);
  model.set_layers(1);
  model.set_width(2);
  model.set_heads(1);
  model.set_mlp_width(1);
  model.set_sequence_length(1);
  config.mutable_train()->set_steps(1000);
  config.mutable_sync()->set_steps_between_syncs(7);
  config.mutable_sync()->set_overlap_steps(choice / 8 % 2 * 3);
  config.mutable_sync()->set_codec_down(kDown[choice % 8]);
  return config;
}

// Answers with the two objects that were pulled, the second a few times.
class PulledExchange final : public worker::Exchange {
 public:
  PulledExchange(PulledObject state, std::optional<PulledObject> answer, bool right_round)
      : state_(std::move(state)), answer_(std::move(answer)), right_round_(right_round) {}
  absl::Status Push(const worker::Contribution&) override { return absl::OkStatus(); }
  absl::StatusOr<PulledObject> PullAnswer(int, int64_t round, int64_t) override {
    if (!answer_.has_value() || ++answers_ > kMaxAnswers) return absl::CancelledError("enough");
    PulledObject answer = *answer_;
    if (right_round_) answer.round = round;
    return answer;
  }
  absl::StatusOr<PulledObject> PullState(int) override { return state_; }
  void ReportApplied(int, int64_t, uint64_t) override {}
  void Cancel() override {}
  int64_t bytes_up() const override { return 0; }
  int64_t bytes_down() const override { return 0; }

 private:
  const PulledObject state_;
  const std::optional<PulledObject> answer_;
  const bool right_round_;
  int answers_ = 0;  // One flight at a time: there is one fragment.
};

void CheckPull(Input input) {
  const auto options = input.Take<uint8_t>();
  const int64_t run_step = int64_t{input.Take<uint32_t>()} % 1000;
  v1::RunConfig config = SmallRun(options);
  if (!CompleteRunConfig(config).ok()) return;
  const auto codec = FindCodec(config.sync().codec_down());
  if (!codec.ok()) return;
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  const auto values = static_cast<size_t>(plan.arena_size());

  // The state, and what the answer makes of it.
  const std::vector<uint8_t> state_bytes =
      Input(input.TakeBytes(input.Take<uint8_t>() % 32)).Repeat(values * sizeof(float));
  std::vector<float> published(values);
  std::memcpy(published.data(), state_bytes.data(), state_bytes.size());
  v1::PullRequest request;
  request.set_object(v1::PullRequest::STATE);
  v1::PullHeader header;
  header.set_codec(v1::FP32);
  header.set_total_bytes(static_cast<int64_t>(state_bytes.size()));
  header.set_object_hash(TreeHash(state_bytes));
  header.set_published_hash(TreeHash(std::span<const float>(published)));
  const std::optional<PulledObject> state = Pull(input, request, header, state_bytes);
  if (!state.has_value()) return;

  const std::vector<uint8_t> answer_bytes =
      Input(input.TakeBytes(input.Take<uint8_t>() % 64)).Repeat((*codec)->EncodedBytes(values));
  const bool applies = (*codec)->Apply(answer_bytes, published).ok();
  request.set_object(v1::PullRequest::ANSWER);
  header.set_codec((*codec)->id());
  header.set_total_bytes(static_cast<int64_t>(answer_bytes.size()));
  header.set_object_hash(TreeHash(answer_bytes));
  header.set_published_hash(TreeHash(std::span<const float>(published)));
  header.set_round(1);
  std::optional<PulledObject> answer = Pull(input, request, header, answer_bytes);

  std::vector<float> parameters(values, 0.0F);
  worker::HostReplica replica(plan, config.sync(), parameters, {});
  PulledExchange exchange(*state, std::move(answer), (options & 64) != 0);
  worker::SyncEngine engine({.config = config.sync(),
                             .plan = &plan,
                             .replica = &replica,
                             .exchange = &exchange,
                             .clock = Clock::Real(),
                             .max_advance = 1,
                             .recorded_merges = {},
                             .observer = {}});
  const absl::StatusOr<int64_t> step = engine.Fetch(run_step);
  if (!step.ok()) return;
  FUZZ_REQUIRE(*step >= run_step, "the engine goes back in time");
  FUZZ_REQUIRE(engine.version(0) >= 0, "a negative version is taken");
  const bool continues = engine.AfterStep(*step + 1, 1, 1).ok();
  FUZZ_REQUIRE(!continues || engine.rounds_merged() == 0 || applies, "a bad answer is merged");
}

}  // namespace

std::vector<std::string> TargetNames() { return {"pull"}; }

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::CheckPull(causeway::fuzz::Input({data, size}));
  return 0;
}
