// reference_trace: runs the real code, workers and coordinator in one process and without sockets,
// and leaves everything that went over the border between them for the oracle (oracle.py), which
// then computes the same run in its own way.
//
//   reference_trace --out FOLDER common.textproto RUN.textproto...
//
// writes FOLDER/RUN for each run, whose settings go over the common ones:
//
//   trace.json                        configuration, tensors, fragments, contributions, rounds
//   initial.f32                       the arena at the start
//   inputs.W.i32, targets.W.i32       worker W's tokens, [steps, sequences, length]
//   before.W.f32, after.W.f32         its local values before and after each step's sends and
//                                     merges, [steps, arena]
//   delta.F.R.W.bin                   its encoded delta of fragment F, round R
//   answer.F.R.bin, published.F.R.f32 the encoded answer, and the published values after it
//
// As many workers as the configuration starts with, three or five, with batches of different sizes,
// one thread each. The model computes in double;
// the master weights are fp32, rounded after every step, so that a run has the same bits wherever
// double arithmetic agrees to a few units in the last place.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/files/json.h"
#include "common/params/run_config.h"
#include "common/telemetry/event_log.h"
#include "nlohmann/json.hpp"
#include "server/core/coordinator.h"
#include "tests/reference/in_process_exchange.h"
#include "tests/unit/server/store/memory_store.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/backend/cpu/optimizer.h"
#include "worker/sync/host_part.h"
#include "worker/sync/sync_engine.h"

namespace causeway {
namespace {

// Writes values or bytes as they lie in memory (little endian) to folder/name.
template <typename T>
absl::Status WriteTraceFile(const std::string& folder, const std::string& name,
                            std::span<const T> values) {
  ASSIGN_OR_RETURN(const auto file, FileSystem::Real()->Create(JoinPath(folder, name)));
  return file->Append(
      std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()));
}

struct Site {
  std::string id;
  int batch_sequences = 0;  // Hence the weight of its deltas.
};

// Not in the order of the ids, which is the order of summation.
const Site kAllSites[] = {{"west", 2}, {"east", 1}, {"north", 4}, {"south", 1}, {"center", 2}};

std::span<const Site> SitesOf(const v1::RunConfig& config) {
  return std::span(kAllSites).first(static_cast<size_t>(config.membership().start_workers()));
}

// One worker's trace.
struct SiteTrace {
  std::vector<int32_t> inputs, targets;
  std::vector<float> before, after;
  std::map<std::pair<int, int64_t>, std::vector<float>> published;
};

// Tokens that can be learned: each follows from the one before, more often than not.
void DrawWindow(const v1::RunConfig& config, uint64_t stream, uint64_t window,
                std::vector<int32_t>& inputs, std::vector<int32_t>& targets) {
  const auto vocabulary = static_cast<uint64_t>(config.model().vocabulary_size());
  const auto length = static_cast<uint64_t>(config.model().sequence_length());
  const uint64_t seed = config.train().seed();
  uint64_t token = RandomBits(seed, stream, window * 2 * (length + 1)) % vocabulary;
  for (uint64_t i = 0; i < length; ++i) {
    inputs.push_back(static_cast<int32_t>(token));
    const uint64_t bits = RandomBits(seed, stream, window * 2 * (length + 1) + i + 1);
    token = bits % 8 == 0 ? (bits >> 8) % vocabulary : (token * 7 + 3) % vocabulary;
    targets.push_back(static_cast<int32_t>(token));
  }
}

// The training loop of one worker, with everything noted down.
absl::Status RunSite(const v1::RunConfig& config, const FragmentPlan& plan, const Site& site,
                     InProcessExchange& exchange, SiteTrace& trace) {
  const auto sequences = static_cast<size_t>(site.batch_sequences);
  const auto length = static_cast<size_t>(config.model().sequence_length());
  // An even batch goes through in two halves.
  const size_t micro_batches = sequences % 2 == 0 ? 2 : 1;
  const size_t micro_tokens = sequences / micro_batches * length;

  const auto size = static_cast<size_t>(plan.arena_size());
  std::vector<float> local(size);
  std::vector<double> weights(size), gradients(size);
  ThreadPool pool(1);
  worker::CpuTransformer<double> model(config.model(), plan,
                                       static_cast<int>(sequences / micro_batches), &pool);
  worker::InnerOptimizer<double> optimizer(plan, config.train(), &pool);
  ASSIGN_OR_RETURN(const auto replica, worker::MakeHostReplica(plan, config.sync(), local, {}));

  worker::SyncEngine* engine = nullptr;
  worker::SyncEngine::Options options{.config = config.sync(),
                                      .plan = &plan,
                                      .replica = replica.get(),
                                      .exchange = &exchange,
                                      .clock = Clock::Real(),
                                      .recorded_merges = {},
                                      .observer = {}};
  options.observer.merged = [&](int64_t, const SyncEvent& event) {
    const FragmentRange& range = plan.range(event.fragment);
    const std::span<const float> values = engine->published().value().subspan(
        static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    trace.published[{event.fragment, event.round}].assign(values.begin(), values.end());
  };
  worker::SyncEngine sync(std::move(options));
  engine = &sync;

  ASSIGN_OR_RETURN(int64_t step, sync.Fetch(exchange.welcome().run_step()));
  while (step < config.train().steps()) {
    ++step;
    const size_t first = trace.inputs.size();
    for (size_t i = 0; i < sequences; ++i) {
      DrawWindow(config, Checksum64(site.id), static_cast<uint64_t>(step) * sequences + i,
                 trace.inputs, trace.targets);
    }
    weights.assign(local.begin(), local.end());
    for (size_t i = 0; i < micro_batches; ++i) {
      const size_t begin = first + i * micro_tokens;
      model.ForwardBackward(weights, std::span(trace.inputs).subspan(begin, micro_tokens),
                            std::span(trace.targets).subspan(begin, micro_tokens),
                            1.0 / static_cast<double>(micro_batches), i > 0, gradients);
    }
    RETURN_IF_ERROR(optimizer.Step(step, weights, gradients).status());
    for (size_t i = 0; i < size; ++i) local[i] = static_cast<float>(weights[i]);

    trace.before.insert(trace.before.end(), local.begin(), local.end());
    RETURN_IF_ERROR(sync.AfterStep(step, static_cast<int64_t>(sequences * length),
                                   static_cast<int64_t>(sequences)));
    trace.after.insert(trace.after.end(), local.begin(), local.end());
  }
  RETURN_IF_ERROR(sync.Drain());
  RETURN_IF_ERROR(exchange.Leave(v1::Leave::FINISHED));
  return exchange.session_status();
}

nlohmann::json Describe(const v1::RunConfig& config, const FragmentPlan& plan) {
  nlohmann::json trace = MessageToJson(config);
  trace["arena_size"] = plan.arena_size();
  trace["tensors"] = nlohmann::json::array();
  for (const PlacedTensor& tensor : plan.tensors()) {
    trace["tensors"].push_back({{"name", tensor.info.name},
                                {"rows", tensor.info.rows},
                                {"cols", tensor.info.cols},
                                {"offset", tensor.offset}});
  }
  trace["fragments"] = nlohmann::json::array();
  for (int i = 0; i < plan.fragments(); ++i) {
    trace["fragments"].push_back({{"begin", plan.range(i).begin}, {"end", plan.range(i).end}});
  }
  trace["workers"] = nlohmann::json::array();
  for (const Site& site : SitesOf(config)) {
    trace["workers"].push_back({{"id", site.id}, {"batch_sequences", site.batch_sequences}});
  }
  return trace;
}

// The coordinator's store, which an answer that nobody needs any more stays in.
class TraceStore final : public server::MemoryStore {
 public:
  absl::Status ForgetAnswers(int, int64_t) override { return absl::OkStatus(); }
};

absl::Status WriteContributions(const std::string& folder, TraceStore& store) {
  for (const v1::Contribution& record : store.contributions()) {
    const v1::PushHeader& header = record.header();
    ASSIGN_OR_RETURN(const std::vector<uint8_t> delta,
                     store.ReadContribution(header.fragment(), header.round(), header.worker_id()));
    RETURN_IF_ERROR(WriteTraceFile(folder,
                                   absl::StrCat("delta.", header.fragment(), ".", header.round(),
                                                ".", header.worker_id(), ".bin"),
                                   std::span<const uint8_t>(delta)));
  }
  return absl::OkStatus();
}

// Every worker's published copy of every round is the coordinator's; writes it once.
absl::Status WriteRounds(const std::string& folder, TraceStore& store, std::span<const Site> sites,
                         const std::vector<SiteTrace>& traces) {
  for (const v1::Round& record : store.rounds()) {
    const std::pair<int, int64_t> key(record.fragment(), record.round());
    for (size_t i = 0; i < traces.size(); ++i) {
      const auto found = traces[i].published.find(key);
      if (found == traces[i].published.end() ||
          TreeHash(std::span<const float>(found->second)) != record.published_hash()) {
        return absl::DataLossError(absl::StrCat(sites[i].id, " does not hold round ", key.second,
                                                " of fragment ", key.first,
                                                " as the coordinator published it"));
      }
    }
    const std::string name = absl::StrCat(key.first, ".", key.second);
    RETURN_IF_ERROR(WriteTraceFile(folder, absl::StrCat("published.", name, ".f32"),
                                   std::span<const float>(traces[0].published.at(key))));
    ASSIGN_OR_RETURN(const std::vector<uint8_t> answer, store.ReadAnswer(key.first, key.second));
    RETURN_IF_ERROR(WriteTraceFile(folder, absl::StrCat("answer.", name, ".bin"),
                                   std::span<const uint8_t>(answer)));
  }
  return absl::OkStatus();
}

nlohmann::json ListOf(const auto& records) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& record : records) list.push_back(MessageToJson(record));
  return list;
}

absl::Status WriteSite(const std::string& folder, const Site& site, const SiteTrace& trace) {
  const auto write = [&](absl::string_view kind, absl::string_view type, const auto& values) {
    return WriteTraceFile(folder, absl::StrCat(kind, ".", site.id, ".", type), std::span(values));
  };
  RETURN_IF_ERROR(write("inputs", "i32", trace.inputs));
  RETURN_IF_ERROR(write("targets", "i32", trace.targets));
  RETURN_IF_ERROR(write("before", "f32", trace.before));
  return write("after", "f32", trace.after);
}

absl::StatusOr<v1::RunConfig> ReadOver(const v1::RunConfig& base, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, FileSystem::Real()->ReadFile(path));
  return ParseRunConfig(text, path, base);
}

absl::Status RunConfiguration(const std::string& common, const std::string& path,
                              const std::string& folder) {
  ASSIGN_OR_RETURN(v1::RunConfig config, ReadOver({}, common));
  ASSIGN_OR_RETURN(config, ReadOver(config, path));
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  const std::span<const Site> sites = SitesOf(config);
  RETURN_IF_ERROR(FileSystem::Real()->CreateFolders(folder));
  const std::vector<float> initial = server::InitialOf(plan, config.train().seed());
  RETURN_IF_ERROR(WriteTraceFile(folder, "initial.f32", std::span(initial)));

  TraceStore store;
  ASSIGN_OR_RETURN(const auto coordinator, server::Coordinator::Create(server::OptionsOf(
                                               config, "reference", store, config.train().seed())));
  std::vector<std::unique_ptr<InProcessExchange>> exchanges;
  for (const Site& site : sites) {
    ASSIGN_OR_RETURN(exchanges.emplace_back(), InProcessExchange::Join(*coordinator, site.id));
  }
  for (const auto& exchange : exchanges) RETURN_IF_ERROR(exchange->Ready(0));

  std::vector<SiteTrace> traces(sites.size());
  std::vector<absl::Status> statuses(sites.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < sites.size(); ++i) {
      threads.emplace_back([&, i] {
        statuses[i] =
            Annotate(RunSite(config, plan, sites[i], *exchanges[i], traces[i]), sites[i].id);
        if (statuses[i].ok()) return;
        for (const auto& exchange : exchanges) exchange->Cancel();  // Or they wait for ever.
      });
    }
  }
  // The cause before the cancellations that followed from it.
  std::stable_partition(statuses.begin(), statuses.end(),
                        [](const absl::Status& status) { return !absl::IsCancelled(status); });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  for (size_t i = 0; i < sites.size(); ++i) {
    RETURN_IF_ERROR(WriteSite(folder, sites[i], traces[i]));
  }
  RETURN_IF_ERROR(coordinator->Shutdown());
  RETURN_IF_ERROR(WriteContributions(folder, store));
  RETURN_IF_ERROR(WriteRounds(folder, store, sites, traces));
  nlohmann::json trace = Describe(config, plan);
  trace["contributions"] = ListOf(store.contributions());
  trace["rounds"] = ListOf(store.rounds());
  const std::string text = trace.dump(1);
  return WriteTraceFile(folder, "trace.json", std::span(text.data(), text.size()));
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4 || arguments[0] != "--out") {
    std::fprintf(stderr, "usage: reference_trace --out FOLDER common.textproto RUN.textproto...\n");
    return 2;
  }
  absl::Status status;
  for (const std::string& path : std::span(arguments).subspan(3)) {
    if (!status.ok()) break;
    const std::string name = std::filesystem::path(path).stem();
    status = Annotate(RunConfiguration(arguments[2], path, JoinPath(arguments[1], name)), name);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "reference_trace: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) { return causeway::Main(argc, argv); }
