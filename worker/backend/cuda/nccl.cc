#include "worker/backend/cuda/nccl.h"

#include <algorithm>

namespace causeway::worker::cuda {

absl::Status NcclLibrary::Check(int result, absl::string_view what) const {
  if (result == kNcclSuccess) return absl::OkStatus();
  const char* const detail = get_last_error == nullptr ? nullptr : get_last_error(nullptr);
  return absl::UnavailableError(absl::StrCat(what, ": NCCL: ", get_error_string(result),
                                             detail == nullptr || *detail == '\0' ? "" : ": ",
                                             detail == nullptr ? "" : detail));
}

namespace {

int TypeOf(GroupType type) {
  switch (type) {
    case GroupType::kFloat:
      return kNcclFloat;
    case GroupType::kBf16:
      return kNcclBf16;
    case GroupType::kDouble:
      return kNcclDouble;
  }
  return kNcclFloat;
}

// A call that has not come back by then waits for ranks that do not come.
constexpr absl::Duration kIssuePatience = absl::Seconds(5);

cudaStream_t StreamOf(GroupStream stream) { return static_cast<cudaStream_t>(stream); }

// A piece of an array.
struct Piece {
  Piece(void* data, std::span<const int64_t> bounds, int rank, GroupType type)
      : begin(static_cast<char*>(data) + bounds[static_cast<size_t>(rank)] * GroupTypeBytes(type)),
        count(static_cast<size_t>(bounds[static_cast<size_t>(rank) + 1] -
                                  bounds[static_cast<size_t>(rank)])) {}
  char* begin;
  size_t count;
};

bool AreEqual(std::span<const int64_t> bounds) {
  for (size_t i = 2; i < bounds.size(); ++i) {
    if (bounds[i] - bounds[i - 1] != bounds[1] - bounds[0]) return false;
  }
  return true;
}

// Coming together, which NCCL lets nobody interrupt.
struct Joining {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  int result ABSL_GUARDED_BY(mutex) = kNcclSuccess;
  NcclComm comm ABSL_GUARDED_BY(mutex) = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(Options options) {
  RETURN_IF_ERROR(UseDevice(options.device));
  const auto joining = std::make_shared<Joining>();
  std::thread([joining, options] {
    NcclComm comm = nullptr;
    int result = cudaSetDevice(options.device) == cudaSuccess ? kNcclSuccess : 1;
    if (result == kNcclSuccess) {
      result = options.nccl->comm_init_rank(&comm, options.size, options.id, options.rank);
    }
    absl::MutexLock lock(&joining->mutex);
    joining->done = true;
    joining->result = result;
    joining->comm = comm;
  }).detach();
  const absl::Time deadline = absl::Now() + options.patience;
  NcclComm comm = nullptr;
  for (;;) {
    absl::MutexLock lock(&joining->mutex);
    joining->mutex.AwaitWithTimeout(absl::Condition(&joining->done), options.watch_interval);
    if (joining->done) {
      const absl::Status joined = options.nccl->Check(
          joining->result,
          absl::StrCat("rank ", options.rank, " of ", options.size, " joining the others"));
      if (!joined.ok()) options.cause->Set(options.rank, joined);
      RETURN_IF_ERROR(joined);
      comm = joining->comm;
      break;
    }
    RETURN_IF_ERROR(options.cause->Get());
    if (absl::Now() > deadline) {
      const absl::Status late = absl::DeadlineExceededError(
          absl::StrCat("the ", options.size, " GPUs of this site did not come together within ",
                       absl::FormatDuration(options.patience)));
      options.cause->Set(options.rank, late);
      return late;
    }
  }
  return std::unique_ptr<NcclGroup>(new NcclGroup(std::move(options), comm));
}

NcclGroup::NcclGroup(Options options, NcclComm comm)
    : options_(std::move(options)),
      nccl_(*options_.nccl),
      comm_(comm),
      watcher_([this] { Watch(); }) {}

NcclGroup::~NcclGroup() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  watcher_.join();
  absl::MutexLock lock(&mutex_);
  if (comm_ != nullptr) {
    // Destroying waits for what is under way, which others may have left.
    (void)(options_.cause->Get().ok() ? nccl_.comm_destroy(comm_) : nccl_.comm_abort(comm_));
  }
}

void NcclGroup::Watch() {
  (void)cudaSetDevice(options_.device);
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    int result = kNcclSuccess;
    const absl::Status asked =
        nccl_.Check(nccl_.comm_get_async_error(comm_, &result), "asking NCCL for errors");
    const absl::Status failed =
        result == kNcclInProgress ? absl::OkStatus() : nccl_.Check(result, "a collective");
    if (!asked.ok() || !failed.ok()) {
      options_.cause->Set(options_.rank, asked.ok() ? failed : asked);
    }
    if (!options_.cause->Get().ok()) {
      const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !issuing_; };
      mutex_.AwaitWithTimeout(absl::Condition(&is_idle), kIssuePatience);
      (void)nccl_.comm_abort(std::exchange(comm_, nullptr));
      return;
    }
    mutex_.AwaitWithTimeout(absl::Condition(&stop_), options_.watch_interval);
  }
}

template <typename Issue>
absl::Status NcclGroup::Do(const char* what, const Issue& issue) {
  NcclComm comm = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(options_.cause->Get());
    comm = comm_;
    issuing_ = true;
  }
  // May block, at first use of a connection: the watcher must be able to end that.
  const absl::Status status = nccl_.Check(issue(comm), what);
  {
    absl::MutexLock lock(&mutex_);
    issuing_ = false;
  }
  if (!status.ok()) Abort(status);
  return status.ok() ? status : options_.cause->Get();
}

template <typename Whole, typename OfRoot>
absl::Status NcclGroup::DoPieces(const char* what, void* data, std::span<const int64_t> bounds,
                                 GroupType type, const Whole& whole, const OfRoot& of_root) {
  RETURN_IF_ERROR(CheckBounds(bounds, size()));
  return Do(what, [&](NcclComm comm) {
    if (AreEqual(bounds)) {
      return whole(Piece(data, bounds, 0, type).begin, Piece(data, bounds, rank(), type), comm);
    }
    int result = nccl_.group_start();
    for (int root = 0; root < size() && result == kNcclSuccess; ++root) {
      const Piece piece(data, bounds, root, type);
      if (piece.count > 0) result = of_root(piece, root, comm);
    }
    const int ended = nccl_.group_end();
    return result == kNcclSuccess ? ended : result;
  });
}

absl::Status NcclGroup::ReduceScatterSum(void* data, std::span<const int64_t> bounds,
                                         GroupType type, GroupStream stream) {
  return DoPieces(
      "reduce-scatter", data, bounds, type,
      [&](const char* all, const Piece& own, NcclComm comm) {
        return nccl_.reduce_scatter(all, own.begin, own.count, TypeOf(type), kNcclSum, comm,
                                    StreamOf(stream));
      },
      [&](const Piece& piece, int root, NcclComm comm) {
        return nccl_.reduce(piece.begin, piece.begin, piece.count, TypeOf(type), kNcclSum, root,
                            comm, StreamOf(stream));
      });
}

absl::Status NcclGroup::AllGather(void* data, std::span<const int64_t> bounds, GroupType type,
                                  GroupStream stream) {
  return DoPieces(
      "all-gather", data, bounds, type,
      [&](char* all, const Piece& own, NcclComm comm) {
        return nccl_.all_gather(own.begin, all, own.count, TypeOf(type), comm, StreamOf(stream));
      },
      [&](const Piece& piece, int root, NcclComm comm) {
        return nccl_.broadcast(piece.begin, piece.begin, piece.count, TypeOf(type), root, comm,
                               StreamOf(stream));
      });
}

absl::Status NcclGroup::Broadcast(void* data, int64_t count, GroupType type, int root,
                                  GroupStream stream) {
  return Do("broadcast", [&](NcclComm comm) {
    return nccl_.broadcast(data, data, static_cast<size_t>(count), TypeOf(type), root, comm,
                           StreamOf(stream));
  });
}

absl::Status NcclGroup::BeginBatch() {
  return Do("beginning a batch", [&](NcclComm) { return nccl_.group_start(); });
}

absl::Status NcclGroup::EndBatch() {
  return Do("ending a batch", [&](NcclComm) { return nccl_.group_end(); });
}

void NcclGroup::Abort(const absl::Status& cause) { options_.cause->Set(options_.rank, cause); }

absl::StatusOr<std::vector<std::unique_ptr<LocalGroup>>> MakeNcclGroups(
    const std::vector<int>& devices) {
  ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Load());
  NcclSite site{.id = {},
                .first_rank = 0,
                .size = static_cast<int>(devices.size()),
                .cause = std::make_shared<SharedCause>()};
  RETURN_IF_ERROR(nccl->Check(nccl->get_unique_id(&site.id), "beginning a group of GPUs"));
  return MakeNcclGroups(*nccl, devices, site);
}

absl::StatusOr<std::vector<std::unique_ptr<LocalGroup>>> MakeNcclGroups(
    const NcclLibrary& nccl, const std::vector<int>& devices, const NcclSite& site) {
  std::vector<absl::StatusOr<std::unique_ptr<NcclGroup>>> made(devices.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < devices.size(); ++i) {
    threads.emplace_back([&, i] {
      NcclGroup::Options options;
      options.nccl = &nccl;
      options.id = site.id;
      options.rank = site.first_rank + static_cast<int>(i);
      options.size = site.size;
      options.device = devices[i];
      options.cause = site.cause;
      made[i] = NcclGroup::Create(std::move(options));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<LocalGroup>> groups;
  for (absl::StatusOr<std::unique_ptr<NcclGroup>>& group : made) {
    RETURN_IF_ERROR(group.status());
    groups.push_back(*std::move(group));
  }
  return groups;
}

}  // namespace causeway::worker::cuda
