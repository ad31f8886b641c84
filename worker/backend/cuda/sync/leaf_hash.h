// The checksums of a tree hash's leaves (common/base/checksum.h) on a device: of what lies there,
// only 8 bytes per leaf have to leave it.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_LEAF_HASH_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_LEAF_HASH_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// Shorter leaves are hashed in another way, which is not here.
inline constexpr int64_t kLeastLeafBytes = 256;

struct HashLeaf {
  int64_t offset = 0;  // In bytes; a multiple of 16.
  int64_t bytes = 0;   // A multiple of 64, and at least kLeastLeafBytes.
};

// out[i] = Checksum64 of leaf i of `memory`. All pointers are to device memory.
void LaunchLeafHashes(const void* memory, const HashLeaf* leaves, int64_t count,
                      unsigned long long* out, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_SYNC_LEAF_HASH_H_
