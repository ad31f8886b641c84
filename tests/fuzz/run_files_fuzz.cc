// The files of a coordinator's run directory beside its database: snapshots, deltas and answers
// (blobs), curves, and the witness of its commits. What is accepted is of the record that names it,
// and is the same after it is written and read again.
//
// Input: the first byte's bits 3 to 5 choose the kind of file; with the rest of the input it makes
// an array file (array_file_input.h) or, for the witness, two slots whose checksums are made right
// unless bit 0 is set.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "server/store/blob_folder.h"
#include "server/store/sqlite_database.h"
#include "server/views/run_curves.h"
#include "tests/fuzz/array_file_input.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

using server::BlobFolder;
using server::CommitWitness;
using server::FragmentSnapshot;
using server::FragmentView;

constexpr uint64_t kHash = 0x1234;

bool Same(const FragmentSnapshot& a, const FragmentSnapshot& b) {
  return a.fragment == b.fragment && a.version == b.version &&
         a.published_hash == b.published_hash && SameBits(a.theta, b.theta) &&
         SameBits(a.published, b.published) &&
         std::ranges::equal(a.optimizer, b.optimizer, [](const auto& x, const auto& y) {
           return x.first == y.first && SameBits(x.second, y.second);
         });
}

// The blob as the folder would find it.
v1::Blob PutBlob(FaultDisk& files, const std::string& name, std::span<const uint8_t> input,
                 const ArrayFileKind& kind) {
  const std::vector<uint8_t> bytes = ArrayFileFromInput(input, kind, 1);
  v1::Blob blob;
  blob.set_file(name);
  blob.set_bytes(static_cast<int64_t>(bytes.size()));
  Put(files, JoinPath("run", name), bytes);
  return blob;
}

void CheckSnapshot(FaultDisk& files, BlobFolder& blobs, std::span<const uint8_t> input) {
  v1::Snapshot record;
  record.set_version(7);
  record.set_published_hash(kHash);
  *record.mutable_state() =
      PutBlob(files, "snapshots/s", input, {'C', 'W', 'A', 'Y', 'S', 'N', 'A', 'P'});
  FUZZ_REQUIRE(blobs.CheckPresent(record.state()).ok(), "the blob is not seen");
  const absl::StatusOr<FragmentSnapshot> read = blobs.ReadSnapshot(record);
  if (!read.ok()) return;
  FUZZ_REQUIRE(read->theta.size() == read->published.size(), "theta is not published");
  FragmentView view = {.fragment = 0, .version = 7, .published_hash = kHash};
  view.theta = read->theta;
  view.published = read->published;
  for (const auto& [name, values] : read->optimizer) view.optimizer.push_back({name, values});
  const auto written = blobs.WriteSnapshot(view, 3);
  FUZZ_REQUIRE(written.ok(), "what was read cannot be written");
  *record.mutable_state() = *written;
  const auto again = blobs.ReadSnapshot(record);
  FUZZ_REQUIRE(again.ok(), std::string(again.status().message()));
  FUZZ_REQUIRE(Same(*again, *read), "the snapshot changed");
}

void CheckDelta(FaultDisk& files, BlobFolder& blobs, std::span<const uint8_t> input) {
  v1::Contribution record;
  record.mutable_header()->set_round(7);
  record.mutable_header()->set_worker_id("a");
  record.mutable_header()->set_codec(v1::INT4);
  record.mutable_header()->set_object_hash(kHash);
  *record.mutable_delta() =
      PutBlob(files, "deltas/d", input, {'C', 'W', 'A', 'Y', 'D', 'E', 'L', 'T'});
  const auto read = blobs.ReadDelta(record);
  if (!read.ok()) return;
  const auto written = blobs.WriteDelta(record, *read, 3);
  FUZZ_REQUIRE(written.ok(), "what was read cannot be written");
  *record.mutable_delta() = *written;
  const auto again = blobs.ReadDelta(record);
  FUZZ_REQUIRE(again.ok() && *again == *read, "the delta changed");
  record.mutable_header()->set_object_hash(kHash + 1);
  FUZZ_REQUIRE(absl::IsDataLoss(blobs.ReadDelta(record).status()),
               "another record's delta is read");
}

void CheckAnswer(FaultDisk& files, BlobFolder& blobs, std::span<const uint8_t> input) {
  v1::Round record;
  record.set_round(7);
  record.set_answer_hash(kHash);
  *record.mutable_answer() =
      PutBlob(files, "answers/a", input, {'C', 'W', 'A', 'Y', 'A', 'N', 'S', 'W'});
  const auto read = blobs.ReadAnswer(record);
  if (!read.ok()) return;
  const auto written = blobs.WriteAnswer(record, *read, 3);
  FUZZ_REQUIRE(written.ok(), "what was read cannot be written");
  *record.mutable_answer() = *written;
  const auto again = blobs.ReadAnswer(record);
  FUZZ_REQUIRE(again.ok() && *again == *read, "the answer changed");
  record.set_round(8);
  FUZZ_REQUIRE(absl::IsDataLoss(blobs.ReadAnswer(record).status()),
               "another round's answer is read");
}

void CheckWitness(FaultDisk& files, std::span<const uint8_t> input) {
  constexpr size_t kSlotBytes = 24;
  constexpr size_t kCountedBytes = 16;
  const bool sealed = !input.empty() && (input[0] & 1) == 0;
  std::vector<uint8_t> file(input.begin() + (input.empty() ? 0 : 1), input.end());
  for (size_t at = 0; sealed && at + kSlotBytes <= file.size(); at += kSlotBytes) {
    const uint64_t checksum = Checksum64(std::span<const uint8_t>(file).subspan(at, kCountedBytes));
    std::memcpy(file.data() + at + kCountedBytes, &checksum, sizeof(checksum));
  }
  Put(files, "run/COMMITS", file);
  const absl::StatusOr<int64_t> read = CommitWitness::Read(files, "run/COMMITS");
  if (!read.ok()) {
    FUZZ_REQUIRE(absl::IsDataLoss(read.status()), "a damaged witness is DATA_LOSS");
    return;
  }
  FUZZ_REQUIRE(*read >= 0, "a negative number of commits");
  if (*read == 0) return;
  FUZZ_REQUIRE(CommitWitness::Create(files, "run/COMMITS", *read).ok(), "it cannot be written");
  const auto again = CommitWitness::Read(files, "run/COMMITS");
  FUZZ_REQUIRE(again.ok() && *again == *read, "the number of commits changed");
}

void CheckCurves(FaultDisk& files, std::span<const uint8_t> input) {
  constexpr size_t kPoints = 8;
  Put(files, "run/curves", ArrayFileFromInput(input, {'C', 'W', 'A', 'Y', 'C', 'U', 'R', 'V'}, 1));
  const auto read = server::ReadRunCurves(files, "run/curves", "run-1", kPoints);
  if (!read.ok()) return;
  FUZZ_REQUIRE(server::WriteRunCurves(files, "run/curves", "run-1", *read).ok(),
               "what was read cannot be written");
  const auto again = server::ReadRunCurves(files, "run/curves", "run-1", kPoints);
  FUZZ_REQUIRE(again.ok(), std::string(again.status().message()));
  FUZZ_REQUIRE(again->workers.size() == read->workers.size() &&
                   again->held_out.points().size() == read->held_out.points().size(),
               "the curves changed");
}

void CheckRunFiles(std::span<const uint8_t> input) {
  FaultDisk files;
  BlobFolder blobs(files, "run");
  switch (input.empty() ? 0 : input[0] / 8 % 8) {
    case 0:
      return CheckSnapshot(files, blobs, input);
    case 1:
      return CheckDelta(files, blobs, input);
    case 2:
      return CheckAnswer(files, blobs, input);
    case 4:
      return CheckCurves(files, input);
    default:
      return CheckWitness(files, input);
  }
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("run_files", CheckRunFiles)
