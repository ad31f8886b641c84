// Where documents begin in a sequence of tokens. Sequences are packed: a window may hold the end of
// one document and the beginning of the next, and whoever wants to keep them apart looks here.
//
// On disk: safetensors (common/files/safetensors.h) with the tensor "starts": I64, ascending, the
// first 0; metadata: "tokens", the length of the sequence.
#ifndef CAUSEWAY_WORKER_DATA_DOCUMENT_INDEX_H_
#define CAUSEWAY_WORKER_DATA_DOCUMENT_INDEX_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::worker {

// Immutable and thread-safe.
class DocumentIndex {
 public:
  // `starts` ascend from 0 and are below `tokens`; INVALID_ARGUMENT if not.
  static absl::StatusOr<DocumentIndex> Create(std::vector<int64_t> starts, int64_t tokens);
  static absl::StatusOr<DocumentIndex> Read(FileSystem& file_system, const std::string& path,
                                            int64_t tokens);
  absl::Status Write(FileSystem& file_system, const std::string& path) const;

  const std::vector<int64_t>& starts() const { return starts_; }

  // For each of the tokens from `begin` on: where its document begins, counted from `begin`, or 0
  // if that was earlier. begin + out.size() is at most the sequence's length.
  void Fill(int64_t begin, std::span<int32_t> out) const;

 private:
  DocumentIndex() = default;

  std::vector<int64_t> starts_;
  int64_t tokens_ = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_DOCUMENT_INDEX_H_
