// Another process of a site, as a thread: both ends of its link, and the loop that answers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/unit/worker/sync/memory_stream.h"
#include "worker/sync/local_group.h"
#include "worker/sync/process_link.h"

namespace causeway::worker {

class SiteThread {
 public:
  explicit SiteThread(int process) {
    auto [near, far] = MemoryStream::MakePair();
    near_ =
        std::make_unique<SiteLink>(std::move(near), "process " + std::to_string(process), cause_);
    far_ = std::make_unique<SiteLink>(std::move(far), "process 0", far_cause_);
    near_->Start();
  }
  ~SiteThread() { Stop(); }

  // Process 0's end, and that of the other process.
  SiteLink& link() { return *near_; }
  SiteLink& far() { return *far_; }
  const std::shared_ptr<SharedCause>& far_cause() { return far_cause_; }

  // `handle` answers what comes, on the thread; an error ends it. `at_once` as SiteLink::Start has
  // it.
  void Serve(std::function<bool(SiteCall&)> at_once,
             std::function<absl::Status(SiteCall&)> handle) {
    far_->Start(std::move(at_once));
    thread_ = std::thread([this, handle = std::move(handle)] {
      for (;;) {
        absl::StatusOr<std::optional<SiteCall>> call = far_->NextCall();
        if (!call.ok() || !call->has_value() || !handle(**call).ok()) return;
      }
    });
  }

  // Says good-bye; whatever `handle` refers to may be destroyed then.
  void Stop() {
    near_.reset();
    if (thread_.joinable()) thread_.join();
    far_.reset();
  }

 private:
  const std::shared_ptr<SharedCause> cause_ = std::make_shared<SharedCause>();
  const std::shared_ptr<SharedCause> far_cause_ = std::make_shared<SharedCause>();
  std::unique_ptr<SiteLink> near_;
  std::unique_ptr<SiteLink> far_;
  std::thread thread_;
};

}  // namespace causeway::worker
