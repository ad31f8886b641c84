// A site through the C interface does what a worker's own loop over SyncEngine does, bit for bit:
// every object that it pushes and everything that is published then, for every codec, with values
// in the arena and on emulated devices.
#include <cuda_runtime.h>
#include <device_emulation.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/telemetry/event_log.h"
#include "server/core/coordinator.h"
#include "server/service/coordinator_server.h"
#include "tests/emulation/emulator.h"
#include "tests/reference/in_process_exchange.h"
#include "tests/unit/server/store/memory_store.h"
#include "worker/site/causeway_site.h"
#include "worker/sync/host_part.h"
#include "worker/sync/sync_engine.h"

namespace causeway {
namespace {

constexpr int64_t kTokens = 24;
const char* const kIds[] = {"east", "north", "west"};

struct Recorded {
  // Fragment, round, worker: tokens and object.
  std::map<std::tuple<int, int64_t, std::string>, std::pair<int64_t, std::vector<uint8_t>>> pushed;
  // Fragment, round: hash and answer.
  std::map<std::pair<int, int64_t>, std::pair<uint64_t, std::vector<uint8_t>>> published;
};

// Keeps every answer.
class Store final : public server::MemoryStore {
 public:
  absl::Status ForgetAnswers(int, int64_t) override { return absl::OkStatus(); }
  Recorded recorded() {
    Recorded result;
    for (const v1::Contribution& record : contributions()) {
      const auto key = std::tuple(record.header().fragment(), record.header().round(),
                                  record.header().worker_id());
      result.pushed[key] = {
          record.header().tokens(),
          std::apply([this](const auto&... of) { return ReadContribution(of...); }, key).value()};
    }
    for (const v1::Round& record : rounds()) {
      result.published[{record.fragment(), record.round()}] = {
          record.published_hash(), ReadAnswer(record.fragment(), record.round()).value()};
    }
    return result;
  }
};

// "Training" of one value, the same for everybody who has it.
float Change(int64_t step, int64_t tensor, int64_t value, int worker) {
  return 1e-3F * static_cast<float>((step * 31 + tensor * 7 + value + worker * 3) % 17 - 8);
}

// The vocabulary's padding is nobody's.
int64_t TrainedValues(const v1::RunConfig& config, const TensorInfo& info) {
  const bool padded = info.role == TensorRole::kEmbedding || info.role == TensorRole::kHead;
  return (padded ? config.model().vocabulary_size() : info.rows) * info.cols;
}

struct Run {
  explicit Run(const v1::RunConfig& given)
      : config(given),
        plan(FragmentPlan::Create(config).value()),
        coordinator(
            server::Coordinator::Create(server::OptionsOf(config, "bits", store, 5)).value()) {}

  const v1::RunConfig config;
  const FragmentPlan plan;
  Store store;
  std::unique_ptr<server::Coordinator> coordinator;
};

// The loop of a worker of ours.
absl::Status TrainWithEngine(const Run& run, int worker, InProcessExchange& exchange) {
  std::vector<float> local(static_cast<size_t>(run.plan.arena_size()));
  const auto replica = worker::MakeHostReplica(run.plan, run.config.sync(), local, {}).value();
  worker::SyncEngine sync({.config = run.config.sync(),
                           .plan = &run.plan,
                           .replica = replica.get(),
                           .exchange = &exchange,
                           .clock = Clock::Real(),
                           .recorded_merges = {},
                           .observer = {}});
  ASSIGN_OR_RETURN(int64_t step, sync.Fetch(exchange.welcome().run_step()));
  while (step++ < run.config.train().steps()) {
    for (size_t t = 0; t < run.plan.tensors().size(); ++t) {
      const PlacedTensor& tensor = run.plan.tensors()[t];
      for (int64_t i = 0; i < TrainedValues(run.config, tensor.info); ++i) {
        local[static_cast<size_t>(tensor.offset + i)] +=
            Change(step, static_cast<int64_t>(t), i, worker);
      }
    }
    RETURN_IF_ERROR(sync.AfterStep(step, kTokens, 1));
  }
  RETURN_IF_ERROR(sync.Drain());
  RETURN_IF_ERROR(exchange.Leave(v1::Leave::FINISHED));
  return exchange.session_status();
}

enum class Place { kArena, kDevice, kDeviceAndPinned, kDevices };
constexpr int32_t kDevices = 3;

// A trainer that knows the C interface alone. On devices, which have its tensors in turn, its
// updates are streams' work.
class CTrainer {
 public:
  CTrainer(const Run& run, int worker, int port, Place place)
      : worker_(worker), place_(place), coordinator_(absl::StrCat("127.0.0.1:", port)) {
    for (const PlacedTensor& tensor : run.plan.tensors()) {
      const int64_t values = TrainedValues(run.config, tensor.info);
      names_.push_back(tensor.info.name);
      shapes_.push_back(tensor.info.shape);
      shapes_.back()[0] = values / tensor.info.cols;
      values_.emplace_back(static_cast<size_t>(values));
    }
    // In another order than the run's.
    std::vector<causeway_tensor> tensors;
    for (size_t i = names_.size(); i-- > 0;) {
      tensors.push_back({.name = names_[i].c_str(),
                         .shape = shapes_[i].data(),
                         .rank = static_cast<int32_t>(shapes_[i].size())});
      order_.push_back(i);
    }
    causeway_site_options options = {};
    options.size = sizeof(options);
    options.coordinator = coordinator_.c_str();
    options.id = kIds[worker];
    options.data_slot = 1;
    options.log = [](void*, int, const char*) {};
    std::vector<causeway_device_values> addresses;
    const int32_t devices = place == Place::kDevices ? kDevices : 1;
    const int32_t numbers[] = {0, 1, 2};
    for (const size_t i : order_) {
      addresses.push_back({.data = values_[i].data(),
                           .tensor = std::ssize(addresses),
                           .begin = 0,
                           .end = static_cast<int64_t>(values_[i].size()),
                           .type = CAUSEWAY_FLOAT32,
                           .device = DeviceOf(i, devices)});
    }
    const causeway_device device = {.size = sizeof(device),
                                    .devices = numbers,
                                    .device_count = devices,
                                    .published_on_host = place == Place::kDeviceAndPinned ? 1 : 0,
                                    .values = addresses.data(),
                                    .value_count = std::ssize(addresses)};
    if (place != Place::kArena) {
      for (int32_t i = 0; i < devices; ++i) {
        EXPECT_EQ(cudaSetDevice(i), cudaSuccess);
        EXPECT_EQ(cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking),
                  cudaSuccess);
        EXPECT_EQ(cudaEventCreate(&events_.emplace_back()), cudaSuccess);
      }
      EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
      options.on_device = &device;
    }
    Must(causeway_site_join(&options, tensors.data(), static_cast<int64_t>(tensors.size()), nullptr,
                            0, &site_, &error_));
    if (devices > 1) MakeCopies(std::move(addresses), devices);
    const int32_t* all = nullptr;
    int32_t count = 0;
    Must(causeway_site_changed(site_, &all, &count, &error_));
    Give(all, count);
    Must(causeway_site_ready(site_, &error_));
  }
  ~CTrainer() {
    causeway_site_free(site_);
    for (const cudaEvent_t event : events_) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    for (void* const stream : Streams()) {
      EXPECT_EQ(cudaStreamDestroy(static_cast<cudaStream_t>(stream)), cudaSuccess);
    }
  }

  int64_t waits() const { return waits_; }

  void Train() {
    const int32_t* fragments = nullptr;
    int32_t count = 0;
    causeway_site_orders orders = {};
    orders.size = sizeof(orders);
    int32_t passed = 0;
    for (;;) {
      if (passed == 0 || (orders.go == 0 && orders.finished == 0)) {
        Must(causeway_site_wait(site_, -1, &orders, &error_));
      }
      passed = 0;
      if (orders.finished != 0) break;
      ASSERT_EQ(orders.go, 1);
      const int64_t step = orders.next_step;
      for (size_t t = 0; t < values_.size(); ++t) {
        const auto update = [this, step, t] {
          for (size_t i = 0; i < values_[t].size(); ++i) {
            values_[t][i] +=
                Change(step, static_cast<int64_t>(t), static_cast<int64_t>(i), worker_);
          }
        };
        if (place_ == Place::kArena) {
          update();
        } else {
          emulation::Enqueue(StreamOf(DeviceOf(t, std::ssize(streams_))), update);
        }
      }
      const int64_t waits = emulation::HostWaitsOfThread();
      if (worker_ == 0) Must(causeway_site_pass(site_, kTokens, 1, &passed, &orders, &error_));
      if (passed == 0) {
        Must(causeway_site_next(site_, &fragments, &count, &error_));
        EXPECT_TRUE(count > 0 || worker_ != 0) << "nothing was due at step " << step;
        Take(fragments, count);
        Must(causeway_site_step(site_, kTokens, 1, &fragments, &count, &error_));
        Give(fragments, count);
      }
      waits_ += emulation::HostWaitsOfThread() - waits;
    }
    Must(causeway_site_next(site_, &fragments, &count, &error_));
    Take(fragments, count);
    Must(causeway_site_finish(site_, &fragments, &count, &error_));
    Must(causeway_site_leave(site_, CAUSEWAY_FINISHED, nullptr, &error_));
  }

 private:
  void Must(int code) { ASSERT_EQ(code, CAUSEWAY_OK) << error_.message; }

  void Take(const int32_t* fragments, int32_t count) {
    if (place_ == Place::kArena) {
      for (int32_t i = 0; i < count; ++i) Copy(fragments[i], true);
    } else {
      CopyStrays(fragments, count, /*to_owner=*/true);
      Must(causeway_site_gather(site_, fragments, count, Streams().data(), &error_));
    }
  }

  void Give(const int32_t* fragments, int32_t count) {
    if (place_ == Place::kArena) {
      for (int32_t i = 0; i < count; ++i) Copy(fragments[i], false);
    } else {
      Must(causeway_site_scatter(site_, fragments, count, 0, Streams().data(), &error_));
      CopyStrays(fragments, count, /*to_owner=*/false);
    }
  }

  static int32_t DeviceOf(size_t tensor, int64_t devices) {
    return static_cast<int32_t>(static_cast<int64_t>(tensor) % devices);
  }
  cudaStream_t StreamOf(int32_t device) const { return streams_[static_cast<size_t>(device)]; }
  std::vector<void*> Streams() const { return {streams_.begin(), streams_.end()}; }

  // Makes room on each device for what it owns of the others' tensors, and hands it over.
  void MakeCopies(std::vector<causeway_device_values> addresses, int32_t devices) {
    for (int32_t device = 0; device < devices; ++device) {
      const causeway_piece* pieces = nullptr;
      int64_t piece_count = 0;
      Must(causeway_site_pieces(site_, device, &pieces, &piece_count, &error_));
      for (const causeway_piece& piece : std::span(pieces, static_cast<size_t>(piece_count))) {
        const causeway_range* ranges = nullptr;
        int64_t count = 0;
        Must(causeway_site_ranges(site_, piece.fragment, &ranges, &count, &error_));
        for (const causeway_range& range : std::span(ranges, static_cast<size_t>(count))) {
          const int64_t begin = std::max(piece.begin, range.arena_offset);
          const int64_t end = std::min(piece.end, range.arena_offset + range.count);
          const size_t tensor = order_[static_cast<size_t>(range.tensor)];
          if (begin >= end || DeviceOf(tensor, devices) == device) continue;
          const int64_t first = range.tensor_offset + begin - range.arena_offset;
          Stray& stray = strays_.emplace_back();
          stray = {.fragment = piece.fragment,
                   .device = device,
                   .theirs = values_[tensor].data() + first,
                   .copy = std::vector<float>(static_cast<size_t>(end - begin))};
          addresses.push_back({.data = stray.copy.data(),
                               .tensor = range.tensor,
                               .begin = first,
                               .end = first + end - begin,
                               .type = CAUSEWAY_FLOAT32,
                               .device = device});
        }
      }
    }
    EXPECT_FALSE(strays_.empty());
    Must(causeway_site_move(site_, addresses.data(), std::ssize(addresses), &error_));
  }

  // In the streams of their owners, which follow all others before it, and these them after it.
  void CopyStrays(const int32_t* fragments, int32_t count, bool to_owner) {
    if (strays_.empty() || count == 0) return;
    JoinStreams();
    for (Stray& stray : strays_) {
      if (std::find(fragments, fragments + count, stray.fragment) == fragments + count) continue;
      emulation::Enqueue(StreamOf(stray.device), [&stray, to_owner] {
        float* const own = stray.copy.data();
        std::memcpy(to_owner ? own : stray.theirs, to_owner ? stray.theirs : own,
                    stray.copy.size() * sizeof(float));
      });
    }
    JoinStreams();
  }

  void JoinStreams() {
    for (size_t i = 0; i < streams_.size(); ++i) {
      EXPECT_EQ(cudaEventRecord(events_[i], streams_[i]), cudaSuccess);
    }
    for (const cudaStream_t stream : streams_) {
      for (const cudaEvent_t event : events_) {
        EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
      }
    }
  }

  void Copy(int32_t fragment, bool into_arena) {
    const causeway_range* ranges = nullptr;
    int64_t count = 0;
    Must(causeway_site_ranges(site_, fragment, &ranges, &count, &error_));
    float* const arena = causeway_site_arena(site_);
    for (int64_t i = 0; i < count; ++i) {
      const causeway_range& range = ranges[i];
      float* const mine =
          values_[order_[static_cast<size_t>(range.tensor)]].data() + range.tensor_offset;
      float* const theirs = arena + range.arena_offset;
      std::memcpy(into_arena ? theirs : mine, into_arena ? mine : theirs,
                  static_cast<size_t>(range.count) * sizeof(float));
    }
    // Only these values are read: nothing else of the arena matters.
    if (into_arena) return;
    for (int64_t i = 0; i < count; ++i) {
      std::fill_n(arena + ranges[i].arena_offset, ranges[i].count, std::nanf(""));
    }
  }

  const int worker_;
  const Place place_;
  const std::string coordinator_;
  std::vector<cudaStream_t> streams_;  // One of each device.
  std::vector<cudaEvent_t> events_;
  // A device's copy of what it owns of another one's tensor.
  struct Stray {
    int32_t fragment = 0;
    int32_t device = 0;
    float* theirs = nullptr;
    std::vector<float> copy;
  };
  std::vector<Stray> strays_;
  int64_t waits_ = 0;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::vector<float>> values_;
  std::vector<size_t> order_;
  causeway_site* site_ = nullptr;
  causeway_error error_ = {};
};

struct Trained {
  Recorded recorded;
  int64_t waits = 0;  // Calls in steps that waited for a device.
};

// All three, of which those from `first_engine` on are loops of ours.
Trained Train(const v1::RunConfig& config, int first_engine, Place place = Place::kArena) {
  Run run(config);
  server::CoordinatorServer::Options options;
  options.address = "127.0.0.1:0";
  auto server = server::CoordinatorServer::Start(options, *run.coordinator).value();
  std::vector<std::unique_ptr<InProcessExchange>> exchanges;
  for (int i = first_engine; i < 3; ++i) {
    exchanges.push_back(InProcessExchange::Join(*run.coordinator, kIds[i]).value());
  }
  std::vector<std::unique_ptr<CTrainer>> trainers;
  for (int i = 0; i < first_engine; ++i) {
    trainers.push_back(std::make_unique<CTrainer>(run, i, server->port(), place));
  }
  for (const auto& exchange : exchanges) EXPECT_TRUE(exchange->Ready(0).ok());
  {
    std::vector<std::jthread> threads;
    for (const auto& trainer : trainers) threads.emplace_back([&trainer] { trainer->Train(); });
    for (int i = first_engine; i < 3; ++i) {
      threads.emplace_back(
          [&run, i, &exchange = *exchanges[static_cast<size_t>(i - first_engine)]] {
            EXPECT_EQ(TrainWithEngine(run, i, exchange), absl::OkStatus());
          });
    }
  }
  Trained trained;
  for (const auto& trainer : trainers) trained.waits += trainer->waits();
  trainers.clear();
  trained.recorded = run.store.recorded();
  return trained;
}

struct Case {
  const char* name;
  const char* cut;
  const char* codecs;
  // With 61 tokens the run's tensors have padding that the sites' lack.
  int vocabulary = 61;
};

class BitsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    emulation::Machine machine;
    machine.devices = kDevices;
    emulation::SetMachine(machine);
    UseDevices(emulation::Order::kForward, /*eager=*/false);
  }
  void TearDown() override { UseDevices(emulation::Order::kForward, /*eager=*/false); }

  static void UseDevices(emulation::Order order, bool eager) {
    emulation::SetOrder(order);
    emulation::SetEager(eager);
  }
  static v1::RunConfig Config();
};

v1::RunConfig BitsTest::Config() {
  v1::RunConfig config = ParseRunConfig(absl::StrCat(R"(
        model { layers: 3 width: 16 heads: 4 kv_heads: 2 mlp_width: 24
                untied_head: true sequence_length: 12 }
        train { steps: 26 }
        outer { learning_rate: 0.7 momentum: 0.6 }
        membership { start_workers: 3 max_workers: 3 quorum: 3 lease_ms: 3600000 }
        sync { )",
                                                     GetParam().cut, GetParam().codecs, " }"),
                                        "bits")
                             .value();
  EXPECT_TRUE(CompleteRunConfig(config).ok()) << CompleteRunConfig(config).status();
  return config;
}

void ExpectEqual(const Recorded& of_workers, const Recorded& of_sites) {
  ASSERT_GE(of_workers.published.size(), 4U);
  ASSERT_EQ(of_workers.pushed.size(), 3 * of_workers.published.size());
  ASSERT_EQ(of_sites.pushed.size(), of_workers.pushed.size());
  for (const auto& [key, pushed] : of_workers.pushed) {
    const auto& [fragment, round, worker] = key;
    ASSERT_TRUE(of_sites.pushed.contains(key));
    EXPECT_TRUE(of_sites.pushed.at(key) == pushed)
        << worker << " pushed something else in round " << round << " of fragment " << fragment;
  }
  ASSERT_EQ(of_sites.published.size(), of_workers.published.size());
  for (const auto& [key, published] : of_workers.published) {
    EXPECT_TRUE(of_sites.published.at(key) == published)
        << "round " << key.second << " of fragment " << key.first;
  }
}

TEST_P(BitsTest, SitesPushAndPublishWhatWorkersDo) {
  const v1::RunConfig config = Config();
  const Recorded of_workers = Train(config, 0).recorded;
  ExpectEqual(of_workers, Train(config, 2).recorded);
  // Streams do their work late, and in an order of their own.
  UseDevices(emulation::Order::kShuffled, /*eager=*/false);
  ExpectEqual(of_workers, Train(config, 2, Place::kDevice).recorded);
  ExpectEqual(of_workers, Train(config, 2, Place::kDeviceAndPinned).recorded);
  ExpectEqual(of_workers, Train(config, 2, Place::kDevices).recorded);
}

// On a device that has done what it was given.
TEST_P(BitsTest, NoStepWaitsForADevice) {
  UseDevices(emulation::Order::kForward, /*eager=*/true);
  EXPECT_EQ(Train(Config(), 3, Place::kDevice).waits, 0);
  EXPECT_EQ(Train(Config(), 3, Place::kDeviceAndPinned).waits, 0);
  EXPECT_EQ(Train(Config(), 3, Place::kDevices).waits, 0);
}

constexpr char kDiLoCo[] = "fragments: 1 steps_between_syncs: 6 overlap_steps: 0 mixing: 0 ";
constexpr char kStrided[] =
    "fragments: 3 pattern: STRIDED steps_between_syncs: 8 overlap_steps: 3 mixing: 0.5 ";
constexpr char kSequential[] =
    "fragments: 2 pattern: SEQUENTIAL steps_between_syncs: 7 overlap_steps: 4 mixing: 0.25 ";
constexpr char kBalanced[] =
    "fragments: 5 pattern: BALANCED steps_between_syncs: 7 overlap_steps: 4 mixing: 0.5 ";
constexpr char kOften[] =
    "fragments: 4 pattern: BALANCED steps_between_syncs: 6 overlap_steps: 5 mixing: 0 ";
constexpr char kFew[] =
    "fragments: 3 pattern: BALANCED steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5 ";

constexpr Case kCases[] = {
    {"fp32", kStrided, "codec_up: FP32 codec_down: FP32"},
    {"fp32_feedback", kBalanced, "codec_up: FP32 codec_down: BF16 error_feedback: true"},
    {"diloco", kDiLoCo, "codec_up: FP32 codec_down: FP32"},
    {"bf16", kSequential, "codec_up: BF16 codec_down: E2M1"},
    {"bf16_feedback", kOften, "codec_up: BF16 codec_down: INT4 error_feedback: true"},
    {"int8", kOften, "codec_up: INT8 codec_down: FP32"},
    {"int8_feedback", kStrided, "codec_up: INT8 codec_down: INT8 error_feedback: true"},
    {"int4", kStrided, "codec_up: INT4 codec_down: INT4"},
    {"int4_feedback", kBalanced, "codec_up: INT4 codec_down: INT8 error_feedback: true"},
    {"e2m1", kSequential, "codec_up: E2M1 codec_down: BF16"},
    {"e2m1_feedback", kBalanced, "codec_up: E2M1 codec_down: E2M1 error_feedback: true"},
    {"e3m0", kFew, "codec_up: E3M0 codec_down: INT4"},
    {"e3m0_feedback", kStrided, "codec_up: E3M0 codec_down: E3M0 error_feedback: true"},
    // These two, too, change values that nobody trained. A site keeps padding as it is published, a
    // worker mixes it.
    {"sign1_feedback", kFew, "codec_up: SIGN1 codec_down: SIGN1 error_feedback: true", 128},
    {"lm2_feedback", kFew, "codec_up: LM2 codec_down: LM2 error_feedback: true", 128},
};

INSTANTIATE_TEST_SUITE_P(Codecs, BitsTest, testing::ValuesIn(kCases),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace causeway
