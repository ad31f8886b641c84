#include "tests/unit/worker/sync/thread_group.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/codec/codec_layout.h"

namespace causeway::worker {

struct ThreadGroup::Call {
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };
  Kind kind = Kind::kBarrier;
  GroupType type = GroupType::kByte;
  int root = 0;
  std::vector<int64_t> bounds;  // Bounds of the pieces; of one where there are no pieces.
  void* data = nullptr;

  bool Fits(const Call& other) const {
    return kind == other.kind && type == other.type && root == other.root && bounds == other.bounds;
  }
  uint8_t* bytes(int64_t index) const {
    return static_cast<uint8_t*>(data) + index * GroupTypeBytes(type);
  }
};

namespace {

struct Bf16 {
  uint16_t bits;
};

// To the type that is summed in, and back.
float Widen(Bf16 x) { return Bf16ToFloat(x.bits); }
float Widen(float x) { return x; }
double Widen(double x) { return x; }
uint64_t Widen(int64_t x) { return static_cast<uint64_t>(x); }  // Wraps around.
void Narrow(float sum, Bf16& out) {
  constexpr uint16_t kNan = 0x7fc0;
  out.bits = std::isnan(sum) ? kNan : Bf16Nearest(sum);
}
void Narrow(float sum, float& out) { out = sum; }
void Narrow(double sum, double& out) { out = sum; }
void Narrow(uint64_t sum, int64_t& out) { out = static_cast<int64_t>(sum); }

// The sum over all arrays, into those of the ranks from `first` to `last`.
template <typename T>
void SumInto(std::span<void* const> arrays, int64_t begin, int64_t end, size_t first, size_t last) {
  for (int64_t i = begin; i < end; ++i) {
    auto sum = Widen(static_cast<const T*>(arrays[0])[i]);
    for (const void* const array : arrays.subspan(1)) sum += Widen(static_cast<const T*>(array)[i]);
    for (size_t rank = first; rank <= last; ++rank) Narrow(sum, static_cast<T*>(arrays[rank])[i]);
  }
}

void Sum(GroupType type, std::span<void* const> arrays, int64_t begin, int64_t end, size_t first,
         size_t last) {
  switch (type) {
    case GroupType::kFloat:
      return SumInto<float>(arrays, begin, end, first, last);
    case GroupType::kBf16:
      return SumInto<Bf16>(arrays, begin, end, first, last);
    case GroupType::kDouble:
      return SumInto<double>(arrays, begin, end, first, last);
    case GroupType::kInt64:
      return SumInto<int64_t>(arrays, begin, end, first, last);
    case GroupType::kByte:
      return;
  }
}

}  // namespace

// Where the ranks meet for one call after the other. The last that comes does it for all.
class ThreadGroup::Meeting {
 public:
  explicit Meeting(int ranks) : calls_(static_cast<size_t>(ranks)) {}

  int size() const { return static_cast<int>(calls_.size()); }

  absl::Status Join(int rank, const Call& call) {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok() && left_ >= 0) {
      Fail(rank, absl::UnavailableError(absl::StrCat("rank ", left_, " has left the group")));
    }
    RETURN_IF_ERROR(cause_);
    calls_[static_cast<size_t>(rank)] = &call;
    if (++arrived_ == size()) {
      RETURN_IF_ERROR(DoCalls());
      arrived_ = 0;
      ++meeting_;
      return absl::OkStatus();
    }
    const int64_t mine = meeting_;
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return meeting_ != mine || !cause_.ok();
    };
    mutex_.Await(absl::Condition(&over));
    return meeting_ != mine ? absl::OkStatus() : cause_;
  }

  void Leave(int rank) {
    absl::MutexLock lock(&mutex_);
    left_ = rank;
    if (arrived_ > 0) {
      Fail(rank, absl::UnavailableError("it has left the group, for which others wait"));
    }
  }

  void Abort(int rank, const absl::Status& cause) {
    absl::MutexLock lock(&mutex_);
    Fail(rank, cause);
  }

  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return cause_;
  }

 private:
  void Fail(int rank, const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!cause_.ok()) return;
    cause_ = absl::AbortedError(absl::StrCat("rank ", rank, ": ", cause.message()));
  }

  absl::Status DoCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Call& call = *calls_[0];
    std::vector<void*> arrays;
    for (size_t rank = 0; rank < calls_.size(); ++rank) {
      if (!calls_[rank]->Fits(call)) {
        Fail(static_cast<int>(rank),
             absl::InternalError("calls another operation than rank 0, or one of other sizes"));
        return cause_;
      }
      arrays.push_back(calls_[rank]->data);
    }
    const size_t last = calls_.size() - 1;
    switch (call.kind) {
      case Call::Kind::kAllReduce:
        Sum(call.type, arrays, 0, call.bounds.back(), 0, last);
        break;
      case Call::Kind::kReduceScatter:
        for (size_t rank = 0; rank <= last; ++rank) {
          Sum(call.type, arrays, call.bounds[rank], call.bounds[rank + 1], rank, rank);
        }
        SpoilForeignPieces(call);
        break;
      case Call::Kind::kAllGather:
        for (size_t rank = 0; rank <= last; ++rank) {
          CopyFrom(rank, call.bounds[rank], call.bounds[rank + 1]);
        }
        break;
      case Call::Kind::kBroadcast:
        CopyFrom(static_cast<size_t>(call.root), 0, call.bounds.back());
        break;
      case Call::Kind::kBarrier:
        break;
    }
    return absl::OkStatus();
  }

  void CopyFrom(size_t from, int64_t begin, int64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto bytes = static_cast<size_t>((end - begin) * GroupTypeBytes(calls_[from]->type));
    for (const Call* const to : calls_) {
      if (to != calls_[from] && bytes > 0) {
        std::memcpy(to->bytes(begin), calls_[from]->bytes(begin), bytes);
      }
    }
  }

  // Nobody may rely on what a reduce-scatter leaves there.
  void SpoilForeignPieces(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    constexpr int kNanByte = 0xff;
    for (size_t rank = 0; rank < calls_.size(); ++rank) {
      for (size_t piece = 0; piece < calls_.size(); ++piece) {
        const int64_t values = call.bounds[piece + 1] - call.bounds[piece];
        if (piece == rank || values == 0) continue;
        std::memset(calls_[rank]->bytes(call.bounds[piece]), kNanByte,
                    static_cast<size_t>(values * GroupTypeBytes(call.type)));
      }
    }
  }

  mutable absl::Mutex mutex_;
  std::vector<const Call*> calls_ ABSL_GUARDED_BY(mutex_);  // By rank, of those that have arrived.
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t meeting_ ABSL_GUARDED_BY(mutex_) = 0;  // Its number.
  int left_ ABSL_GUARDED_BY(mutex_) = -1;        // A rank that will not come any more.
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
};

std::vector<std::unique_ptr<LocalGroup>> ThreadGroup::Create(int ranks, WaitForStream wait) {
  const auto meeting = std::make_shared<Meeting>(ranks);
  std::vector<std::unique_ptr<LocalGroup>> groups;
  for (int rank = 0; rank < ranks; ++rank) {
    groups.push_back(std::unique_ptr<LocalGroup>(new ThreadGroup(meeting, rank, wait)));
  }
  return groups;
}

ThreadGroup::ThreadGroup(std::shared_ptr<Meeting> meeting, int rank, WaitForStream wait)
    : meeting_(std::move(meeting)), rank_(rank), wait_(std::move(wait)) {}

ThreadGroup::~ThreadGroup() { meeting_->Leave(rank_); }

int ThreadGroup::size() const { return meeting_->size(); }

absl::Status ThreadGroup::Do(const Call& call, GroupStream stream) {
  if (wait_) RETURN_IF_ERROR(wait_(stream));
  return meeting_->Join(rank_, call);
}

absl::Status ThreadGroup::AllReduceSum(void* data, int64_t count, GroupType type,
                                       GroupStream stream) {
  if (type == GroupType::kByte) return absl::InvalidArgumentError("bytes cannot be summed");
  return Do({.kind = Call::Kind::kAllReduce, .type = type, .bounds = {0, count}, .data = data},
            stream);
}

absl::Status ThreadGroup::ReduceScatterSum(void* data, std::span<const int64_t> bounds,
                                           GroupType type, GroupStream stream) {
  if (type == GroupType::kByte) return absl::InvalidArgumentError("bytes cannot be summed");
  RETURN_IF_ERROR(CheckBounds(bounds, size()));
  return Do({.kind = Call::Kind::kReduceScatter,
             .type = type,
             .bounds = {bounds.begin(), bounds.end()},
             .data = data},
            stream);
}

absl::Status ThreadGroup::AllGather(void* data, std::span<const int64_t> bounds, GroupType type,
                                    GroupStream stream) {
  RETURN_IF_ERROR(CheckBounds(bounds, size()));
  return Do({.kind = Call::Kind::kAllGather,
             .type = type,
             .bounds = {bounds.begin(), bounds.end()},
             .data = data},
            stream);
}

absl::Status ThreadGroup::Broadcast(void* data, int64_t count, GroupType type, int root,
                                    GroupStream stream) {
  return Do({.kind = Call::Kind::kBroadcast,
             .type = type,
             .root = root,
             .bounds = {0, count},
             .data = data},
            stream);
}

absl::Status ThreadGroup::Barrier() { return meeting_->Join(rank_, {}); }

void ThreadGroup::Abort(const absl::Status& cause) { meeting_->Abort(rank_, cause); }

absl::Status ThreadGroup::status() const { return meeting_->status(); }

}  // namespace causeway::worker
