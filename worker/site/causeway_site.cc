#include "worker/site/causeway_site.h"

#include <cmath>
#include <cstdlib>

#include "common/files/json.h"
#include "common/params/run_config.h"
#include "worker/member/joining.h"
#include "worker/site/site_handle.h"

using causeway::Clock;
using causeway::FileSystem;
using causeway::FragmentPlan;
using causeway::worker::ArenaSite;
using causeway::worker::CheckSite;
using causeway::worker::CheckSize;
using causeway::worker::DeviceHold;
using causeway::worker::DeviceNumberOf;
using causeway::worker::Guarded;
using causeway::worker::HandOutLog;
using causeway::worker::LogHandOut;
using causeway::worker::LogQueue;
using causeway::worker::NullArgument;
using causeway::worker::PlanOf;
using causeway::worker::PrepareProcess;
using causeway::worker::ReachedRun;
using causeway::worker::ReachRun;
using causeway::worker::ReadDevice;
using causeway::worker::ReadOptions;
using causeway::worker::ReadRanks;
using causeway::worker::ReadTensors;
using causeway::worker::RunMember;
using causeway::worker::SiteJoin;
using causeway::worker::WithEither;
using causeway::worker::WithSite;

namespace {

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

absl::Status CheckOrders(const causeway_site_orders* orders) {
  if (orders == nullptr) return NullArgument("orders");
  return CheckSize("orders", orders->size, sizeof(*orders));
}

void GiveOrders(const ArenaSite::Orders& said, RunMember& member, causeway_site_orders& orders) {
  orders.go = said.go ? 1 : 0;
  orders.finished = said.finished ? 1 : 0;
  orders.drain = said.drain ? 1 : 0;
  orders.anew = said.anew ? 1 : 0;
  orders.data_slot = member.DataPart();
  orders.next_draw = member.sync().next_draw();
  orders.step = member.step();
  orders.next_step = said.go ? member.NextStep() : member.step();
  orders.end_step = member.end_step();
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
    ASSIGN_OR_RETURN(join.device, ReadDevice(options->on_device));
    RETURN_IF_ERROR(ReadRanks(*options, /*leads=*/true, join));
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
  return WithEither(site, error, [&]() -> absl::Status {
    if (info == nullptr) return NullArgument("info");
    RETURN_IF_ERROR(CheckSize("info", info->size, sizeof(*info)));
    const auto tell = [&](const causeway::v1::RunConfig& config, const FragmentPlan& plan) {
      info->fragments = plan.fragments();
      info->arena_values = plan.arena_size();
      info->parameters = plan.parameters();
      info->steps = config.train().steps();
      info->steps_between_syncs = config.sync().steps_between_syncs();
      info->overlap_steps = config.sync().overlap_steps();
    };
    info->restored = info->brought_model = 0;
    if (site->follower != nullptr) {
      tell(site->follower->config, site->follower->plan);
      return absl::OkStatus();
    }
    tell(site->site->member().config(), site->site->member().plan());
    info->restored = site->site->restored() ? 1 : 0;
    info->brought_model = site->site->brought_model() ? 1 : 0;
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
  return WithEither(site, error, [&]() -> absl::Status {
    if (ranges == nullptr || count == nullptr) return NullArgument("ranges or count");
    const FragmentPlan& plan = PlanOf(*site);
    if (fragment != CAUSEWAY_ALL && (fragment < 0 || fragment >= plan.fragments())) {
      return absl::InvalidArgumentError(absl::StrCat("there is no fragment ", fragment,
                                                     ": they are 0 .. ", plan.fragments() - 1,
                                                     ", or CAUSEWAY_ALL"));
    }
    std::span<const causeway_range> pieces;
    if (site->follower == nullptr) {
      pieces = site->site->ranges(fragment == CAUSEWAY_ALL ? std::nullopt
                                                           : std::optional<int>(fragment));
    } else {
      pieces = fragment == CAUSEWAY_ALL
                   ? site->follower->ranges
                   : site->follower->match.ranges[static_cast<size_t>(fragment)];
    }
    *ranges = pieces.data();
    *count = static_cast<int64_t>(pieces.size());
    return absl::OkStatus();
  });
}

float* causeway_site_arena(causeway_site* site) {
  if (!CheckSite(site).ok()) return nullptr;
  if (site->follower == nullptr) return site->site->arena().data();
  return site->follower->share == nullptr ? nullptr : site->follower->share->arena().data();
}

int causeway_site_published(causeway_site* site, const float** values, causeway_error* error) {
  return WithEither(site, error, [&]() -> absl::Status {
    if (values == nullptr) return NullArgument("values");
    if (site->follower != nullptr && site->follower->share == nullptr) {
      return absl::FailedPreconditionError(
          "the published values of a rank that follows are on its device: scatter them");
    }
    ASSIGN_OR_RETURN(
        const std::span<const float> published,
        site->follower != nullptr ? site->follower->share->published() : site->site->published());
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
    RETURN_IF_ERROR(CheckOrders(orders));
    if (std::isnan(timeout_s)) return absl::InvalidArgumentError("timeout_s is not a number");
    const absl::Duration timeout =
        timeout_s < 0 ? absl::InfiniteDuration() : absl::Seconds(timeout_s);
    ASSIGN_OR_RETURN(const ArenaSite::Orders said,
                     joined.Wait(timeout, [site] { HandOutLog(site->log, site->log_context); }));
    GiveOrders(said, joined.member(), *orders);
    return absl::OkStatus();
  });
}

int causeway_site_pass(causeway_site* site, int64_t tokens, int64_t draws, int32_t* passed,
                       causeway_site_orders* orders, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (passed == nullptr) return NullArgument("passed");
    RETURN_IF_ERROR(CheckOrders(orders));
    ASSIGN_OR_RETURN(const std::span<const int32_t> due, joined.Next());
    *passed = 0;
    if (!due.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(joined.Step(tokens, draws).status());
    absl::StatusOr<ArenaSite::Orders> said =
        joined.Wait(absl::ZeroDuration(), [site] { HandOutLog(site->log, site->log_context); });
    if (absl::IsDeadlineExceeded(said.status())) said = ArenaSite::Orders();
    RETURN_IF_ERROR(said.status());
    GiveOrders(*said, joined.member(), *orders);
    *passed = 1;
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
  if (site == nullptr || site->pid != getpid() || site->site == nullptr) return;
  site->site->RequestDrain();
}

void causeway_site_cancel(causeway_site* site) {
  if (site == nullptr || site->pid != getpid() || site->site == nullptr) return;
  site->site->RequestCancel();
}

int causeway_site_summary(const causeway_site* site, char** json, causeway_error* error) {
  return WithSite(site, error, [&](const ArenaSite& joined) -> absl::Status {
    ASSIGN_OR_RETURN(const nlohmann::json summary, joined.Summary());
    return GiveText(summary, json);
  });
}

void causeway_site_free(causeway_site* site) {
  if (site == nullptr || site->pid != getpid()) return;
  const std::unique_ptr<causeway_site> owned(site);
  const LogHandOut log(site->log, site->log_context);
  const DeviceHold device(DeviceNumberOf(*site));
  site->follower.reset();
  site->site.reset();
}
