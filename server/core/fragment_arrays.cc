#include "server/core/fragment_arrays.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/checksum.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

// What a thread copies and checks at a time.
constexpr size_t kPieceValues = size_t{1} << 20;

absl::Status Failed(absl::string_view what, int error) {
  const std::string text = absl::StrCat("the scratch file: ", what, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

std::span<const uint8_t> BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

std::span<uint8_t> WritableBytesOf(std::span<float> values) {
  return {reinterpret_cast<uint8_t*>(values.data()), values.size_bytes()};
}

// Calls work(piece, first value, how many) for every piece of so many values. The first error of a
// piece, in their order.
template <typename Work>
absl::Status ForEachPiece(size_t values, ThreadPool* pool, const Work& work) {
  const size_t pieces = (values + kPieceValues - 1) / kPieceValues;
  std::vector<absl::Status> done(pieces);
  const auto one = [&](int64_t piece) {
    const auto index = static_cast<size_t>(piece);
    const size_t begin = index * kPieceValues;
    done[index] = work(index, begin, std::min(kPieceValues, values - begin));
  };
  if (pool == nullptr || pieces < 2) {
    for (size_t i = 0; i < pieces; ++i) one(static_cast<int64_t>(i));
  } else {
    pool->ParallelFor(static_cast<int64_t>(pieces), one);
  }
  for (const absl::Status& status : done) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScratchFile>> ScratchFile::Create(const std::string& folder,
                                                                 uint64_t bytes) {
  int descriptor = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    // Not every file system can make one without a name. A start removes one that a death left.
    const std::string path = JoinPath(folder, kScratchFile);
    descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) return Failed(absl::StrCat("create ", path), errno);
    if (unlink(path.c_str()) != 0) {
      const int error = errno;
      close(descriptor);
      return Failed(absl::StrCat("remove the name of ", path), error);
    }
  }
  std::unique_ptr<ScratchFile> file(new ScratchFile(descriptor));
  while (bytes > 0 && fallocate(descriptor, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    return Failed(absl::StrCat("set ", bytes, " bytes aside in ", folder), errno);
  }
  return file;
}

ScratchFile::~ScratchFile() { close(descriptor_); }

absl::Status ScratchFile::Write(uint64_t offset, std::span<const uint8_t> data) {
  while (!data.empty()) {
    const ssize_t done = pwrite(descriptor_, data.data(), data.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return Failed("write", errno);
    data = data.subspan(static_cast<size_t>(done));
    offset += static_cast<uint64_t>(done);
  }
  return absl::OkStatus();
}

absl::Status ScratchFile::Read(uint64_t offset, std::span<uint8_t> data) const {
  while (!data.empty()) {
    const ssize_t done = pread(descriptor_, data.data(), data.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return Failed("read", errno);
    if (done == 0) return absl::DataLossError("the scratch file ends too early");
    data = data.subspan(static_cast<size_t>(done));
    offset += static_cast<uint64_t>(done);
  }
  return absl::OkStatus();
}

void ScratchFile::Expect(uint64_t offset, uint64_t bytes) const {
  posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                POSIX_FADV_WILLNEED);
}

absl::Status FragmentArrays::Rest(ThreadPool* pool) {
  if (scratch_ == nullptr || at_rest_) return absl::OkStatus();
  std::vector<std::span<const float>> arrays = {set_.theta, set_.published};
  arrays.insert(arrays.end(), set_.optimizer.begin(), set_.optimizer.end());
  std::vector<std::vector<uint64_t>> checksums(arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) {
    checksums[i].resize((values_ + kPieceValues - 1) / kPieceValues);
    RETURN_IF_ERROR(ForEachPiece(values_, pool, [&](size_t piece, size_t begin, size_t count) {
      const std::span<const uint8_t> bytes = BytesOf(arrays[i].subspan(begin, count));
      checksums[i][piece] = Checksum64(bytes);
      return scratch_->Write(OffsetOf(i) + begin * sizeof(float), bytes);
    }));
  }
  checksums_ = std::move(checksums);
  set_ = {};
  at_rest_ = true;
  return absl::OkStatus();
}

absl::Status FragmentArrays::ReadArray(size_t index, ThreadPool* pool,
                                       std::span<float> values) const {
  return ForEachPiece(values_, pool, [&](size_t piece, size_t begin, size_t count) -> absl::Status {
    const std::span<uint8_t> bytes = WritableBytesOf(values.subspan(begin, count));
    RETURN_IF_ERROR(scratch_->Read(OffsetOf(index) + begin * sizeof(float), bytes));
    if (Checksum64(bytes) == checksums_[index][piece]) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("the scratch file has other bytes than were written, from ",
                     OffsetOf(index) + begin * sizeof(float), " on"));
  });
}

absl::StatusOr<FragmentArrays::Set> FragmentArrays::ReadAll(ThreadPool* pool) const {
  Set set;
  set.theta.resize(values_);
  set.published.resize(values_);
  RETURN_IF_ERROR(ReadArray(0, pool, set.theta));
  RETURN_IF_ERROR(ReadArray(1, pool, set.published));
  for (size_t i = 0; i < states_; ++i) {
    set.optimizer.emplace_back(values_);
    RETURN_IF_ERROR(ReadArray(2 + i, pool, set.optimizer.back()));
  }
  return set;
}

absl::Status FragmentArrays::Load(ThreadPool* pool) {
  if (!at_rest_) return absl::OkStatus();
  ASSIGN_OR_RETURN(set_, ReadAll(pool));
  at_rest_ = false;
  checksums_.clear();
  return absl::OkStatus();
}

absl::StatusOr<FragmentArrays::Set> FragmentArrays::Copy() const {
  if (at_rest_) return ReadAll(/*pool=*/nullptr);
  return set_;
}

absl::Status FragmentArrays::CopyPublished(std::span<float> values) const {
  if (at_rest_) return ReadArray(1, /*pool=*/nullptr, values);
  std::ranges::copy(set_.published, values.begin());
  return absl::OkStatus();
}

void FragmentArrays::Expect() const {
  if (at_rest_) scratch_->Expect(offset_, BytesAtRest(values_, states_));
}

}  // namespace causeway::server
