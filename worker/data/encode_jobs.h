// The work of tokenizing, cut into jobs that any thread can do and that are put together in order.
#ifndef CAUSEWAY_WORKER_DATA_ENCODE_JOBS_H_
#define CAUSEWAY_WORKER_DATA_ENCODE_JOBS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "worker/data/text_corpus.h"
#include "worker/data/tokenizer.h"

namespace causeway::worker {

// The tokens of a document, or of a part of one.
struct EncodedText {
  std::vector<int32_t> tokens;
  int64_t bytes = 0;
  bool begins_document = false;
  bool ends_document = false;
};

struct BadLine {
  int64_t line = 0;  // From 1, in its file.
  std::string reason;
};

struct EncodeJob {
  std::shared_ptr<const MappedFile> file;
  std::string path;
  absl::string_view input;  // In the file.
  bool is_jsonl = false;
  bool held_out = false;  // Only for text; others say whose lines of JSONL are held out.
  bool begins_document = false;
  bool ends_document = false;
  bool begins_file = false;  // Only for JSONL.

  // The thread's result.
  std::vector<EncodedText> texts;
  std::vector<BadLine> bad_lines;  // Counted from 1 at the beginning of the input.
  int64_t lines = 0;
  absl::Status status;
};

// Collects jobs and does them on all threads of a pool, some at a time. Not thread-safe.
class EncodeJobs {
 public:
  // Takes jobs in the order in which they were added, done.
  using Consumer = std::function<absl::Status(EncodeJob& job)>;

  // `jsonl_field` as in TokenizeOptions. All outlive the jobs.
  EncodeJobs(const Tokenizer& tokenizer, const std::string& jsonl_field, ThreadPool& pool,
             Consumer consumer);

  // A piece of text, cut where the tokenizer allows it.
  absl::Status AddPiece(const Piece& piece);
  // A file of JSONL, cut at ends of lines.
  absl::Status AddJsonl(std::shared_ptr<const MappedFile> file, const std::string& path);
  // Does what is left.
  absl::Status Finish();

 private:
  absl::Status Add(EncodeJob job);
  void Run(EncodeJob& job) const;
  void RunJsonl(EncodeJob& job) const;

  const Tokenizer& tokenizer_;
  const std::string& jsonl_field_;
  ThreadPool& pool_;
  const Consumer consumer_;
  std::vector<EncodeJob> waiting_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_ENCODE_JOBS_H_
