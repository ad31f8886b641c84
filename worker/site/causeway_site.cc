#include "worker/site/causeway_site.h"

#include <cmath>
#include <cstdlib>

#include "common/files/json.h"
#include "common/params/run_config.h"
#include "worker/member/joining.h"
#include "worker/site/site_handle.h"

namespace causeway::worker {
namespace {

// Hands out the fragments that `body` returns.
template <typename Body>
int WithFragments(causeway_site* site, const int32_t** fragments, int32_t* count,
                  causeway_error* error, const Body& body) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (fragments == nullptr || count == nullptr) {
      return NullArgument("where the fragments and their count go");
    }
    const absl::StatusOr<std::span<const int32_t>> given = body(joined);
    RETURN_IF_ERROR(given.status());
    *fragments = given->data();
    *count = static_cast<int32_t>(given->size());
    return absl::OkStatus();
  });
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
  const std::string dumped = JsonText(json, 2) + "\n";
  *text = static_cast<char*>(std::malloc(dumped.size() + 1));
  if (*text == nullptr) return absl::ResourceExhaustedError("there is no more memory");
  std::memcpy(*text, dumped.c_str(), dumped.size() + 1);
  return absl::OkStatus();
}

nlohmann::json DescribeRun(const v1::DescribeResponse& run, const FragmentPlan& plan) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const PlacedTensor& tensor : plan.tensors()) {
    tensors.push_back({{"name", tensor.info.name}, {"shape", tensor.info.shape}});
  }
  return {{"run_id", run.run_id()},          {"config", MessageToJson(run.config())},
          {"parameters", plan.parameters()}, {"fragments", plan.fragments()},
          {"tensors", std::move(tensors)},   {"awaits_model", false}};
}

std::optional<double> Known(double value) {
  if (std::isnan(value)) return std::nullopt;
  return value;
}

}  // namespace

// Functions of C have one name, in whatever namespace they are defined.
extern "C" {

int causeway_abi_version(void) { return CAUSEWAY_ABI_VERSION; }

const char* causeway_software_version(void) { return kSoftwareVersion; }

int causeway_describe(const causeway_site_options* options, char** json, causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const SiteJoin join, ReadOptions(options));
    PrepareProcess();
    std::optional<LogQueue::Wanted> wants_log;
    if (options->log != nullptr) wants_log.emplace();
    const LogHandOut log(options->log, options->log_context);
    ASSIGN_OR_RETURN(const ReachedRun reached, ReachRun(join.member));
    if (reached.run.awaits_model()) {
      return GiveText({{"run_id", reached.run.run_id()},
                       {"config", MessageToJson(reached.run.config())},
                       {"awaits_model", true}},
                      json);
    }
    ASSIGN_OR_RETURN(const FragmentPlan plan, CheckRun(reached.run, /*any_model=*/true));
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
    RETURN_IF_ERROR(CheckName("id", join.member.worker_id));
    ASSIGN_OR_RETURN(std::vector<GivenTensor> given, ReadTensors(tensors, tensor_count));
    RETURN_IF_ERROR(ReadRanks(*options, /*leads=*/true, join));
    PrepareProcess();
    auto joined = std::make_unique<causeway_site>(*options);
    const LogHandOut log(options->log, options->log_context);
    join.meanwhile = [log = options->log, context = options->log_context] {
      HandOutLog(log, context);
    };
    const DeviceHold device(join.device.has_value() ? join.device->devices.front() : -1);
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
    const SiteValues& values = ValuesOf(*site);
    info->fragments = values.plan.fragments();
    info->arena_values = values.plan.arena_size();
    info->parameters = values.plan.parameters();
    info->steps = values.config.train().steps();
    info->steps_between_syncs = values.config.sync().steps_between_syncs();
    info->overlap_steps = values.config.sync().overlap_steps();
    info->restored = site->site != nullptr && site->site->restored() ? 1 : 0;
    info->brought_model = site->site != nullptr && site->site->brought_model() ? 1 : 0;
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
    const SiteValues& values = ValuesOf(*site);
    const int fragments = values.plan.fragments();
    if (fragment != CAUSEWAY_ALL && (fragment < 0 || fragment >= fragments)) {
      return absl::InvalidArgumentError(absl::StrCat("there is no fragment ", fragment,
                                                     ": they are 0 .. ", fragments - 1,
                                                     ", or CAUSEWAY_ALL"));
    }
    const std::span<const causeway_range> pieces = values.Ranges(fragment);
    *ranges = pieces.data();
    *count = static_cast<int64_t>(pieces.size());
    return absl::OkStatus();
  });
}

float* causeway_site_arena(causeway_site* site) {
  if (!CheckSite(site).ok()) return nullptr;
  return ValuesOf(*site).arena().data();
}

int causeway_site_published(causeway_site* site, const float** values, causeway_error* error) {
  return WithEither(site, error, [&]() -> absl::Status {
    if (values == nullptr) return NullArgument("values");
    if (site->follower != nullptr && site->follower->values.share == nullptr) {
      return absl::FailedPreconditionError(
          "the published values of a rank that follows are on its device: scatter them");
    }
    ASSIGN_OR_RETURN(const std::span<const float> published,
                     site->follower != nullptr ? site->follower->values.share->published()
                                               : site->site->published());
    *values = published.data();
    return absl::OkStatus();
  });
}

int causeway_site_changed(causeway_site* site, const int32_t** fragments, int32_t* count,
                          causeway_error* error) {
  return WithFragments(site, fragments, count, error,
                       [](ArenaSite& joined) { return joined.Changed(); });
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
    *passed = 0;
    ASSIGN_OR_RETURN(const std::span<const int32_t> due, joined.Next());
    if (!due.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(joined.Step(tokens, draws).status());
    *passed = 1;
    absl::StatusOr<ArenaSite::Orders> said =
        joined.Wait(absl::ZeroDuration(), [site] { HandOutLog(site->log, site->log_context); });
    if (absl::IsDeadlineExceeded(said.status())) said = ArenaSite::Orders();
    RETURN_IF_ERROR(said.status());
    GiveOrders(*said, joined.member(), *orders);
    return absl::OkStatus();
  });
}

int causeway_site_next(causeway_site* site, const int32_t** fragments, int32_t* count,
                       causeway_error* error) {
  return WithFragments(site, fragments, count, error,
                       [](ArenaSite& joined) { return joined.Next(); });
}

int causeway_site_step(causeway_site* site, int64_t tokens, int64_t draws, const int32_t** changed,
                       int32_t* count, causeway_error* error) {
  return WithFragments(site, changed, count, error,
                       [&](ArenaSite& joined) { return joined.Step(tokens, draws); });
}

int causeway_site_report(causeway_site* site, double loss, double step_s, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    StepFigures figures;
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
  return WithFragments(site, changed, count, error,
                       [](ArenaSite& joined) { return joined.Finish(); });
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
  const DeviceHold device(ValuesOf(*site).device_number);
  site->follower.reset();
  site->site.reset();
}

}  // extern "C"
}  // namespace causeway::worker
