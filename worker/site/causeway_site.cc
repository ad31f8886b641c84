#include "worker/site/causeway_site.h"

#include <grpc/support/log.h>
#include <unistd.h>

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
#include "common/base/status_macros.h"
#include "common/files/json.h"
#include "common/params/run_config.h"
#include "worker/member/joining.h"
#include "worker/site/arena_site.h"
#include "worker/site/log_queue.h"
#include "worker/site/site_arguments.h"

using causeway::Clock;
using causeway::FileSystem;
using causeway::FragmentPlan;
using causeway::worker::ArenaSite;
using causeway::worker::CheckSize;
using causeway::worker::DeviceValues;
using causeway::worker::LogLine;
using causeway::worker::LogQueue;
using causeway::worker::NullArgument;
using causeway::worker::ReachedRun;
using causeway::worker::ReachRun;
using causeway::worker::ReadDevice;
using causeway::worker::ReadOptions;
using causeway::worker::ReadTensors;
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

// --- Handles -------------------------------------------------------------------------------------

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

// The trainer's device is as it was afterwards.
class DeviceHold {
 public:
  explicit DeviceHold(int device) : before_(causeway::worker::SwapDevice(device)) {}
  ~DeviceHold() { causeway::worker::SwapDevice(before_); }
  DeviceHold(const DeviceHold&) = delete;
  DeviceHold& operator=(const DeviceHold&) = delete;

 private:
  const int before_;
};

// Runs `body` with the site of a usable handle.
template <typename Handle, typename Body>
int WithSite(Handle* site, causeway_error* error, const Body& body) {
  return Guarded(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckSite(site));
    const LogHandOut log(site->log, site->log_context);
    const DeviceHold device(site->site->device());
    return body(*site->site);
  });
}

absl::StatusOr<std::span<const int32_t>> ReadFragments(const ArenaSite& site,
                                                       const int32_t* fragments, int32_t count) {
  if (count < 0 || (count > 0 && fragments == nullptr)) return NullArgument("fragments");
  const std::span<const int32_t> given(fragments, static_cast<size_t>(count));
  const int all = site.member().plan().fragments();
  for (const int32_t fragment : given) {
    if (fragment < 0 || fragment >= all) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no fragment ", fragment, ": they are 0 .. ", all - 1));
    }
  }
  return given;
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
    ASSIGN_OR_RETURN(std::vector<causeway::worker::GivenTensor> given,
                     ReadTensors(tensors, tensor_count));
    ASSIGN_OR_RETURN(join.device, ReadDevice(options->on_device, tensor_count));
    PrepareProcess();
    auto joined = std::make_unique<causeway_site>();
    if (options->log != nullptr) joined->wants_log.emplace();
    const LogHandOut log(options->log, options->log_context);
    join.meanwhile = [log = options->log, context = options->log_context] {
      HandOutLog(log, context);
    };
    const DeviceHold device(join.device.has_value() ? join.device->device : -1);
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
    causeway::worker::StepFigures figures;
    figures.loss = Known(loss);
    std::optional<absl::Duration> time;
    if (!std::isnan(step_s)) {
      if (!(step_s >= 0 && step_s <= absl::ToDoubleSeconds(causeway::worker::kLongest))) {
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
    joined.member().report().Evaluated(joined.member().step(), held_out_loss);
    return absl::OkStatus();
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

int causeway_device_check(int32_t device, causeway_error* error) {
  return Guarded(error, [&] { return causeway::worker::CheckDeviceValues(device); });
}

int causeway_site_gather(causeway_site* site, const int32_t* fragments, int32_t count, void* stream,
                         causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    ASSIGN_OR_RETURN(DeviceValues* const values, joined.Device());
    ASSIGN_OR_RETURN(const std::span<const int32_t> given, ReadFragments(joined, fragments, count));
    return values->Gather(given, stream);
  });
}

int causeway_site_scatter(causeway_site* site, const int32_t* fragments, int32_t count,
                          int32_t published, void* stream, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    ASSIGN_OR_RETURN(DeviceValues* const values, joined.Device());
    ASSIGN_OR_RETURN(const std::span<const int32_t> given, ReadFragments(joined, fragments, count));
    return values->Scatter(given, published != 0, stream);
  });
}

int causeway_site_move(causeway_site* site, const causeway_device_tensor* tensors,
                       causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    ASSIGN_OR_RETURN(DeviceValues* const values, joined.Device());
    if (tensors == nullptr) return NullArgument("tensors");
    return values->SetTensors({tensors, static_cast<size_t>(joined.tensors())});
  });
}

int causeway_site_local(causeway_site* site, const causeway_range* range, int32_t set,
                        float* values, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    ASSIGN_OR_RETURN(DeviceValues* const device, joined.Device());
    if (range == nullptr || values == nullptr) return NullArgument("range or values");
    const FragmentPlan& plan = joined.member().plan();
    for (int i = 0; i < plan.fragments(); ++i) {
      const int64_t first = range->arena_offset - plan.range(i).begin;
      if (first < 0 || range->count < 0 || first + range->count > plan.range(i).size()) continue;
      const std::span<float> host(values, static_cast<size_t>(range->count));
      return set != 0 ? device->SetLocal(i, first, host) : device->CopyLocal(i, first, host);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        range->count, " values from ", range->arena_offset, " on are not in one fragment"));
  });
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
  const DeviceHold device(site->site->device());
  site->site.reset();
}
