// Carries a SiteLink: frames both ways, in order (proto/causeway/v1/site.proto). Between
// processes it is a gRPC stream (worker/rendezvous), in tests memory.
#ifndef CAUSEWAY_WORKER_GROUP_SITE_STREAM_H_
#define CAUSEWAY_WORKER_GROUP_SITE_STREAM_H_

#include "absl/status/status.h"
#include "causeway/v1/site.pb.h"

namespace causeway::worker {

// One thread reads, one at a time writes.
class SiteStream {
 public:
  virtual ~SiteStream() = default;

  // Both wait; UNAVAILABLE once the stream is over, with what has ended it.
  virtual absl::Status Read(v1::SiteFrame& frame) = 0;
  virtual absl::Status Write(const v1::SiteFrame& frame) = 0;
  // Nothing more is written: the peer reads what was, then the end. Called where Write could be.
  virtual void CloseWrites() = 0;
  // Ends both directions at once, and whoever waits in them. From any thread.
  virtual void Cut() = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_GROUP_SITE_STREAM_H_
