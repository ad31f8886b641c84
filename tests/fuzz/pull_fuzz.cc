// Fuzzes what reaches a worker that pulls: announcements and chunks, the object that comes of them,
// and the engine that fetches it as a state or merges it as an answer.
//
// Input: a byte of options, the step to continue from (4 bytes), then for the state and for
// the answer: how many bytes of content, the content, and the messages' fields. Messages start out
// right and are merged with fields of the input.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"
#include "tests/fuzz/messages.h"
#include "tests/fuzz/target.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/transfer/owned_message.h"
#include "worker/sync/host_part.h"
#include "worker/sync/sync_engine.h"

namespace causeway::fuzz {
namespace {

constexpr int kMaxGroups = 4;
constexpr int kMaxAnswers = 6;

bool Passes(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
}

// The client's one lane, whose other end is the fuzzer.
class FuzzedLane final : public LaneStream, public std::enable_shared_from_this<FuzzedLane> {
 public:
  void Dial(const std::shared_ptr<LanePeer>& client) {
    client_ = client;
    lane_ = client->Open(0, shared_from_this());
    Settle();
  }
  bool open() const { return lane_ != nullptr; }
  // The last that the client asked for; number 0: nothing.
  v1::Want TakeWant() { return std::exchange(want_, {}); }

  void Receive(const v1::LaneMessage& message) {
    if (lane_ == nullptr) return;
    client_->Receive(lane_, OwnedMessage(message.SerializeAsString()));
    Settle();
  }
  void Break(const absl::Status& why) {
    const LanePeer::LanePtr lane = std::exchange(lane_, nullptr);
    if (lane != nullptr) client_->Close(lane, why);
  }

  void Write(OutgoingMessage message) override {
    if (message.control.has_want()) want_ = message.control.want();
    written_ = true;
  }
  void ReadOn() override {}
  void End(const absl::Status& status) override { Break(status); }

 private:
  // All that the client has to say.
  void Settle() {
    do {
      written_ = false;
      if (lane_ != nullptr) client_->Written(LanePeer::LanePtr(lane_));
    } while (written_);
  }

  std::shared_ptr<LanePeer> client_;
  LanePeer::LanePtr lane_;
  v1::Want want_;
  bool written_ = false;
};

// Messages about `object`, until they bring it whole or the fuzzer has no more.
std::optional<PulledObject> Pull(Input& input, const v1::Want& want, const v1::PullHeader& header,
                                 const std::vector<uint8_t>& object) {
  const auto expected = static_cast<int64_t>(object.size());
  FakeClock clock;
  const auto lane = std::make_shared<FuzzedLane>();
  LaneClient::Options options;
  options.clock = &clock;
  options.run_long = [](const std::function<void()>& task) { task(); };
  options.dial = [&](int, const auto& self) { lane->Dial(self); };
  options.stall = [] { return absl::Hours(1); };
  options.passes = Passes;
  const auto client = std::make_shared<LaneClient>(std::move(options));
  const LaneClient::Handle handle = client->Want({.want = want, .expected_bytes = expected});
  for (int group = 1; group <= kMaxGroups && !client->Done(handle); ++group) {
    clock.Advance(absl::Seconds(10));
    client->Tick();
    clock.Advance(absl::Seconds(10));
    client->Tick();
    const v1::Want asked = lane->TakeWant();
    FUZZ_REQUIRE(asked.transfer() == 0 ||
                     (asked.fragment() == want.fragment() && asked.object() == want.object()),
                 "another object is asked for");
    const bool plain = input.empty();
    v1::LaneMessage message;
    v1::Announcement& announcement = *message.mutable_control()->mutable_announcement();
    announcement.set_transfer(asked.transfer());
    *announcement.mutable_header() = header;
    Edit(input, *message.mutable_control());
    lane->Receive(message);
    // As often as the fuzzer likes, but once at least.
    bool cut = false;
    for (size_t offset = 0; offset < object.size() && !cut && !client->Done(handle);) {
      const std::span<const uint8_t> data =
          std::span(object).subspan(offset, std::min(kChunkBytes, object.size() - offset));
      message.Clear();
      v1::Chunk& chunk = *message.mutable_chunk();
      chunk.set_transfer(asked.transfer());
      chunk.set_offset(static_cast<int64_t>(offset));
      chunk.set_checksum(Checksum64(data));
      chunk.set_data(data.data(), data.size());
      Edit(input, message);
      lane->Receive(message);
      const uint8_t next = plain ? 0 : input.Take<uint8_t>();
      cut = next % 8 == 1;
      if (next % 8 != 2) offset += data.size();
    }
    const auto end = static_cast<absl::StatusCode>(plain ? 0 : input.Take<uint8_t>() % 17);
    if (end == absl::StatusCode::kOk) {
      lane->Break(absl::UnavailableError("the stream's end"));
    } else {
      message.Clear();
      v1::Outcome& outcome = *message.mutable_control()->mutable_outcome();
      outcome.set_transfer(asked.transfer());
      outcome.set_code(static_cast<int32_t>(end));
      lane->Receive(message);
    }
  }
  const bool done = client->Done(handle);
  client->Cancel();
  lane->Break(absl::OkStatus());
  if (!done) return std::nullopt;
  LaneClient::Result result = client->Await(handle);
  if (!result.status.ok()) return std::nullopt;
  FUZZ_REQUIRE(static_cast<int64_t>(result.bytes->size()) == expected, "another size");
  return PulledObject{.round = result.header.round(),
                      .codec = result.header.codec(),
                      .published_hash = result.header.published_hash(),
                      .bytes = std::move(*result.bytes)};
}

v1::RunConfig SmallRun(uint8_t choice) {
  v1::RunConfig config = TinyRun();
  config.mutable_sync()->set_steps_between_syncs(7);
  config.mutable_sync()->set_overlap_steps(choice / 8 % 2 * 3);
  config.mutable_sync()->set_codec_down(kCodecs[choice % 8]);
  return config;
}

// Answers with the two objects that were pulled, the second a few times.
class PulledExchange final : public Exchange {
 public:
  PulledExchange(PulledObject state, std::optional<PulledObject> answer, bool right_round)
      : state_(std::move(state)), answer_(std::move(answer)), right_round_(right_round) {}
  absl::Status Push(const Contribution&) override { return absl::OkStatus(); }
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
  v1::Want want;
  want.set_object(v1::Want::STATE);
  v1::PullHeader header;
  header.set_codec(v1::FP32);
  header.set_total_bytes(static_cast<int64_t>(state_bytes.size()));
  header.set_object_hash(TreeHash(state_bytes));
  header.set_published_hash(TreeHash(std::span<const float>(published)));
  const std::optional<PulledObject> state = Pull(input, want, header, state_bytes);
  if (!state.has_value()) return;

  const std::vector<uint8_t> answer_bytes =
      Input(input.TakeBytes(input.Take<uint8_t>() % 64)).Repeat((*codec)->EncodedBytes(values));
  const bool applies = (*codec)->Apply(answer_bytes, published).ok();
  want.set_object(v1::Want::ANSWER);
  header.set_codec((*codec)->id());
  header.set_total_bytes(static_cast<int64_t>(answer_bytes.size()));
  header.set_object_hash(TreeHash(answer_bytes));
  header.set_published_hash(TreeHash(std::span<const float>(published)));
  header.set_round(1);
  std::optional<PulledObject> answer = Pull(input, want, header, answer_bytes);

  std::vector<float> parameters(values, 0.0F);
  const auto replica = worker::MakeHostReplica(plan, config.sync(), parameters, {}).value();
  PulledExchange exchange(*state, std::move(answer), (options & 64) != 0);
  worker::SyncEngine engine({.config = config.sync(),
                             .plan = &plan,
                             .replica = replica.get(),
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
}  // namespace causeway::fuzz

FUZZ_TARGET("pull", CheckPull)
