// causeway-wan-link: a long link between two network namespaces of this machine, in user space.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "nlohmann/json.hpp"
#include "tests/wan/link.h"

ABSL_FLAG(std::string, near_namespace, "", "file of the namespace at the near end");
ABSL_FLAG(std::string, near_device, "wan0", "interface at the near end");
ABSL_FLAG(std::string, far_namespace, "", "file of the namespace at the far end");
ABSL_FLAG(std::string, far_device, "wan0", "interface at the far end");
ABSL_FLAG(double, rate_mbit, 1000, "rate each way, 10^6 bits per second of IP packets");
ABSL_FLAG(double, rtt_ms, 100, "round trip: each way takes half of it");
ABSL_FLAG(double, loss_percent, 0, "share of the packets that is lost at random, each way");
ABSL_FLAG(int64_t, queue_bytes, 0, "what each queue holds; 0: one bandwidth-delay product");
ABSL_FLAG(uint64_t, seed, 1, "of the random losses");

namespace causeway::wan {
namespace {

constexpr char kProgram[] = "causeway-wan-link";
constexpr char kHelp[] =
    R"(causeway-wan-link makes a long link between two network namespaces of this machine.

  causeway-wan-link --near_namespace=FILE --far_namespace=FILE [--near_device=wan0]
      [--far_device=wan0] [--rate_mbit=1000] [--rtt_ms=100] [--loss_percent=0] [--queue_bytes=0]
      [--seed=1]

Creates an interface in either namespace (FILE is /proc/PID/ns/net) and carries packets between them
until standard input ends. Prints {"ready": true} once the interfaces are there; they still want an
address each. Then it reads commands, one per line, and answers each with a line of JSON,
{"error": "..."} if it did not understand:

  set up|down|both NAME VALUE ...     rate_mbit, delay_ms (one way), loss_percent, queue_bytes
  cut SECONDS                         nothing arrives anywhere meanwhile
  reset                               breaks every TCP connection: both ends are reset
  when up|down BYTES cut SECONDS      the same once so many more bytes have arrived
  when up|down BYTES reset
  counters                            of segments: arrived, delivered, dropped, lost, cut
  timeline                            the same, with the bytes delivered in every 100 ms

Up is from the near end to the far one. Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and /dev/net/tun.
)";

// Reads what there is; false at the end of the input.
bool ReadInput(std::string& input) {
  char buffer[4096];
  const ssize_t bytes = read(STDIN_FILENO, buffer, sizeof(buffer));
  if (bytes <= 0) return false;
  input.append(buffer, static_cast<size_t>(bytes));
  return true;
}

void Answer(const nlohmann::json& answer) {
  std::printf("%s\n", answer.dump().c_str());
  std::fflush(stdout);
}

absl::StatusOr<DirectionSettings> SettingsFromFlags() {
  const double rate_mbit = absl::GetFlag(FLAGS_rate_mbit);
  const double rtt_ms = absl::GetFlag(FLAGS_rtt_ms);
  const double loss_percent = absl::GetFlag(FLAGS_loss_percent);
  if (!(rate_mbit > 0 && rtt_ms >= 0 && rtt_ms < 1e6 && loss_percent >= 0 && loss_percent <= 100) ||
      absl::GetFlag(FLAGS_queue_bytes) < 0) {
    return absl::InvalidArgumentError(
        "--rate_mbit must be above 0, --rtt_ms 0 .. 10^6, --loss_percent 0 .. 100, --queue_bytes "
        "not negative");
  }
  return DirectionSettings{.rate_bits_per_s = rate_mbit * 1e6,
                           .delay_ns = static_cast<int64_t>(rtt_ms / 2 * 1e6),
                           .loss = loss_percent / 100,
                           .queue_bytes = absl::GetFlag(FLAGS_queue_bytes)};
}

absl::Status Serve() {
  ASSIGN_OR_RETURN(const DirectionSettings settings, SettingsFromFlags());
  ASSIGN_OR_RETURN(TunDevice near_end, TunDevice::Open(absl::GetFlag(FLAGS_near_namespace),
                                                       absl::GetFlag(FLAGS_near_device)));
  ASSIGN_OR_RETURN(TunDevice far_end, TunDevice::Open(absl::GetFlag(FLAGS_far_namespace),
                                                      absl::GetFlag(FLAGS_far_device)));
  Link link(std::move(near_end), std::move(far_end), settings, absl::GetFlag(FLAGS_seed));
  Answer({{"ready", true}});
  std::string input;
  for (;;) {
    link.RunUntilReadable(STDIN_FILENO);
    if (!ReadInput(input)) return absl::OkStatus();
    for (size_t end; (end = input.find('\n')) != std::string::npos; input.erase(0, end + 1)) {
      const absl::StatusOr<nlohmann::json> answer = link.Obey(input.substr(0, end));
      Answer(answer.ok() ? *answer
                         : nlohmann::json{{"error", std::string(answer.status().message())}});
    }
  }
}

int Main(int argc, char** argv) {
  if (!ParseCommandLine(argc, argv, kHelp).empty()) {
    return Refuse(kProgram, absl::InvalidArgumentError("takes flags alone; --help explains"));
  }
  // Whoever started it ends it by closing its input, after Ctrl-C as well.
  std::signal(SIGINT, SIG_IGN);
  // A link is no competitor of its ends for the processor: it wakes up on time, and goes first.
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  const sched_param first = {.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_RR, &first) != 0) setpriority(PRIO_PROCESS, 0, -15);
  const absl::Status status = Serve();
  return status.ok() ? 0 : Refuse(kProgram, status);
}

}  // namespace
}  // namespace causeway::wan

int main(int argc, char** argv) { return causeway::wan::Main(argc, argv); }
