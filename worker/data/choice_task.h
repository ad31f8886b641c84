// Multiple-choice questions as tokens: which of a few completions of a context is the right one.
//
// The format is llm.c's, so that its HellaSwag can be used as it is. A header of 256 little-endian
// int32: 20240522, the version, the number of examples, the bytes of the longest example. Then, per
// example, a stream of uint16 (version 1) or, for vocabularies above 65,535, of uint32 (version 2,
// ours):
//
//   START               65,535; or 2^32 - 1
//   EXAMPLE_BYTES       of this example, this stream's START included
//   INDEX, LABEL        its number; that of the right completion
//   COMPLETIONS         how many
//   N, N tokens         the context
//   N, N tokens         every completion
#ifndef CAUSEWAY_WORKER_DATA_CHOICE_TASK_H_
#define CAUSEWAY_WORKER_DATA_CHOICE_TASK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway::worker {

struct ChoiceExample {
  int label = 0;
  std::vector<int32_t> context;                   // At least one token.
  std::vector<std::vector<int32_t>> completions;  // At least two, each of at least one token.
};

// INVALID_ARGUMENT, naming the file and the example, for anything but the format above, and for
// tokens outside the vocabulary.
absl::StatusOr<std::vector<ChoiceExample>> ReadChoiceTask(FileSystem& file_system,
                                                          const std::string& path,
                                                          int64_t vocabulary_size);

// Replaces `path`, in the narrower version that the examples fit. INVALID_ARGUMENT, with the
// example's number, for one that ReadChoiceTask would refuse or that fits neither.
absl::Status WriteChoiceTask(FileSystem& file_system, const std::string& path,
                             const std::vector<ChoiceExample>& examples);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_CHOICE_TASK_H_
