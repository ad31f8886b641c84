// A long link between two network namespaces: two TUN devices, a LinkDirection each way, and
// commands that change it while it works.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "tests/wan/connection_breaker.h"
#include "tests/wan/link_direction.h"
#include "tests/wan/tun_device.h"

namespace causeway::wan {

// Not thread-safe. Up is from the near end to the far one.
class Link {
 public:
  Link(TunDevice near_end, TunDevice far_end, const DirectionSettings& settings, uint64_t seed);

  // Moves packets until `command_fd` can be read.
  void RunUntilReadable(int command_fd);

  // One line of the command language (link_main.cc has it). INVALID_ARGUMENT says what is expected.
  absl::StatusOr<nlohmann::json> Obey(const std::string& line);

 private:
  struct Trigger {
    End from;
    int64_t delivered_bytes;
    std::vector<std::string> action;
  };

  int64_t NowNs() const;
  LinkDirection& direction(End from) { return directions_[static_cast<size_t>(from)]; }
  TunDevice& device(End end) { return devices_[static_cast<size_t>(end)]; }
  // False once the device has nothing more to read.
  bool ReadOne(End from);
  void Advance();
  void WriteTo(End end, std::span<const uint8_t> frame);
  void SendResets(const std::vector<ConnectionBreaker::Reset>& resets);
  absl::StatusOr<nlohmann::json> ObeyWords(std::span<const std::string> words);
  absl::Status Change(std::span<const std::string> words);
  nlohmann::json Describe(End from, bool with_timeline) const;

  std::array<TunDevice, 2> devices_;
  std::array<LinkDirection, 2> directions_;
  ConnectionBreaker breaker_;
  std::vector<Trigger> triggers_;
  int64_t triggers_fired_ = 0;
  int64_t malformed_ = 0;
  int64_t refused_ = 0;
  const int64_t begin_ns_;
  const double begin_unix_s_;
  std::vector<uint8_t> buffer_;
};

}  // namespace causeway::wan
