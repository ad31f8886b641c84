#include "worker/data/text_corpus.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "worker/data/dataset.h"
#include "worker/data/staged_data.h"
#include "worker/data/token_shard.h"

namespace causeway::worker {
namespace {

constexpr size_t kBinaryProbeBytes = 4096;
constexpr int kMaxFolderDepth = 32;
constexpr int64_t kMaxSegmentBytes = 64 * 1024;
constexpr int64_t kMinSegmentBytes = 64;
// A small corpus is cut so finely that this many segments are held out, where that is possible.
constexpr double kWantedHeldOutSegments = 8;

bool LooksBinary(std::span<const uint8_t> bytes) {
  const std::span<const uint8_t> probe = bytes.first(std::min(bytes.size(), kBinaryProbeBytes));
  return std::find(probe.begin(), probe.end(), uint8_t{0}) != probe.end();
}

// Whether `tokenize` wrote this folder, perhaps from this very corpus: its JSON is no text to train
// on.
bool IsShardFolder(const std::vector<std::string>& names) {
  const auto has = [&](absl::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return has(kDataJsonName) && has("train_000000.bin");
}

class Finder {
 public:
  Finder(FileSystem& file_system, const std::vector<std::string>& extensions)
      : file_system_(file_system), extensions_(extensions) {}

  absl::Status VisitInput(const std::string& path) {
    if (file_system_.IsFolder(path)) return VisitFolder(path, 0);
    return VisitFile(path, /*is_input=*/true);
  }

  TextCorpus corpus;

 private:
  absl::Status VisitFolder(const std::string& folder, int depth) {
    if (depth > kMaxFolderDepth) {
      return absl::InvalidArgumentError(absl::StrCat("folders nest more than ", kMaxFolderDepth,
                                                     " deep at ", folder,
                                                     "; is there a link in a circle?"));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(folder));
    if (IsShardFolder(names)) {
      corpus.skipped_files += std::ssize(names);
      return absl::OkStatus();
    }
    for (const std::string& name : names) {
      if (name.empty() || name.front() == '.') continue;
      const std::string path = JoinPath(folder, name);
      if (file_system_.IsFolder(path)) {
        RETURN_IF_ERROR(VisitFolder(path, depth + 1));
      } else if (!IsWanted(name)) {
        continue;
      } else if (!file_system_.Exists(path)) {
        ++corpus.skipped_files;
      } else {
        RETURN_IF_ERROR(VisitFile(path, /*is_input=*/false));
      }
    }
    return absl::OkStatus();
  }

  absl::Status VisitFile(const std::string& path, bool is_input) {
    ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, file_system_.Map(path));
    const std::span<const uint8_t> bytes = file->bytes();
    if (bytes.empty()) return absl::OkStatus();
    if (LooksBinary(bytes)) {
      if (is_input) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, " is not text: there is a NUL byte in its first ", kBinaryProbeBytes, " bytes"));
      }
      ++corpus.skipped_files;
      return absl::OkStatus();
    }
    if (absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".ndjson")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       " are JSON Lines, whose documents python3 -m causeway.tokenize reads; "
                       "rename the file to have its bytes as they are"));
    }
    const auto size = static_cast<int64_t>(bytes.size());
    corpus.documents.push_back({path, size});
    corpus.bytes += size;
    return absl::OkStatus();
  }

  bool IsWanted(const std::string& name) const {
    return extensions_.empty() ||
           std::any_of(extensions_.begin(), extensions_.end(),
                       [&](const std::string& ending) { return absl::EndsWith(name, ending); });
  }

  FileSystem& file_system_;
  const std::vector<std::string>& extensions_;
};

// The segments of a corpus and the choice among them.
class HeldOutSplit {
 public:
  HeldOutSplit(int64_t corpus_bytes, double fraction)
      : fraction_(fraction),
        segment_bytes_(std::clamp(static_cast<int64_t>(static_cast<double>(corpus_bytes) *
                                                       fraction / kWantedHeldOutSegments),
                                  kMinSegmentBytes, kMaxSegmentBytes)) {}

  int64_t segment_bytes() const { return segment_bytes_; }
  int64_t SegmentOf(int64_t position) const { return position / segment_bytes_; }
  // Counts up by one with every 1/fraction-th segment.
  int64_t HeldOutBefore(int64_t segment) const {
    return static_cast<int64_t>(std::floor(static_cast<double>(segment) * fraction_));
  }
  bool IsHeldOut(int64_t segment) const {
    return HeldOutBefore(segment + 1) > HeldOutBefore(segment);
  }

 private:
  const double fraction_;
  const int64_t segment_bytes_;
};

// Where to cut instead of at `at`, which is inside `text`: after the next line feed, if it comes
// within `reach` bytes, else before the next UTF-8 character.
size_t MoveCut(absl::string_view text, size_t at, size_t reach) {
  if (text[at - 1] == '\n') return at;
  const size_t line_end = text.substr(at, reach).find('\n');
  if (line_end != absl::string_view::npos) return at + line_end + 1;
  const auto is_continuation = [&](size_t i) {
    return (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80;
  };
  for (size_t i = at; i < text.size() && i < at + 4; ++i) {
    if (!is_continuation(i)) return i;
  }
  return at;
}

}  // namespace

absl::StatusOr<TextCorpus> FindTextCorpus(FileSystem& file_system,
                                          const std::vector<std::string>& inputs,
                                          const std::vector<std::string>& extensions) {
  if (inputs.empty()) {
    return absl::InvalidArgumentError("no corpus was named; name at least one file or folder");
  }
  Finder finder(file_system, extensions);
  for (const std::string& input : inputs) RETURN_IF_ERROR(finder.VisitInput(input));
  if (finder.corpus.bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no text in ", inputs.front(),
                     inputs.size() > 1 ? absl::StrCat(" and ", inputs.size() - 1, " more") : "",
                     " (", finder.corpus.skipped_files, " binary files skipped)"));
  }
  return std::move(finder.corpus);
}

absl::Status VisitPieces(FileSystem& file_system, const TextCorpus& corpus,
                         double held_out_fraction, const PieceVisitor& visitor) {
  if (!(held_out_fraction > 0 && held_out_fraction <= 0.5)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "held_out_fraction must be above 0 and at most 0.5, it is ", held_out_fraction));
  }
  const HeldOutSplit split(corpus.bytes, held_out_fraction);
  // Only whole segments count: nothing can cut them away altogether.
  const int64_t whole_segments = corpus.bytes / split.segment_bytes();
  if (split.HeldOutBefore(whole_segments) < 1) {
    const auto needed = static_cast<int64_t>(std::ceil(1.0 / held_out_fraction)) * kMinSegmentBytes;
    return absl::InvalidArgumentError(
        absl::StrCat("the corpus has ", corpus.bytes, " bytes, too few to hold out a part of ",
                     held_out_fraction, "; at least ", needed, " are needed"));
  }
  const int64_t reach = split.segment_bytes() / 2;
  int64_t document_begin = 0;
  for (const Document& document : corpus.documents) {
    ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, file_system.Map(document.path));
    const std::shared_ptr<const MappedFile> file = std::move(mapped);
    const absl::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                                 file->bytes().size());
    if (static_cast<int64_t>(text.size()) != document.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(document.path, " had ", document.bytes, " bytes and now has ", text.size(),
                       "; do not change the corpus while it is read"));
    }
    size_t begin = 0;  // Where the piece begins.
    size_t at = 0;     // Where the segment begins.
    while (at < text.size()) {
      const int64_t segment = split.SegmentOf(document_begin + static_cast<int64_t>(at));
      const bool held_out = split.IsHeldOut(segment);
      const int64_t border = (segment + 1) * split.segment_bytes() - document_begin;
      if (border < document.bytes) {
        at = static_cast<size_t>(border);
        if (split.IsHeldOut(segment + 1) == held_out) continue;
        at = MoveCut(text, at, static_cast<size_t>(reach));
      } else {
        at = text.size();
      }
      RETURN_IF_ERROR(
          visitor({file, text.substr(begin, at - begin), held_out, begin == 0, at == text.size()}));
      begin = at;
    }
    document_begin += document.bytes;
  }
  return absl::OkStatus();
}

namespace {

constexpr int64_t kBytes = 256;

// One of the two sequences that come out.
class Part {
 public:
  Part(FileSystem& file_system, const TokenizeOptions& options, std::string prefix)
      : prefix_(std::move(prefix)),
        folder_(StagedData::FolderOf(options.output)),
        writer_(file_system, folder_, prefix_, kBytes, options.shard_tokens) {}

  absl::Status Append(const Piece& piece) {
    // Text from within a document, after a stretch that went to the other part, begins a document
    // here.
    if (piece.begins_document || !continues_) starts_.push_back(writer_.tokens());
    continues_ = !piece.ends_document;
    std::vector<int32_t> tokens(size_t{1} << 20);
    for (size_t begin = 0; begin < piece.text.size(); begin += tokens.size()) {
      const absl::string_view text = piece.text.substr(begin, tokens.size());
      std::transform(text.begin(), text.end(), tokens.begin(),
                     [](char byte) { return static_cast<uint8_t>(byte); });
      RETURN_IF_ERROR(writer_.Append(std::span(tokens).first(text.size())));
    }
    return absl::OkStatus();
  }
  // The other part goes on.
  void Interrupt() { continues_ = false; }

  // Returns the name of the index that it writes. Text is never without tokens here.
  absl::StatusOr<std::string> Finish(FileSystem& file_system) {
    RETURN_IF_ERROR(writer_.Finish());
    ASSIGN_OR_RETURN(const DocumentIndex index,
                     DocumentIndex::Create(std::move(starts_), writer_.tokens()));
    const std::string name = absl::StrCat(prefix_, kDocumentIndexEnding);
    RETURN_IF_ERROR(index.Write(file_system, JoinPath(folder_, name)));
    return name;
  }

  const TokenShardWriter& writer() const { return writer_; }

 private:
  const std::string prefix_;
  const std::string folder_;
  TokenShardWriter writer_;
  std::vector<int64_t> starts_;
  bool continues_ = false;
};

}  // namespace

absl::StatusOr<TokenizeResult> Tokenize(FileSystem& file_system, const TokenizeOptions& options) {
  if (options.output.empty()) return absl::InvalidArgumentError("no output folder was named");
  if (options.shard_tokens < 1 || options.shard_tokens > kMaxShardTokens) {
    return absl::InvalidArgumentError(absl::StrCat("shard_tokens must be 1 to ", kMaxShardTokens,
                                                   ", it is ", options.shard_tokens));
  }
  ASSIGN_OR_RETURN(const TextCorpus corpus,
                   FindTextCorpus(file_system, options.inputs, options.extensions));
  TokenizeResult result;
  result.skipped_files = corpus.skipped_files;
  std::unique_ptr<StagedData> staged;  // Null: nothing was written yet.
  Part train(file_system, options, kTrainPrefix);
  Part held_out(file_system, options, kHeldOutPrefix);
  const auto take = [&](const Piece& piece) -> absl::Status {
    // Not before VisitPieces has found the corpus large enough.
    if (staged == nullptr) {
      ASSIGN_OR_RETURN(staged, StagedData::Create(file_system, options.output, options.replace));
    }
    RETURN_IF_ERROR((piece.held_out ? held_out : train).Append(piece));
    if (!piece.ends_document) (piece.held_out ? train : held_out).Interrupt();
    if (piece.begins_document) ++result.documents;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(VisitPieces(file_system, corpus, options.held_out_fraction, take));
  ASSIGN_OR_RETURN(result.train_documents, train.Finish(file_system));
  ASSIGN_OR_RETURN(result.held_out_documents, held_out.Finish(file_system));
  result.tokenizer = "bytes";
  result.vocabulary_size = kBytes;
  result.held_out_fraction = options.held_out_fraction;
  result.train_tokens = train.writer().tokens();
  result.held_out_tokens = held_out.writer().tokens();
  result.held_out_bytes = result.held_out_tokens;
  result.train_shards = train.writer().names();
  result.held_out_shards = held_out.writer().names();
  result.sources = options.inputs;
  result.bytes = corpus.bytes;
  RETURN_IF_ERROR(staged->Finish(result));
  return result;
}

}  // namespace causeway::worker
