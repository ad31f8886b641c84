#include "worker/data/encode_jobs.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/data/jsonl.h"

namespace causeway::worker {
namespace {

// Never a matter of the number of threads: cuts are where they are on any machine.
constexpr size_t kJobBytes = size_t{256} << 10;
// A tokenizer that cannot be cut anywhere gets no more than this at once, and is cut at an end of a
// line: its libraries need many times the memory of a text.
constexpr size_t kMaxUncutBytes = size_t{4} << 20;
constexpr size_t kJobsPerThread = 8;

// Past the end of the line that holds `from`, within the text.
size_t LineEnd(absl::string_view text, size_t from) {
  if (from >= text.size()) return text.size();
  const size_t end = text.find('\n', from);
  return end == absl::string_view::npos ? text.size() : end + 1;
}

}  // namespace

EncodeJobs::EncodeJobs(const Tokenizer& tokenizer, const std::string& jsonl_field, ThreadPool& pool,
                       Consumer consumer)
    : tokenizer_(tokenizer),
      jsonl_field_(jsonl_field),
      pool_(pool),
      consumer_(std::move(consumer)) {}

absl::Status EncodeJobs::AddPiece(const Piece& piece) {
  for (size_t begin = 0; begin < piece.text.size();) {
    const absl::string_view rest = piece.text.substr(begin);
    size_t size = rest.size();
    if (size > kJobBytes) {
      size = tokenizer_.NextCut(rest.substr(0, std::min(rest.size(), kMaxUncutBytes)), kJobBytes);
      if (size == kMaxUncutBytes) size = LineEnd(rest, size - 1);
    }
    EncodeJob job;
    job.file = piece.file;
    job.input = rest.substr(0, size);
    job.held_out = piece.held_out;
    job.begins_document = piece.begins_document && begin == 0;
    begin += size;
    job.ends_document = piece.ends_document && begin == piece.text.size();
    RETURN_IF_ERROR(Add(std::move(job)));
  }
  return absl::OkStatus();
}

absl::Status EncodeJobs::AddJsonl(std::shared_ptr<const MappedFile> file, const std::string& path) {
  const absl::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                               file->bytes().size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = LineEnd(text, std::min(text.size(), begin + kJobBytes) - 1);
    EncodeJob job;
    job.file = file;
    job.path = path;
    job.input = text.substr(begin, end - begin);
    job.is_jsonl = true;
    job.begins_file = begin == 0;
    begin = end;
    RETURN_IF_ERROR(Add(std::move(job)));
  }
  return absl::OkStatus();
}

absl::Status EncodeJobs::Add(EncodeJob job) {
  waiting_.push_back(std::move(job));
  if (waiting_.size() < kJobsPerThread * static_cast<size_t>(pool_.threads())) {
    return absl::OkStatus();
  }
  return Finish();
}

absl::Status EncodeJobs::Finish() {
  pool_.ParallelFor(std::ssize(waiting_),
                    [&](int64_t i) { Run(waiting_[static_cast<size_t>(i)]); });
  for (EncodeJob& job : waiting_) {
    RETURN_IF_ERROR(job.status);
    RETURN_IF_ERROR(consumer_(job));
  }
  waiting_.clear();
  return absl::OkStatus();
}

void EncodeJobs::Run(EncodeJob& job) const {
  if (job.is_jsonl) {
    RunJsonl(job);
    return;
  }
  EncodedText text;
  text.bytes = static_cast<int64_t>(job.input.size());
  text.begins_document = job.begins_document;
  text.ends_document = job.ends_document;
  job.status = tokenizer_.Encode(job.input, text.tokens);
  job.texts.push_back(std::move(text));
}

void EncodeJobs::RunJsonl(EncodeJob& job) const {
  std::string document;
  for (size_t begin = 0; begin < job.input.size();) {
    const size_t end = LineEnd(job.input, begin);
    const absl::string_view line = job.input.substr(begin, end - begin);
    begin = end;
    ++job.lines;
    if (line.find_first_not_of(" \t\r\n") == absl::string_view::npos) continue;
    EncodedText text;
    absl::Status status = ReadJsonLine(line, jsonl_field_, document);
    if (status.ok()) status = tokenizer_.Encode(document, text.tokens);
    if (!status.ok()) {
      job.bad_lines.push_back({job.lines, std::string(status.message())});
      continue;
    }
    if (text.tokens.empty()) continue;
    text.bytes = static_cast<int64_t>(document.size());
    text.begins_document = true;
    text.ends_document = true;
    job.texts.push_back(std::move(text));
  }
}

}  // namespace causeway::worker
