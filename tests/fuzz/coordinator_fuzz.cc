// A worker's messages to the coordinator: joins, session messages and pushes with hostile headers,
// chunks and payloads, in any order. Nothing but a training that diverges may stop the run; what is
// published stays finite; an accepted contribution is known afterwards.
//
// Input: a byte for the run's codec and cut, then operations. Messages start out right and are
// then merged with the input's own fields (serialized), so that single fields are wrong.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/run_config.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/wire.h"
#include "server/core/coordinator.h"
#include "server/transfer/lane_registry.h"
#include "tests/fuzz/messages.h"
#include "tests/fuzz/target.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/transfer/owned_message.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::fuzz {
namespace {

using server::Coordinator;

constexpr int kMaxOperations = 24;
constexpr int64_t kPushMemory = 1 << 20;

// The lane of a worker whose messages come one by one: keeps what is said back.
class Stream final : public server::WorkerLaneStream {
 public:
  void Write(OutgoingMessage message) override {
    FUZZ_REQUIRE(!message.chunk.has_value() || message.chunk->data.size() <= kChunkBytes,
                 "a chunk is too large");
    said_.push_back(std::move(message.control));
    ++unwritten_;
  }
  void ReadOn() override {}
  void End(const absl::Status&) override { ended_ = true; }
  absl::Status Admit(bool) override { return absl::OkStatus(); }
  bool greeted() override { return true; }

  bool ended() const { return ended_; }
  // Writes that are not done yet.
  bool TakeWritten() { return std::exchange(unwritten_, 0) > 0; }
  bool Accepted(uint64_t transfer) const {
    return std::ranges::any_of(said_, [transfer](const v1::LaneControl& message) {
      return message.has_outcome() && message.outcome().transfer() == transfer &&
             message.outcome().code() == 0;
    });
  }

 private:
  std::vector<v1::LaneControl> said_;
  int unwritten_ = 0;
  bool ended_ = false;
};

v1::RunConfig SmallRun(uint8_t choice) {
  v1::RunConfig config = TinyRun();
  config.mutable_model()->set_layers(2);
  v1::SyncConfig& sync = *config.mutable_sync();
  sync.set_steps_between_syncs(3);
  sync.set_fragments(1 + choice / 8 % 2);
  sync.set_codec_up(kCodecs[choice % 8]);
  sync.set_codec_down(choice / 32 % 2 == 1 ? v1::SIGN1 : v1::INT4);
  sync.set_error_feedback(FindCodec(sync.codec_up()).ok() &&
                          FindCodec(sync.codec_up()).value()->needs_error_feedback());
  config.mutable_membership()->set_start_workers(1);
  config.mutable_membership()->set_max_workers(2);
  if (choice / 16 % 2 == 1) {
    sync.set_contribution(v1::SyncConfig::GRADIENT);
    sync.set_steps_between_syncs(1);
    sync.set_fragments(1);
    sync.set_codec_down(v1::FP32);
    config.mutable_outer()->set_optimizer(v1::OuterConfig::ADAMW);
  }
  return config;
}

class Run {
 public:
  // Not ok() if the configuration is none.
  explicit Run(const v1::RunConfig& wanted) : memory_(kPushMemory), cache_(kPushMemory) {
    Coordinator::Options options;
    options.config = wanted;
    if (!CompleteRunConfig(options.config).ok()) return;
    if (!FindCodec(options.config.sync().codec_up()).ok()) return;
    options = server::OptionsOf(std::move(options.config), "fuzz-1", store_, 1);
    options.clock = &clock_;
    options.kept_answers = 2;
    auto created = Coordinator::Create(std::move(options));
    FUZZ_REQUIRE(created.ok(), std::string(created.status().message()));
    coordinator_ = *std::move(created);
    const auto run = [](const std::function<void()>& task) { task(); };
    inbox_ = std::make_shared<server::DeltaInbox>(
        *coordinator_,
        server::DeltaInbox::Options{.memory = &memory_, .run_long = run, .clock = &clock_});
    outbox_ = std::make_shared<server::AnswerOutbox>(
        *coordinator_, server::AnswerOutbox::Options{.cache = &cache_, .run_long = run});
    registry_ = std::make_unique<server::LaneRegistry>(
        *coordinator_, *inbox_, *outbox_,
        server::LaneRegistry::Options{.run_long = run, .clock = &clock_});
    incarnations_ = {Enter(ids_[0], 1), Enter(ids_[1], 2)};
  }
  bool ok() const { return coordinator_ != nullptr; }

  void Operate(Input& input) {
    const auto kind = input.Take<uint8_t>();
    switch (kind % 8) {
      case 0:
        Join(input);
        break;
      case 1:
        Session(input);
        break;
      case 2:
        Greet(input);
        break;
      case 3:
        clock_.Advance(absl::Milliseconds(input.Take<uint16_t>()));
        coordinator_->Tick();
        inbox_->Tick();
        registry_->Tick();
        break;
      default:
        Push(input, (kind & 8) != 0, (kind & 16) != 0);
    }
  }

  void CheckEnd() {
    const absl::Status health = coordinator_->Health();
    FUZZ_REQUIRE(health.ok() || absl::StrContains(health.message(), "diverged") ||
                     absl::StrContains(health.message(), "cannot be encoded"),
                 absl::StrCat("a worker stopped the run: ", health.ToString()));
    for (const float x : coordinator_->PublishedParameters()) {
      FUZZ_REQUIRE(std::isfinite(x), "a published value is not finite");
    }
    const v1::RunStatus status = coordinator_->GetStatus();
    FUZZ_REQUIRE(status.ByteSizeLong() < size_t{1} << 20, "the status grows without bound");
    FUZZ_REQUIRE(memory_.taken() <= memory_.bytes(), "more memory is taken than there is");
    registry_ = nullptr;
    outbox_ = nullptr;
    inbox_ = nullptr;
    FUZZ_REQUIRE(memory_.taken() == 0, "memory is not given back");
  }

 private:
  v1::Join MakeJoin(const std::string& id, uint64_t nonce) const {
    return server::JoinOf(coordinator_->Describe(), id, nonce);
  }

  uint64_t Enter(const std::string& id, uint64_t nonce) {
    const auto welcome =
        coordinator_->members().Join(MakeJoin(id, nonce), std::make_shared<server::SilentSink>());
    FUZZ_REQUIRE(welcome.ok(), std::string(welcome.status().message()));
    FUZZ_REQUIRE(
        coordinator_->members().Handle(id, welcome->incarnation(), server::ReadyAt(0)).ok(),
        "Ready is refused");
    return welcome->incarnation();
  }

  static size_t ChooseWorker(Input& input) { return input.Take<uint8_t>() % 2; }

  void Join(Input& input) {
    const size_t worker = ChooseWorker(input);
    const std::string& id = ids_[worker];
    v1::Join join = MakeJoin(id, worker + 1);
    Edit(input, join);
    const auto welcome = coordinator_->members().Join(join, std::make_shared<server::SilentSink>());
    if (welcome.ok() && join.worker_id() == id) incarnations_[worker] = welcome->incarnation();
  }

  void Session(Input& input) {
    const size_t worker = ChooseWorker(input);
    const std::string& id = ids_[worker];
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_step(1);
    Edit(input, message);
    const absl::Status status = coordinator_->members().Handle(id, incarnations_[worker], message);
    if (!status.ok()) coordinator_->members().Disconnected(id, incarnations_[worker], status);
  }

  v1::Greeting MakeGreeting(const std::string& id) const {
    v1::Greeting greeting;
    greeting.set_wire_version(kWireVersion);
    greeting.set_run_id(coordinator_->run_id());
    greeting.set_worker_id(id);
    return greeting;
  }

  void Greet(Input& input) {
    v1::Greeting greeting = MakeGreeting("a");
    Edit(input, greeting);
    const auto joined = registry_->Join(greeting);
    FUZZ_REQUIRE(!joined.ok() || (*joined)->worker_id() == greeting.worker_id(), "another worker");
    v1::Want want;
    Edit(input, want);
    coordinator_->rounds().PullState(want.fragment()).IgnoreError();
    coordinator_->rounds().PullAnswer(want.fragment(), want.round(), [](const auto&) {});
    coordinator_->rounds().RecordPulled("a", want.object(), want.due_step());
  }

  // The encoded object: of small deltas, or the input's bytes.
  std::vector<uint8_t> MakeObject(Input& input, const Codec& codec, const FragmentRange& range,
                                  bool raw) const {
    const auto values = static_cast<size_t>(range.size());
    const std::vector<uint8_t> bytes = input.TakeBytes(input.Take<uint8_t>());
    if (raw) return Input(bytes).Repeat(codec.EncodedBytes(values));
    const std::vector<float> published = coordinator_->PublishedParameters();
    std::vector<float> base(published.begin() + range.begin, published.begin() + range.end);
    if (coordinator_->config().sync().contribution() == v1::SyncConfig::GRADIENT) {
      std::ranges::fill(base, 0.0F);
    }
    std::vector<float> target = base;
    for (size_t i = 0; i < values && !bytes.empty(); ++i) {
      target[i] += static_cast<float>(bytes[i % bytes.size()]) * 0x1p-9F;
    }
    std::vector<uint8_t> object(codec.EncodedBytes(values));
    FUZZ_REQUIRE(codec.Encode(base, target, {}, object).ok(), "small deltas must encode");
    return object;
  }

  void Push(Input& input, bool raw, bool whole) {
    const size_t worker = ChooseWorker(input);
    const std::string& id = ids_[worker];
    const FragmentPlan& plan = coordinator_->plan();
    const int fragment = input.Take<uint8_t>() % plan.fragments();
    const auto state = coordinator_->rounds().PullState(fragment);
    if (!state.ok()) return;
    const Codec& codec = *FindCodec(coordinator_->config().sync().codec_up()).value();
    const std::vector<uint8_t> object = MakeObject(input, codec, plan.range(fragment), raw);

    constexpr uint64_t kTransfer = 1;
    v1::LaneMessage message;
    v1::Offer& offer = *message.mutable_control()->mutable_offer();
    offer.set_transfer(kTransfer);
    v1::PushHeader& header = *offer.mutable_header();
    header = server::HeaderOf("", "", incarnations_[worker], fragment, (*state)->header.round() + 1,
                              codec.id(), object);
    header.set_tokens(1);
    Edit(input, *message.mutable_control());
    v1::PushHeader offered = message.control().offer().header();
    offered.set_run_id(coordinator_->run_id());
    offered.set_worker_id(id);
    const bool offers =
        message.control().has_offer() && message.control().offer().transfer() == kTransfer;

    const auto stream = std::make_shared<Stream>();
    const auto joined = registry_->Join(MakeGreeting(id));
    FUZZ_REQUIRE(joined.ok(), "a lane is refused");
    server::WorkerLanes& lanes = **joined;
    const LanePeer::LanePtr lane = lanes.Open(0, stream);
    const auto receive = [&] {
      const bool goes_on = lanes.Receive(lane, OwnedMessage(message.SerializeAsString()));
      lanes.Written(lane);
      while (stream->TakeWritten()) lanes.Written(lane);
      return goes_on && !stream->ended();
    };
    bool open = receive();
    const bool known = stream->Accepted(kTransfer);  // It had been accepted before.
    for (size_t offset = 0; open && !stream->Accepted(kTransfer) && offset < object.size();) {
      const size_t size =
          std::min(whole ? kChunkBytes : size_t{input.Take<uint8_t>()} + 1, object.size() - offset);
      const std::span<const uint8_t> data = std::span(object).subspan(offset, size);
      message.Clear();
      v1::Chunk& chunk = *message.mutable_chunk();
      chunk.set_transfer(kTransfer);
      chunk.set_offset(static_cast<int64_t>(offset));
      chunk.set_checksum(Checksum64(data));
      chunk.set_data(data.data(), data.size());
      if (!whole) Edit(input, message);
      open = receive();
      offset += size;
      if (!whole && input.empty()) whole = true;
    }
    // Objects here have one chunk.
    const std::string& sent = message.chunk().data();
    const bool hashes = known || message.chunk().unpacked_bytes() != 0 ||
                        TreeHash(std::span(reinterpret_cast<const uint8_t*>(sent.data()),
                                           sent.size())) == offered.object_hash();
    if (offers && stream->Accepted(kTransfer)) CheckAccepted(offered, hashes);
    lanes.Close(lane, absl::OkStatus());
  }

  void CheckAccepted(const v1::PushHeader& header, bool hashes) {
    if (!coordinator_->Health().ok()) return;
    FUZZ_REQUIRE(hashes, "an object is accepted that does not hash to what its header says");
    const auto held = coordinator_->rounds().BeginPush(header, nullptr);
    FUZZ_REQUIRE(held.ok() && held->has_value(),
                 "an accepted contribution is not known afterwards");
  }

  const std::array<std::string, 2> ids_ = {"a", "b"};
  FakeClock clock_;
  server::MemoryStore store_;
  ByteBudget memory_;
  ByteBudget cache_;
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<server::DeltaInbox> inbox_;
  std::shared_ptr<server::AnswerOutbox> outbox_;
  std::unique_ptr<server::LaneRegistry> registry_;
  std::vector<uint64_t> incarnations_;
};

void CheckRun(Input input) {
  Run run(SmallRun(input.Take<uint8_t>()));
  if (!run.ok()) return;
  for (int i = 0; i < kMaxOperations && !input.empty(); ++i) run.Operate(input);
  run.CheckEnd();
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("coordinator", CheckRun)
