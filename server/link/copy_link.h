// A copy's link to its original: a folder that follows a coordinator, on a thread of its own.
#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/standby.grpc.pb.h"
#include "common/base/file_system.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "common/telemetry/event_log.h"
#include "server/access/access.h"
#include "server/link/coordinator_link.h"
#include "server/standby/run_copy.h"
#include "server/standby/standbys.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// The name of this machine, in the letters that a name may have.
std::string MachineName();

// Renames a folder that cannot follow to FOLDER.former-N. `why`: in words, for a line.
absl::Status PutAside(FileSystem& file_system, absl::string_view folder, absl::string_view why);

class CopyLink final : public CoordinatorLink {
 public:
  // Opens the folder, makes it a copy and follows `address` under `name`. Errors of the folder.
  // `notes` outlive the result.
  static absl::StatusOr<std::unique_ptr<CopyLink>> Start(
      FileSystem& file_system, const std::string& folder, const RunDirectoryStore::Options& options,
      const std::string& name, const std::string& address, const ChannelSecurity& security,
      StandbyNotes& notes);
  ~CopyLink() override { Stop().IgnoreError(); }

  // Ends it; the folder is free once the object is gone. OK, or the error after which trying again
  // is of no use: it says what to do.
  absl::Status Stop() { return StopFollowing(); }
  // Whether a coordinator has ever taken this follower.
  bool has_followed() const { return has_followed_; }
  int64_t commits() { return store_->Position().commits(); }

 private:
  CopyLink(std::unique_ptr<RunDirectoryStore> store, const std::string& name,
           const std::string& address, const ChannelSecurity& security, StandbyNotes& notes)
      : store_(std::move(store)),
        copy_(*store_, name),
        notes_(notes),
        security_(security),
        channels_(address, security),
        address_(address) {}

  absl::Status Follow() override;
  absl::Status FollowOnce(grpc::ClientContext& context);
  absl::Status TakeHeader(const v1::FollowHeader& header, int64_t own_commits);
  // Whoever was followed before would take this follower again: where it is refused now, somebody
  // else answers in that one's place, and the refusal passes.
  absl::Status Judge(const absl::Status& refusal) const;
  void Interrupt() override;
  bool Passes(const absl::Status& error) const override { return security_.Passes(error); }
  std::string Line(const absl::Status& why) override;

  const std::unique_ptr<RunDirectoryStore> store_;
  RunCopy copy_;
  StandbyNotes& notes_;
  const ChannelSecurity security_;
  RenewedChannels channels_;
  const std::string address_;
  std::string run_id_;  // Of the first header.
  std::atomic<bool> has_followed_ = false;
  absl::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Null between calls.
};

// causeway.v1.Standby: followers read the run directory as it grows.
//
// Blocking: a follower has a thread of gRPC's while its stream lasts. There are few.
class StandbyService final : public v1::Standby::Service {
 public:
  // All outlive the service.
  StandbyService(RunDirectoryStore& store, Standbys& standbys, Access& access, EventLog& events)
      : store_(store), standbys_(standbys), access_(access), events_(events) {}

  grpc::Status Follow(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::FollowResponse, v1::FollowRequest>* stream) override;

  // Streams end as soon as their followers have what there is. Before the server stops.
  void Stop() { stopping_ = true; }

 private:
  using Stream = grpc::ServerReaderWriter<v1::FollowResponse, v1::FollowRequest>;
  absl::Status Serve(grpc::ServerContext& context, Stream& stream);
  absl::Status Feed(grpc::ServerContext& context, Stream& stream, const Peer& peer,
                    v1::FollowRequest& request, int64_t& standby);

  RunDirectoryStore& store_;
  Standbys& standbys_;
  Access& access_;
  EventLog& events_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace causeway::server
