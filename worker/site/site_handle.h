// The handles of causeway_site.h, and the way in which its functions answer.
#pragma once

#include <grpc/support/log.h>
#include <unistd.h>

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
#include "worker/site/arena_site.h"
#include "worker/site/causeway_site.h"
#include "worker/site/log_queue.h"
#include "worker/site/site_arguments.h"

namespace causeway::worker {

// A rank that follows, and what it knows of the run.
struct Follower {
  Follower(v1::RunConfig of_run, FragmentPlan cut)
      : config(std::move(of_run)), plan(std::move(cut)) {}
  const v1::RunConfig config;
  const FragmentPlan plan;
  SiteValues values{config, plan};
  std::unique_ptr<FollowingRank> rank;
};

}  // namespace causeway::worker

struct causeway_site {
  explicit causeway_site(const causeway_site_options& options)
      : log(options.log), log_context(options.log_context) {
    if (log != nullptr) wants_log.emplace();
  }
  const pid_t pid = getpid();  // The process that joined.
  const causeway_log_function log;
  void* const log_context;
  std::optional<causeway::worker::LogQueue::Wanted> wants_log;
  // One of them.
  std::unique_ptr<causeway::worker::ArenaSite> site;
  std::unique_ptr<causeway::worker::Follower> follower;
};

struct causeway_links {
  causeway_links(int rank, int ranks) : links(rank, ranks) {}
  causeway::worker::SiteLinks links;
  std::string last;  // That was handed out.
};

namespace causeway::worker {

// --- Errors --------------------------------------------------------------------------------------

inline int Answer(const absl::Status& status, causeway_error* error) {
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

inline void HandOutLog(causeway_log_function log, void* context) {
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

inline void PrepareProcess() {
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
inline absl::Status CheckSite(const causeway_site* site) {
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
  explicit DeviceHold(int device) : before_(SwapDevice(device)) {}
  ~DeviceHold() { SwapDevice(before_); }
  DeviceHold(const DeviceHold&) = delete;
  DeviceHold& operator=(const DeviceHold&) = delete;

 private:
  const int before_;
};

inline SiteValues& ValuesOf(const causeway_site& site) {
  return site.follower != nullptr ? site.follower->values : site.site->values();
}

// Runs `body` with a usable handle, of a site that has joined or follows.
template <typename Body>
int WithEither(const causeway_site* site, causeway_error* error, const Body& body) {
  return Guarded(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckSite(site));
    const LogHandOut log(site->log, site->log_context);
    const DeviceHold device(ValuesOf(*site).device_number);
    return body();
  });
}

// Runs `body` with the site of a usable handle.
template <typename Handle, typename Body>
int WithSite(Handle* site, causeway_error* error, const Body& body) {
  return Guarded(error, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckSite(site));
    if (site->follower != nullptr) {
      return absl::FailedPreconditionError(
          "this process follows rank 0 of its site, which alone joined the run: ask there");
    }
    const LogHandOut log(site->log, site->log_context);
    const DeviceHold device(ValuesOf(*site).device_number);
    return body(*site->site);
  });
}

// Reads where values are, and the options of a site of several ranks.
inline absl::Status ReadRanks(const causeway_site_options& options, bool leads, SiteJoin& join) {
  ASSIGN_OR_RETURN(join.device, ReadDevice(options.on_device));
  const size_t devices = join.device.has_value() ? join.device->devices.size() : 1;
  if (options.links == nullptr) {
    if (!leads) return NullArgument("options->links");
    join.ranks = static_cast<int>(devices);
    if (devices > 1) join.shares = SharesOf(*join.device);
    return absl::OkStatus();
  }
  if (devices > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a process of a site of several has its values on one device; "
                     "options->on_device names ",
                     devices, ": give each device a process, or leave on_device out"));
  }
  join.links = &options.links->links;
  join.ranks = join.links->ranks();
  if ((join.links->rank() == 0) != leads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank 0 joins, and the others follow it: options->links are of rank ", join.links->rank()));
  }
  ASSIGN_OR_RETURN(join.shares, ReadShares(options));
  if (!leads) return absl::OkStatus();
  if (options.start == nullptr) return NullArgument("options->start");
  join.start = [start = options.start, context = options.start_context](const std::string& bytes) {
    return start(context, bytes.data(), bytes.size()) == 0;
  };
  return absl::OkStatus();
}

}  // namespace causeway::worker
