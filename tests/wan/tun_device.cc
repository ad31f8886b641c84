#include "tests/wan/tun_device.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace causeway::wan {
namespace {

absl::Status Failed(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<TunDevice> TunDevice::Open(const std::string& namespace_file,
                                          const std::string& name) {
  if (name.empty() || name.size() >= IFNAMSIZ) {
    return absl::InvalidArgumentError(absl::StrCat("an interface has a name of 1 .. ", IFNAMSIZ - 1,
                                                   " characters, not \"", name, "\""));
  }
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (home < 0) return Failed("/proc/self/ns/net");
  const absl::Cleanup close_home = [home] { close(home); };
  const int away = open(namespace_file.c_str(), O_RDONLY | O_CLOEXEC);
  if (away < 0) return Failed(namespace_file);
  const absl::Cleanup close_away = [away] { close(away); };

  // A device belongs to the namespace that its file was opened in.
  if (setns(away, CLONE_NEWNET) != 0) return Failed(absl::StrCat("entering ", namespace_file));
  TunDevice device(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  const int open_error = errno;
  if (setns(home, CLONE_NEWNET) != 0) return Failed("returning to the own network namespace");
  errno = open_error;
  if (device.fd_ < 0) return Failed("/dev/net/tun");

  ifreq request = {};
  std::memcpy(request.ifr_name, name.data(), name.size());
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(device.fd_, TUNSETIFF, &request) != 0) return Failed(absl::StrCat("TUNSETIFF ", name));
  if (ioctl(device.fd_, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) {
    return Failed("TUNSETOFFLOAD");
  }
  return device;
}

TunDevice::TunDevice(TunDevice&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

TunDevice& TunDevice::operator=(TunDevice&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

TunDevice::~TunDevice() {
  if (fd_ >= 0) close(fd_);
}

std::span<const uint8_t> TunDevice::Read(std::span<uint8_t> buffer) {
  const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
  return buffer.first(bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

bool TunDevice::Write(std::span<const uint8_t> frame) {
  return write(fd_, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size());
}

}  // namespace causeway::wan
