#include "worker/site/causeway_site.h"

#include <grpc/support/log.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/files/message_json.h"
#include "common/params/run_config.h"
#include "common/rpc/tcp_links.h"
#include "common/transfer/wire.h"
#include "worker/member/join_checks.h"
#include "worker/site/arena_site.h"
#include "worker/site/log_queue.h"

using causeway::Clock;
using causeway::FileSystem;
using causeway::FragmentPlan;
using causeway::worker::ArenaSite;
using causeway::worker::GivenTensor;
using causeway::worker::LogLine;
using causeway::worker::LogQueue;
using causeway::worker::MemberOptions;
using causeway::worker::ReachedRun;
using causeway::worker::ReachRun;
using causeway::worker::RunMember;
using causeway::worker::SiteJoin;

struct causeway_site {
  pid_t pid = 0;  // The process that joined.
  causeway_log_function log = nullptr;
  void* log_context = nullptr;
  std::optional<LogQueue::Wanted> wants_log;
  std::unique_ptr<ArenaSite> site;
};

namespace {

constexpr int64_t kMaxTensors = 1 << 20;
constexpr int kMaxRank = 8;
constexpr double kMaxMbit = 1e6;
constexpr double kBytesPerMbit = 1e6 / 8;
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

// --- Errors --------------------------------------------------------------------------------------

int Answer(const absl::Status& status, causeway_error* error) {
  const int code = static_cast<int>(status.code());
  if (error == nullptr) return code;
  error->code = code;
  constexpr absl::string_view kCut = " ...";
  std::string message(status.message());
  if (message.size() >= CAUSEWAY_MESSAGE_BYTES) {
    message.resize(CAUSEWAY_MESSAGE_BYTES - 1 - kCut.size());
    absl::StrAppend(&message, kCut);
  }
  std::memcpy(error->message, message.c_str(), message.size() + 1);
  return code;
}

// No exception crosses the interface.
template <typename Body>
int Guarded(causeway_error* error, const Body& body) {
  try {
    return Answer(body(), error);
  } catch (const std::bad_alloc&) {
    return Answer(absl::ResourceExhaustedError("there is no more memory"), error);
  } catch (const std::exception& exception) {
    return Answer(absl::InternalError(exception.what()), error);
  }
}

absl::Status NullArgument(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " must not be NULL"));
}

absl::Status CheckSize(absl::string_view name, size_t size, size_t expected) {
  if (size == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, "->size is ", size, ", this library (ABI version ", CAUSEWAY_ABI_VERSION, ") expects ",
      expected, ": set it to sizeof, and use the header of the same version"));
}

// --- Log -----------------------------------------------------------------------------------------

void HandOutLog(causeway_log_function log, void* context) {
  if (log == nullptr) return;
  for (const LogLine& line : LogQueue::Get().Take()) log(context, line.level, line.text.c_str());
}

// Whatever was logged meanwhile, on every way out of a function.
class LogHandOut {
 public:
  LogHandOut(causeway_log_function log, void* context) : log_(log), context_(context) {}
  ~LogHandOut() { HandOutLog(log_, context_); }
  LogHandOut(const LogHandOut&) = delete;
  LogHandOut& operator=(const LogHandOut&) = delete;

 private:
  const causeway_log_function log_;
  void* const context_;
};

void PrepareProcess() {
  // gRPC's own log would repeat for every attempt what the session's log says once.
  static const bool silent = [] {
    gpr_set_log_function([](gpr_log_func_args*) {});
    return true;
  }();
  static_cast<void>(silent);
  LogQueue::Get();
}

// --- Arguments -----------------------------------------------------------------------------------

std::string Text(const char* text) { return text == nullptr ? "" : text; }

absl::StatusOr<int64_t> BytesPerSecond(absl::string_view name, double mbit) {
  if (mbit == 0) return 0;
  // Slower than that, the coordinator takes what comes for something that does not move.
  if (!(mbit >= 1 && mbit <= kMaxMbit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->", name, " must be 0 or 1 .. ", kMaxMbit, "; it is ", mbit));
  }
  return static_cast<int64_t>(mbit * kBytesPerMbit);
}

absl::StatusOr<absl::Duration> Seconds(absl::string_view name, double seconds,
                                       absl::Duration otherwise) {
  if (seconds == 0) return otherwise;
  if (!(seconds > 0 && seconds <= absl::ToDoubleSeconds(kLongest))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "options->", name, " must be more than 0 s and at most a year, or 0; it is ", seconds));
  }
  return absl::Seconds(seconds);
}

absl::StatusOr<SiteJoin> ReadOptions(const causeway_site_options* options) {
  if (options == nullptr) return NullArgument("options");
  RETURN_IF_ERROR(CheckSize("options", options->size, sizeof(*options)));
  SiteJoin join;
  MemberOptions& member = join.member;
  member.coordinator = Text(options->coordinator);
  RETURN_IF_ERROR(
      causeway::Annotate(causeway::SplitAddresses(member.coordinator).status(), "coordinator"));
  member.worker_id = Text(options->id);
  member.security.ca_file = Text(options->tls_ca);
  member.security.cert_file = Text(options->tls_cert);
  member.security.key_file = Text(options->tls_key);
  member.security.server_name = Text(options->tls_server_name);
  member.security.token_file = Text(options->token_file);
  member.security.insecure = options->insecure != 0;
  member.own_data = options->data_slot == 0;
  member.any_model = true;
  member.output = Text(options->output);
  member.tensorboard = Text(options->tensorboard);
  member.metrics_address = Text(options->metrics);
  if (options->threads < 0 || options->threads > causeway::kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "options->threads must be 0 .. ", causeway::kMaxThreads, "; it is ", options->threads));
  }
  member.threads = std::max(1, options->threads);
  if (options->connections < 0 || options->connections > causeway::kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->connections must be 0 (as many as help) .. ",
                     causeway::kMaxConnections, "; it is ", options->connections));
  }
  member.connections = options->connections;
  ASSIGN_OR_RETURN(member.max_upload_bytes_per_second,
                   BytesPerSecond("max_upload_mbit", options->max_upload_mbit));
  ASSIGN_OR_RETURN(member.max_download_bytes_per_second,
                   BytesPerSecond("max_download_mbit", options->max_download_mbit));
  ASSIGN_OR_RETURN(member.connect_timeout,
                   Seconds("connect_timeout_s", options->connect_timeout_s, absl::Seconds(30)));
  ASSIGN_OR_RETURN(join.drain_timeout,
                   Seconds("drain_timeout_s", options->drain_timeout_s, absl::Seconds(20)));
  const std::string control = Text(options->congestion_control);
  ASSIGN_OR_RETURN(member.congestion_control,
                   causeway::ChooseCongestionControl(control.empty() ? "auto" : control));
  join.description.device = options->device == nullptr ? "not said" : options->device;
  if (options->software != nullptr) join.description.software = options->software;
  if (options->stop != nullptr) {
    join.stop = [stop = options->stop] { return *stop != 0; };
  }
  if (options->initial_values != nullptr) {
    join.initial_values = [give = options->initial_values,
                           context = options->initial_values_context](size_t tensor,
                                                                      std::span<float> values) {
      return give(context, static_cast<int64_t>(tensor), 0, std::ssize(values), values.data()) == 0;
    };
  }
  return join;
}

absl::StatusOr<std::vector<GivenTensor>> ReadTensors(const causeway_tensor* tensors,
                                                     int64_t count) {
  if (tensors == nullptr) return NullArgument("tensors");
  if (count < 1 || count > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_count must be 1 .. 2^20; it is ", count));
  }
  std::vector<GivenTensor> given;
  for (int64_t i = 0; i < count; ++i) {
    const causeway_tensor& tensor = tensors[i];
    if (tensor.name == nullptr || tensor.name[0] == '\0') {
      return absl::InvalidArgumentError(absl::StrCat("tensors[", i, "] has no name"));
    }
    if (tensor.rank < 0 || tensor.rank > kMaxRank || (tensor.rank > 0 && tensor.shape == nullptr)) {
      return absl::InvalidArgumentError(absl::StrCat("tensors[", i, "] (", tensor.name,
                                                     ") must have a shape of 0 .. ", kMaxRank,
                                                     " sizes; its rank is ", tensor.rank));
    }
    GivenTensor& one = given.emplace_back();
    one.name = tensor.name;
    one.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  }
  return given;
}

// The site, if this process may use it.
absl::Status CheckSite(const causeway_site* site) {
  if (site == nullptr) return NullArgument("site");
  if (site->pid != getpid()) {
    return absl::FailedPreconditionError(absl::StrCat("this site was joined by process ", site->pid,
                                                      ", and this is its child ", getpid(),
                                                      ": only the process that joined may use it"));
  }
  return absl::OkStatus();
}

// Runs `body` with the site of a usable handle.
template <typename Handle, typename Body>
int WithSite(Handle* site, causeway_error* error, const Body& body) {
  return Guarded(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckSite(site));
    const LogHandOut log(site->log, site->log_context);
    return body(*site->site);
  });
}

absl::Status GiveFragments(absl::StatusOr<std::span<const int32_t>> result,
                           const int32_t** fragments, int32_t* count) {
  RETURN_IF_ERROR(result.status());
  *fragments = result->data();
  *count = static_cast<int32_t>(result->size());
  return absl::OkStatus();
}

absl::Status CheckOutputs(const int32_t** fragments, const int32_t* count) {
  if (fragments == nullptr || count == nullptr) {
    return NullArgument("where the fragments and their count go");
  }
  return absl::OkStatus();
}

absl::Status GiveText(const nlohmann::json& json, char** text) {
  if (text == nullptr) return NullArgument("json");
  const std::string dumped =
      json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  *text = static_cast<char*>(std::malloc(dumped.size() + 1));
  if (*text == nullptr) return absl::ResourceExhaustedError("there is no more memory");
  std::memcpy(*text, dumped.c_str(), dumped.size() + 1);
  return absl::OkStatus();
}

nlohmann::json DescribeRun(const causeway::v1::DescribeResponse& run, const FragmentPlan& plan) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const causeway::PlacedTensor& tensor : plan.tensors()) {
    tensors.push_back({{"name", tensor.info.name}, {"shape", tensor.info.shape}});
  }
  return {{"run_id", run.run_id()},          {"config", causeway::MessageToJson(run.config())},
          {"parameters", plan.parameters()}, {"fragments", plan.fragments()},
          {"tensors", std::move(tensors)},   {"awaits_model", false}};
}

std::optional<double> Known(double value) {
  if (std::isnan(value)) return std::nullopt;
  return value;
}

}  // namespace

int causeway_abi_version(void) { return CAUSEWAY_ABI_VERSION; }

const char* causeway_software_version(void) { return causeway::kSoftwareVersion; }

int causeway_describe(const causeway_site_options* options, char** json, causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const SiteJoin join, ReadOptions(options));
    PrepareProcess();
    std::optional<LogQueue::Wanted> wants_log;
    if (options->log != nullptr) wants_log.emplace();
    const LogHandOut log(options->log, options->log_context);
    ASSIGN_OR_RETURN(const ReachedRun reached, ReachRun(join.member, *Clock::Real()));
    if (reached.run.awaits_model()) {
      return GiveText({{"run_id", reached.run.run_id()},
                       {"config", causeway::MessageToJson(reached.run.config())},
                       {"awaits_model", true}},
                      json);
    }
    ASSIGN_OR_RETURN(const FragmentPlan plan,
                     causeway::worker::CheckRun(reached.run, /*any_model=*/true));
    return GiveText(DescribeRun(reached.run, plan), json);
  });
}

void causeway_text_free(char* text) { std::free(text); }

int causeway_site_join(const causeway_site_options* options, const causeway_tensor* tensors,
                       int64_t tensor_count, const void* state, size_t state_bytes,
                       causeway_site** site, causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    if (site == nullptr) return NullArgument("site");
    *site = nullptr;
    if (state == nullptr && state_bytes > 0) return NullArgument("state");
    ASSIGN_OR_RETURN(SiteJoin join, ReadOptions(options));
    RETURN_IF_ERROR(causeway::CheckName("id", join.member.worker_id));
    ASSIGN_OR_RETURN(std::vector<GivenTensor> given, ReadTensors(tensors, tensor_count));
    PrepareProcess();
    auto joined = std::make_unique<causeway_site>();
    if (options->log != nullptr) joined->wants_log.emplace();
    const LogHandOut log(options->log, options->log_context);
    join.meanwhile = [log = options->log, context = options->log_context] {
      HandOutLog(log, context);
    };
    joined->pid = getpid();
    joined->log = options->log;
    joined->log_context = options->log_context;
    ASSIGN_OR_RETURN(joined->site, ArenaSite::Join(join, std::move(given),
                                                   {static_cast<const uint8_t*>(state),
                                                    state == nullptr ? 0 : state_bytes},
                                                   *FileSystem::Real(), *Clock::Real()));
    *site = joined.release();
    return absl::OkStatus();
  });
}

int causeway_site_describe(const causeway_site* site, causeway_site_info* info,
                           causeway_error* error) {
  return WithSite(site, error, [&](const ArenaSite& joined) -> absl::Status {
    if (info == nullptr) return NullArgument("info");
    RETURN_IF_ERROR(CheckSize("info", info->size, sizeof(*info)));
    const RunMember& member = joined.member();
    info->fragments = member.plan().fragments();
    info->arena_values = member.plan().arena_size();
    info->parameters = member.plan().parameters();
    info->steps = member.config().train().steps();
    info->steps_between_syncs = member.config().sync().steps_between_syncs();
    info->overlap_steps = member.config().sync().overlap_steps();
    info->restored = joined.restored() ? 1 : 0;
    info->brought_model = joined.brought_model() ? 1 : 0;
    return absl::OkStatus();
  });
}

int causeway_site_config(const causeway_site* site, char** json, causeway_error* error) {
  return WithSite(site, error, [&](const ArenaSite& joined) {
    nlohmann::json described = DescribeRun(joined.member().run(), joined.member().plan());
    described["step"] = joined.member().step();
    described["data_slot"] = joined.member().DataPart();
    return GiveText(described, json);
  });
}

int causeway_site_ranges(const causeway_site* site, int32_t fragment, const causeway_range** ranges,
                         int64_t* count, causeway_error* error) {
  return WithSite(site, error, [&](const ArenaSite& joined) -> absl::Status {
    if (ranges == nullptr || count == nullptr) return NullArgument("ranges or count");
    const int fragments = joined.member().plan().fragments();
    if (fragment != CAUSEWAY_ALL && (fragment < 0 || fragment >= fragments)) {
      return absl::InvalidArgumentError(absl::StrCat("there is no fragment ", fragment,
                                                     ": they are 0 .. ", fragments - 1,
                                                     ", or CAUSEWAY_ALL"));
    }
    const std::span<const causeway_range> pieces =
        joined.ranges(fragment == CAUSEWAY_ALL ? std::nullopt : std::optional<int>(fragment));
    *ranges = pieces.data();
    *count = static_cast<int64_t>(pieces.size());
    return absl::OkStatus();
  });
}

float* causeway_site_arena(causeway_site* site) {
  return CheckSite(site).ok() ? site->site->arena().data() : nullptr;
}

int causeway_site_published(causeway_site* site, const float** values, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (values == nullptr) return NullArgument("values");
    ASSIGN_OR_RETURN(const std::span<const float> published, joined.member().sync().published());
    *values = published.data();
    return absl::OkStatus();
  });
}

int causeway_site_changed(causeway_site* site, const int32_t** fragments, int32_t* count,
                          causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    RETURN_IF_ERROR(CheckOutputs(fragments, count));
    return GiveFragments(joined.Changed(), fragments, count);
  });
}

int causeway_site_ready(causeway_site* site, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) { return joined.Ready(); });
}

int causeway_site_wait(causeway_site* site, double timeout_s, causeway_site_orders* orders,
                       causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (orders == nullptr) return NullArgument("orders");
    RETURN_IF_ERROR(CheckSize("orders", orders->size, sizeof(*orders)));
    if (std::isnan(timeout_s)) return absl::InvalidArgumentError("timeout_s is not a number");
    const absl::Duration timeout =
        timeout_s < 0 ? absl::InfiniteDuration() : absl::Seconds(timeout_s);
    ASSIGN_OR_RETURN(const ArenaSite::Orders said,
                     joined.Wait(timeout, [site] { HandOutLog(site->log, site->log_context); }));
    RunMember& member = joined.member();
    orders->go = said.go ? 1 : 0;
    orders->finished = said.finished ? 1 : 0;
    orders->drain = said.drain ? 1 : 0;
    orders->anew = said.anew ? 1 : 0;
    orders->data_slot = member.DataPart();
    orders->next_draw = member.sync().next_draw();
    orders->step = member.step();
    orders->next_step = said.go ? member.NextStep() : member.step();
    orders->end_step = member.end_step();
    return absl::OkStatus();
  });
}

int causeway_site_next(causeway_site* site, const int32_t** fragments, int32_t* count,
                       causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    RETURN_IF_ERROR(CheckOutputs(fragments, count));
    return GiveFragments(joined.Next(), fragments, count);
  });
}

int causeway_site_step(causeway_site* site, int64_t tokens, int64_t draws, const int32_t** changed,
                       int32_t* count, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    RETURN_IF_ERROR(CheckOutputs(changed, count));
    return GiveFragments(joined.Step(tokens, draws), changed, count);
  });
}

int causeway_site_report(causeway_site* site, double loss, double step_s, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    RunMember::StepFigures figures;
    figures.loss = Known(loss);
    std::optional<absl::Duration> time;
    if (!std::isnan(step_s)) {
      if (!(step_s >= 0 && step_s <= absl::ToDoubleSeconds(kLongest))) {
        return absl::InvalidArgumentError(
            absl::StrCat("step_s must be 0 or more seconds, or NaN; it is ", step_s));
      }
      time = absl::Seconds(step_s);
    }
    joined.SetFigures(figures, time);
    return absl::OkStatus();
  });
}

int causeway_site_report_evaluation(causeway_site* site, double held_out_loss,
                                    causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (!std::isfinite(held_out_loss)) {
      return absl::InvalidArgumentError(
          absl::StrCat("held_out_loss must be finite; it is ", held_out_loss));
    }
    return joined.member().ReportEvaluation(held_out_loss);
  });
}

int causeway_site_save(causeway_site* site, void** state, size_t* state_bytes,
                       causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (state == nullptr || state_bytes == nullptr) return NullArgument("state or state_bytes");
    std::unique_ptr<uint8_t, decltype(&std::free)> memory(nullptr, &std::free);
    size_t size = 0;
    RETURN_IF_ERROR(joined.Save([&](size_t bytes) {
      memory.reset(static_cast<uint8_t*>(std::malloc(bytes)));
      size = bytes;
      return memory.get();
    }));
    *state = memory.release();
    *state_bytes = size;
    return absl::OkStatus();
  });
}

void causeway_state_free(void* state) { std::free(state); }

int causeway_site_saved(causeway_site* site, int64_t step, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) { return joined.Saved(step); });
}

int causeway_site_finish(causeway_site* site, const int32_t** changed, int32_t* count,
                         causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    RETURN_IF_ERROR(CheckOutputs(changed, count));
    return GiveFragments(joined.Finish(), changed, count);
  });
}

int causeway_site_leave(causeway_site* site, int reason, const char* detail,
                        causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    switch (reason) {
      case CAUSEWAY_FINISHED:
        return joined.LeaveFinished();
      case CAUSEWAY_DRAINED:
        return joined.LeaveDrained();
      case CAUSEWAY_FAILED:
        return joined.LeaveFailed(detail == nullptr ? "the site failed" : detail);
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("reason must be CAUSEWAY_FINISHED, CAUSEWAY_DRAINED or CAUSEWAY_FAILED; "
                         "it is ",
                         reason));
    }
  });
}

void causeway_site_drain(causeway_site* site) {
  if (site != nullptr && site->pid == getpid()) site->site->RequestDrain();
}

void causeway_site_cancel(causeway_site* site) {
  if (site != nullptr && site->pid == getpid()) site->site->RequestCancel();
}

int causeway_site_summary(const causeway_site* site, char** json, causeway_error* error) {
  return WithSite(site, error,
                  [&](const ArenaSite& joined) { return GiveText(joined.Summary(), json); });
}

void causeway_site_free(causeway_site* site) {
  if (site == nullptr || site->pid != getpid()) return;
  const std::unique_ptr<causeway_site> owned(site);
  const LogHandOut log(site->log, site->log_context);
  site->site.reset();
}
