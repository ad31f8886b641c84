// A network interface whose wire is this process, in a network namespace of the caller's choice.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::wan {

// Not thread-safe. The interface goes away with the object.
class TunDevice {
 public:
  // Creates the interface `name` in the namespace that the file (/proc/PID/ns/net, or one below
  // /run/netns) stands for. TCP leaves segmentation and checksums to this side (wire_packet.h).
  // FAILED_PRECONDITION says which right or device is missing.
  static absl::StatusOr<TunDevice> Open(const std::string& namespace_file, const std::string& name);
  TunDevice(TunDevice&& other) noexcept;
  TunDevice& operator=(TunDevice&& other) noexcept;
  ~TunDevice();

  int fd() const { return fd_; }
  // The next frame that the namespace sends; empty if there is none now. Valid until the next call.
  std::span<const uint8_t> Read(std::span<uint8_t> buffer);
  // A frame for the namespace. False if it was not taken: the interface is down, most likely.
  bool Write(std::span<const uint8_t> frame);

 private:
  explicit TunDevice(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace causeway::wan
