// Curves for TensorBoard: a file of scalars that `tensorboard --logdir` reads, also while it grows.
//
// The file is a sequence of records in TensorFlow's framing, all numbers little endian:
//   uint64 length | uint32 masked CRC-32C of those 8 bytes | data | uint32 masked CRC-32C of data
// where masked(c) = rotate_right(c, 15) + 0xa282ead8, and data is an Event
// (proto/causeway/tensorboard/event.proto).
#ifndef CAUSEWAY_WORKER_MEMBER_TENSORBOARD_WRITER_H_
#define CAUSEWAY_WORKER_MEMBER_TENSORBOARD_WRITER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/tensorboard/event.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"

namespace causeway::worker {

uint32_t Crc32c(std::span<const uint8_t> bytes);
// One record of the framing above.
std::string TensorBoardRecord(absl::string_view data);

// Not thread-safe.
class TensorBoardWriter {
 public:
  // {"train/loss", 2.5}
  using Scalars = std::vector<std::pair<std::string, double>>;

  // Creates `folder` and in it a new file, events.out.tfevents.SECONDS.WORKER, beside those of
  // former processes. What they say of steps from `first_step` on is void, since it is trained
  // again. The clock outlives the writer.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Create(FileSystem& file_system,
                                                                   const std::string& folder,
                                                                   const std::string& worker_id,
                                                                   int64_t first_step,
                                                                   const Clock& clock);

  // One event with all of them. What is not finite is left out.
  absl::Status Add(int64_t step, const Scalars& scalars);

  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(std::unique_ptr<WritableFile> file, std::string path, const Clock& clock)
      : file_(std::move(file)), path_(std::move(path)), clock_(clock) {}
  absl::Status Write(tensorboard::Event event);

  const std::unique_ptr<WritableFile> file_;
  const std::string path_;
  const Clock& clock_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_MEMBER_TENSORBOARD_WRITER_H_
