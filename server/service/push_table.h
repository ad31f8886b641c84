// Deltas on their way up: what has come of them, over which streams, and for how long it is kept.
//
// A worker sends one object over several streams (stripes) at once, chunk by chunk in any order.
// All streams of an object share one PushAssembly, into whose memory chunks are read directly. When
// the last chunk is there the coordinator takes the object, and every stream ends with what it said
// to it. A stream that breaks takes nothing away: what came over it is held for whoever brings the
// rest, and QueryTransfer says what that is.
//
// An assembly is dropped when its object was accepted or refused, when its round closes, when the
// worker sends another object for the same round, when the memory is needed for another one and
// nobody is sending (the longest idle first), and when nobody has been sending for too long.
#ifndef CAUSEWAY_SERVER_SERVICE_PUSH_TABLE_H_
#define CAUSEWAY_SERVER_SERVICE_PUSH_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/clock.h"
#include "common/transfer/chunk_set.h"
#include "server/core/coordinator.h"
#include "common/base/work_queue.h"

namespace causeway::server {

// How an accepted push ends.
struct PushAccepted {
  bool duplicate = false;
  bool quarantined = false;
};

// One Exchange.Push.
class PushStream {
 public:
  virtual ~PushStream() = default;
  // The stream is over. Called by any thread, without a lock; only the first call counts.
  virtual void End(const absl::StatusOr<PushAccepted>& result) = 0;
};

// One object that is being received; see PushTable.
class PushAssembly;

// Thread-safe. Every opened stream is closed.
class PushTable {
 public:
  struct Options {
    ByteBudget* memory = nullptr;  // For objects that are being received; outlives the table.
    Runner run_long;               // Verifies and merges.
    Clock* clock = nullptr;        // Outlives the table.
    // A worker that opened a stream, and of which no chunk comes for so long, is not coming.
    absl::Duration stall = absl::Seconds(60);
    // When all streams of an object are at their end and chunks are missing, others may still open.
    absl::Duration last_stream = absl::Seconds(10);
    // What nobody goes on with is kept for so long.
    absl::Duration keep_idle = absl::Minutes(10);
    size_t max_streams = 4096;
    // As many as a worker's connections carry: nobody takes those of all others.
    size_t max_streams_of_sender = 1024;
  };
  // The coordinator outlives the table.
  PushTable(Coordinator& coordinator, Options options);
  ~PushTable();

  // A stream of that sender begins; its header is still to come. RESOURCE_EXHAUSTED if there are
  // too many.
  absl::Status Open(std::shared_ptr<PushStream> stream, const std::string& sender);
  // Its header has come. Null if the object was accepted before: the stream has nothing to do.
  // Errors are those of Exchange.Push.
  absl::StatusOr<std::shared_ptr<PushAssembly>> Attach(PushStream* stream,
                                                       const v1::PushHeader& header);
  // Where the chunk belongs. Fill it, then call Placed. Empty if the chunk is not needed.
  std::span<uint8_t> PlaceOf(PushAssembly& assembly, int64_t chunk);
  // The bytes are there, and this is their checksum. After an error the chunk is as if it had not
  // come.
  void Placed(const std::shared_ptr<PushAssembly>& assembly, int64_t chunk,
              const absl::StatusOr<uint64_t>& checksum);
  // Nothing more will come over the stream, which waits for its object to be complete.
  void HalfClose(PushStream* stream);
  // The stream ended or broke. Nothing is called on it any more. May be called again.
  void Close(PushStream* stream);

  // Of an object that was accepted.
  bool IsQuarantined(const v1::PushHeader& header) const {
    return coordinator_.IsQuarantined(header);
  }
  absl::StatusOr<v1::QueryTransferResponse> Query(const v1::QueryTransferRequest& request);

  // Looks after rounds that closed, stalled streams and idle assemblies. A few times a second.
  void Tick();

  struct Counters {
    size_t streams = 0;
    size_t assemblies = 0;
    int64_t duplicate_chunks = 0;  // Came, but were held already.
    int64_t resumed_chunks = 0;    // Held already when a stream took an idle object up.
    int64_t evicted = 0;           // Assemblies dropped for want of memory.
  };
  Counters counters() const;

 private:
  struct Entry {
    std::shared_ptr<PushStream> stream;
    std::string sender;
    std::shared_ptr<PushAssembly> assembly;  // Null before the header.
    absl::Duration opened;
    bool half_closed = false;
  };
  using Key = std::tuple<int, int64_t, std::string>;  // Fragment, round, worker.
  using Streams = std::vector<std::shared_ptr<PushStream>>;

  static Key KeyOf(const v1::PushHeader& header);
  // The object's assembly, empty if there was none. `replaced`: streams of another object of the
  // same key, to be ended by the caller.
  absl::StatusOr<std::shared_ptr<PushAssembly>> FindOrMake(const v1::PushHeader& header,
                                                           Streams& replaced)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As StartContributing.
  bool Join(PushStream* stream, const v1::PushHeader& header,
            const std::shared_ptr<PushAssembly>& assembly) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<PushAssembly>> MakeRoom(const v1::PushHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks it as taken if it is complete and nobody has yet: the caller then runs Contribute.
  bool StartContributing(PushAssembly& assembly) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Contribute(const std::shared_ptr<PushAssembly>& assembly);
  // Takes the streams off the assembly, to be ended by the caller.
  Streams TakeStreams(PushAssembly& assembly) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(PushAssembly& assembly) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckAdmissions();
  absl::Status Overdue(const PushAssembly& assembly, absl::Duration now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinator& coordinator_;
  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<PushStream*, Entry> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, std::shared_ptr<PushAssembly>> assemblies_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> senders_ ABSL_GUARDED_BY(mutex_);  // Their streams.
  // When the last chunk of a worker came. Of workers with assemblies.
  std::map<std::string, absl::Duration> moved_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_admissions_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PUSH_TABLE_H_
