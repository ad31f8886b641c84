// NCCL for emulated devices, of one process or several on this machine: all ranks give what they
// have to rank 0, over sockets, and it gives everything to all; each adds up, in order of rank.
// Spoils what the real one leaves undefined. Calls that do not fit each other, which the real
// one would hang on, fail on every rank, and so does a rank that has gone.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/codec/codec_layout.h"
#include "device_emulation.h"
#include "worker/backend/cuda/nccl.h"

namespace causeway::worker::cuda {

struct OpaqueNcclComm {
  int rank = 0;
  std::vector<int> sockets;  // Of rank 0: to rank 1, 2, ...; of the others: to rank 0.
  size_t ranks = 1;
  std::atomic<int> error = kNcclSuccess;
};

namespace {

constexpr int kRemoteError = 6;
constexpr int kSpoilt = 0xff;  // Bytes of a NaN.
constexpr int kRetryMs = 1;

// Calls that ranks make at the same time must be equal.
struct Call {
  char name[16] = {};
  uint64_t count = 0;
  int type = 0;
  int root = 0;
};

size_t BytesOf(int type) {
  if (type == kNcclBf16) return sizeof(uint16_t);
  return type == kNcclFloat ? sizeof(float) : sizeof(double);
}

bool Send(int to, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  for (ssize_t sent = 0; size > 0; at += sent, size -= static_cast<size_t>(sent)) {
    sent = send(to, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
  }
  return true;
}

bool Receive(int from, void* data, size_t size) {
  return size == 0 || recv(from, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

int Fail(NcclComm comm) {
  comm->error = kRemoteError;
  for (const int socket : comm->sockets) shutdown(socket, SHUT_RDWR);
  return kRemoteError;
}

// Every rank's `bytes` of the call, in order of rank.
int Exchange(NcclComm comm, const Call& call, const void* from, size_t bytes, cudaStream_t stream,
             std::vector<char>& all) {
  if (cudaStreamSynchronize(stream) != cudaSuccess) return Fail(comm);
  all.resize(bytes * comm->ranks);
  std::memcpy(all.data() + static_cast<size_t>(comm->rank) * bytes, from, bytes);
  if (comm->rank != 0) {
    const int leader = comm->sockets[0];
    const bool done = Send(leader, &call, sizeof(call)) && Send(leader, from, bytes) &&
                      Receive(leader, all.data(), all.size());
    return done ? kNcclSuccess : Fail(comm);
  }
  for (size_t i = 0; i < comm->sockets.size(); ++i) {
    Call other;
    if (!Receive(comm->sockets[i], &other, sizeof(other)) ||
        std::memcmp(&call, &other, sizeof(call)) != 0 ||
        !Receive(comm->sockets[i], all.data() + (i + 1) * bytes, bytes)) {
      return Fail(comm);
    }
  }
  for (const int socket : comm->sockets) {
    if (!Send(socket, all.data(), all.size())) return Fail(comm);
  }
  return kNcclSuccess;
}

template <typename T, typename Load, typename Store>
void SumInto(const std::vector<char>& all, size_t ranks, size_t first, size_t count, void* to,
             const Load& load, const Store& store) {
  const auto* const values = reinterpret_cast<const T*>(all.data());
  const size_t each = all.size() / sizeof(T) / ranks;
  for (size_t i = 0; i < count; ++i) {
    auto sum = load(values[first + i]);
    for (size_t rank = 1; rank < ranks; ++rank) sum += load(values[rank * each + first + i]);
    static_cast<T*>(to)[i] = store(sum);
  }
}

// Sums `count` values from the first on of what Exchange gave, bf16 in fp32 and rounded once.
void Sum(int type, const std::vector<char>& all, size_t ranks, size_t first, size_t count,
         void* to) {
  if (type == kNcclFloat) {
    SumInto<float>(all, ranks, first, count, to, std::identity(), std::identity());
  } else if (type == kNcclDouble) {
    SumInto<double>(all, ranks, first, count, to, std::identity(), std::identity());
  } else {
    SumInto<uint16_t>(all, ranks, first, count, to, Bf16ToFloat, [](float sum) {
      constexpr uint16_t kNan = 0x7fc0;
      return sum != sum ? kNan : Bf16Nearest(sum);
    });
  }
}

int GetUniqueId(NcclId* id) {
  static std::atomic<int> made = 0;
  *id = {};
  std::snprintf(id->bytes, sizeof(id->bytes), "%d.%d", getpid(), ++made);
  return kNcclSuccess;
}

int CommInitRank(NcclComm* made, int ranks, NcclId id, int rank) {
  auto comm = std::make_unique<OpaqueNcclComm>();
  comm->rank = rank;
  comm->ranks = static_cast<size_t>(ranks);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // Of no file.
  std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "causeway-nccl-%.80s",
                id.bytes);
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);
  const int own = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (rank != 0) {
    comm->sockets = {own};
    while (connect(own, name, sizeof(address)) != 0) poll(nullptr, 0, kRetryMs);
    if (!Send(own, &rank, sizeof(rank))) return kRemoteError;
  } else if (ranks > 1) {
    if (bind(own, name, sizeof(address)) != 0 || listen(own, ranks) != 0) return kRemoteError;
    comm->sockets.resize(comm->ranks - 1);
    for (int i = 1; i < ranks; ++i) {
      const int other = accept(own, nullptr, nullptr);
      int number = 0;
      if (!Receive(other, &number, sizeof(number))) return kRemoteError;
      comm->sockets[static_cast<size_t>(number - 1)] = other;
    }
  }
  if (rank == 0) close(own);
  *made = comm.release();
  return kNcclSuccess;
}

int CommDestroy(NcclComm comm) {
  for (const int socket : comm->sockets) close(socket);
  delete comm;
  return kNcclSuccess;
}

// Who waits in it goes on, and still needs it.
int CommAbort(NcclComm comm) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<OpaqueNcclComm>> aborted;
  Fail(comm);
  const std::lock_guard<std::mutex> lock(mutex);
  aborted.emplace_back(comm);
  return kNcclSuccess;
}

int Reduce(const void* from, void* to, size_t count, int type, int, int root, NcclComm comm,
           cudaStream_t stream) {
  std::vector<char> all;
  const int result =
      Exchange(comm, {"reduce", count, type, root}, from, count * BytesOf(type), stream, all);
  if (result != kNcclSuccess) return result;
  if (comm->rank == root) {
    Sum(type, all, comm->ranks, 0, count, to);
  } else {
    std::memset(to, kSpoilt, count * BytesOf(type));
  }
  return result;
}

int ReduceScatter(const void* from, void* to, size_t count, int type, int, NcclComm comm,
                  cudaStream_t stream) {
  std::vector<char> all;
  const size_t bytes = count * BytesOf(type) * comm->ranks;
  const int result = Exchange(comm, {"reduce-scatter", count, type}, from, bytes, stream, all);
  if (result != kNcclSuccess) return result;
  std::memset(const_cast<void*>(from), kSpoilt, bytes);
  Sum(type, all, comm->ranks, static_cast<size_t>(comm->rank) * count, count, to);
  return result;
}

int AllGather(const void* from, void* to, size_t count, int type, NcclComm comm,
              cudaStream_t stream) {
  std::vector<char> all;
  const int result =
      Exchange(comm, {"all-gather", count, type}, from, count * BytesOf(type), stream, all);
  if (result == kNcclSuccess) std::memcpy(to, all.data(), all.size());
  return result;
}

int Broadcast(const void* from, void* to, size_t count, int type, int root, NcclComm comm,
              cudaStream_t stream) {
  std::vector<char> all;
  const size_t bytes = count * BytesOf(type);
  const int result = Exchange(comm, {"broadcast", count, type, root}, from, bytes, stream, all);
  if (result == kNcclSuccess) {
    std::memcpy(to, all.data() + static_cast<size_t>(root) * bytes, bytes);
  }
  return result;
}

}  // namespace

absl::StatusOr<const NcclLibrary*> NcclLibrary::Load() {
  static const NcclLibrary library = {.get_unique_id = GetUniqueId,
                                      .comm_init_rank = CommInitRank,
                                      .comm_destroy = CommDestroy,
                                      .comm_abort = CommAbort,
                                      .comm_get_async_error =
                                          [](NcclComm comm, int* result) {
                                            *result = comm->error;
                                            return 0;
                                          },
                                      .get_error_string = [](int) { return "remote error"; },
                                      .get_last_error =
                                          [](NcclComm) {
                                            const cudaError_t error = cudaGetLastError();
                                            return error == cudaSuccess ? ""
                                                                        : cudaGetErrorString(error);
                                          },
                                      .group_start = [] { return 0; },
                                      .group_end = [] { return 0; },
                                      .reduce = Reduce,
                                      .reduce_scatter = ReduceScatter,
                                      .all_gather = AllGather,
                                      .broadcast = Broadcast};
  return &library;
}

}  // namespace causeway::worker::cuda
