// A run as JSON, for the status page and other programs. docs/operating.md lists the fields.
//
// Times are seconds since 1970 by the coordinator's clock, null where something has not happened or
// is not known. Text comes as workers wrote it: whoever shows it escapes it.
#ifndef CAUSEWAY_SERVER_VIEWS_STATUS_API_H_
#define CAUSEWAY_SERVER_VIEWS_STATUS_API_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "causeway/v1/admin.pb.h"
#include "common/base/clock.h"
#include "nlohmann/json.hpp"
#include "server/core/served_run.h"
#include "server/views/event_history.h"
#include "server/views/run_history.h"

namespace causeway::server {

// Thread-safe.
class StatusApi {
 public:
  struct Options {
    const ServedRun* run = nullptr;  // All of them outlive the object.
    const RunHistory* history = nullptr;
    const EventHistory* events = nullptr;
    const Clock* clock = nullptr;
    // The coordinator's status, with what else is known of its workers' links.
    std::function<v1::RunStatus()> status;
  };

  explicit StatusApi(Options options);

  // The run, its budget, and bytes against data parallelism.
  nlohmann::json Status() const;
  nlohmann::json Workers() const;
  // Fragments with their open rounds, and the newest `most` rounds that are kept.
  nlohmann::json Rounds(size_t most) const;
  // Every worker's curve, and the losses on held-out text.
  nlohmann::json Series() const;
  // Those after that number.
  nlohmann::json Events(int64_t after) const;
  // The run's configuration as a textproto.
  std::string Config() const;
  // Whether the coordinator does its work.
  absl::Status Health() const { return options_.run->Health(); }

 private:
  double Now() const;

  const Options options_;
  const double started_unix_s_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_VIEWS_STATUS_API_H_
