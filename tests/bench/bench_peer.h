// The other end of a benchmark over loopback, in a process of its own: so that its CPU time is
// known apart from this process's.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::bench {

class BenchPeer {
 public:
  // Runs this program again with these arguments, which make it call ServeBenchPeer.
  static absl::StatusOr<BenchPeer> Start(const std::vector<std::string>& arguments);
  // Ends the process.
  ~BenchPeer();
  BenchPeer(BenchPeer&& other) noexcept;
  BenchPeer& operator=(BenchPeer&&) = delete;

  int port() const { return port_; }
  double CpuSeconds() const;

 private:
  BenchPeer(pid_t process, int to) : process_(process), to_(to) {}

  pid_t process_;
  int to_;
  int port_ = 0;
};

// In that process: says `port`. Returns when the other side is gone.
void ServeBenchPeer(int port);

}  // namespace causeway::bench
