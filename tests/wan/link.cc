// causeway-wan-link: a long link between two network namespaces of this machine, in user space.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "nlohmann/json.hpp"
#include "tests/wan/link_direction.h"
#include "tests/wan/wire_packet.h"

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

// A network interface whose wire is this process, in a network namespace of the caller's choice.
// Not thread-safe. The interface goes away with the object.
class TunDevice {
 public:
  // Creates the interface `name` in the namespace that the file (/proc/PID/ns/net, or one below
  // /run/netns) stands for. TCP leaves segmentation and checksums to this side (wire_packet.h).
  // FAILED_PRECONDITION says which right or device is missing.
  static absl::StatusOr<TunDevice> Open(const std::string& namespace_file, const std::string& name);
  TunDevice(TunDevice&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TunDevice& operator=(TunDevice&&) = delete;
  ~TunDevice() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  // The next frame that the namespace sends; empty if there is none now. Valid until the next call.
  std::span<const uint8_t> Read(std::span<uint8_t> buffer) const {
    const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
    return buffer.first(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  }
  // A frame for the namespace. False if it was not taken: the interface is down, most likely.
  bool Write(std::span<const uint8_t> frame) const {
    return write(fd_, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size());
  }

 private:
  explicit TunDevice(int fd) : fd_(fd) {}

  int fd_ = -1;
};

absl::Status Failed(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

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

// The two ends of a link.
enum class End { kNear = 0, kFar = 1 };

// Breaks the TCP connections that cross a link, as a failing firewall does: both ends are reset.
//
// An end accepts a reset only at exactly the next byte that it expects, and answers a reset that is
// merely near with a packet that says which byte that is (RFC 5961). So a connection stays broken:
// each later packet of it is dropped and answered with a reset at what the packet acknowledges.
//
// Not thread-safe.
class ConnectionBreaker {
 public:
  struct Reset {
    End to;
    std::vector<uint8_t> frame;
  };

  // The fate of a packet that enters the link at that end.
  struct Verdict {
    bool drop = false;
    std::vector<Reset> resets;
  };
  Verdict Observe(End from, const TcpHeader& header) {
    if (broken_.contains(header.endpoints)) {
      // A new connection may use the ports of a broken one.
      if (!header.syn) {
        Verdict verdict{.drop = true, .resets = {}};
        if (!header.reset) verdict.resets.push_back({from, MakeReset(header)});
        return verdict;
      }
      broken_.erase(header.endpoints);
      broken_.erase(header.endpoints.Reversed());
    }
    if (header.reset) {
      seen_.erase(header.endpoints);
      seen_.erase(header.endpoints.Reversed());
    } else {
      seen_.insert_or_assign(header.endpoints, LastPacket{from, header});
    }
    return {};
  }

  // From now on all connections seen so far are broken. The resets to begin with.
  std::vector<Reset> BreakAll() {
    std::vector<Reset> resets;
    for (const auto& [endpoints, last] : seen_) {
      // Both directions of a connection are here, unless its first packet was the last one.
      const bool counted = broken_.contains(endpoints);
      if (!counted) ++connections_broken_;
      broken_.insert(endpoints);
      broken_.insert(endpoints.Reversed());
      resets.push_back({last.from, MakeReset(last.header)});
    }
    seen_.clear();
    return resets;
  }

  int64_t connections_broken() const { return connections_broken_; }

 private:
  struct LastPacket {
    End from;
    TcpHeader header;
  };

  std::map<TcpEndpoints, LastPacket> seen_;  // By sender.
  std::set<TcpEndpoints> broken_;            // By sender.
  int64_t connections_broken_ = 0;
};

using nlohmann::json;

constexpr int kFramesPerTurn = 16;
// While packets flow they are looked after so often: delays are as exact as that, and the processor
// is left to the ends of the link.
constexpr timespec kTurn = {0, 200'000};
constexpr double kMostSeconds = 86400;

End Other(End end) { return end == End::kNear ? End::kFar : End::kNear; }

int64_t MonotonicNs() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

absl::StatusOr<End> ParseDirection(const std::string& word) {
  if (word == "up") return End::kNear;
  if (word == "down") return End::kFar;
  return absl::InvalidArgumentError(absl::StrCat("a direction is up or down, not \"", word, "\""));
}

absl::StatusOr<double> ParseNumber(const std::string& word, double least, double most) {
  double value = 0;
  if (absl::SimpleAtod(word, &value) && value >= least && value <= most) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("expected a number from ", least, " to ", most, ", not \"", word, "\""));
}

json ToJson(const SegmentCount& count) {
  return {{"packets", count.packets}, {"bytes", count.bytes}};
}

// A long link between two network namespaces: two TUN devices, a LinkDirection each way, and
// commands that change it while it works. Not thread-safe. Up is from the near end to the far one.
class Link {
 public:
  Link(TunDevice near_end, TunDevice far_end, const DirectionSettings& settings, uint64_t seed);

  // Moves packets until `command_fd` can be read.
  void RunUntilReadable(int command_fd);

  // One line of the command language (kHelp has it). INVALID_ARGUMENT says what is expected.
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

Link::Link(TunDevice near_end, TunDevice far_end, const DirectionSettings& settings, uint64_t seed)
    : devices_{std::move(near_end), std::move(far_end)},
      directions_{LinkDirection(settings, seed), LinkDirection(settings, ~seed)},
      begin_ns_(MonotonicNs()),
      begin_unix_s_(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())),
      buffer_(kMaxFrameBytes) {}

int64_t Link::NowNs() const { return MonotonicNs() - begin_ns_; }

void Link::WriteTo(End end, std::span<const uint8_t> frame) {
  if (!device(end).Write(frame)) ++refused_;
}

void Link::SendResets(const std::vector<ConnectionBreaker::Reset>& resets) {
  for (const ConnectionBreaker::Reset& reset : resets) WriteTo(reset.to, reset.frame);
}

bool Link::ReadOne(End from) {
  const std::span<const uint8_t> frame = device(from).Read(buffer_);
  if (frame.empty()) return false;
  const absl::StatusOr<FrameLayout> layout = ParseFrame(frame);
  if (!layout.ok()) {
    ++malformed_;
    return true;
  }
  if (layout->tcp.has_value()) {
    const ConnectionBreaker::Verdict verdict = breaker_.Observe(from, *layout->tcp);
    SendResets(verdict.resets);
    if (verdict.drop) return true;
  }
  direction(from).Arrive(NowNs(), *layout, frame);
  return true;
}

void Link::Advance() {
  for (const End from : {End::kNear, End::kFar}) {
    direction(from).Advance(
        NowNs(), [this, from](std::span<const uint8_t> frame) { WriteTo(Other(from), frame); });
  }
  for (size_t i = 0; i < triggers_.size();) {
    if (direction(triggers_[i].from).counters().delivered.bytes < triggers_[i].delivered_bytes) {
      ++i;
      continue;
    }
    const std::vector<std::string> action = std::move(triggers_[i].action);
    triggers_.erase(triggers_.begin() + static_cast<ptrdiff_t>(i));
    ++triggers_fired_;
    // It was understood when the trigger was set.
    ObeyWords(action).IgnoreError();
  }
}

void Link::RunUntilReadable(int command_fd) {
  std::array<pollfd, 3> polled = {
      {{devices_[0].fd(), POLLIN, 0}, {devices_[1].fd(), POLLIN, 0}, {command_fd, POLLIN, 0}}};
  for (;;) {
    bool more = false;
    for (const End end : {End::kNear, End::kFar}) {
      if (polled[static_cast<size_t>(end)].revents == 0) continue;
      int frames = 0;
      while (frames < kFramesPerTurn && ReadOne(end)) ++frames;
      more = more || frames == kFramesPerTurn;
    }
    Advance();
    if (!more) nanosleep(&kTurn, nullptr);
    const int64_t next =
        std::min(direction(End::kNear).NextEventNs(), direction(End::kFar).NextEventNs());
    timespec wait = {};
    if (!more && next != kForever) {
      const int64_t ns = std::max<int64_t>(0, next - NowNs());
      wait = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    }
    const bool forever = !more && next == kForever;
    ppoll(polled.data(), polled.size(), forever ? nullptr : &wait, nullptr);
    if (polled[2].revents != 0) return;
  }
}

absl::Status Link::Change(std::span<const std::string> words) {
  DirectionSettings settings = directions_[0].settings();
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::string& name = words[i];
    ASSIGN_OR_RETURN(const double value, ParseNumber(words[i + 1], 0, 1e12));
    if (name == "rate_mbit" && value > 0) {
      settings.rate_bits_per_s = value * 1e6;
    } else if (name == "delay_ms" && value <= 1000 * kMostSeconds) {
      settings.delay_ns = static_cast<int64_t>(value * 1e6);
    } else if (name == "loss_percent" && value <= 100) {
      settings.loss = value / 100;
    } else if (name == "queue_bytes") {
      settings.queue_bytes = static_cast<int64_t>(value);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected rate_mbit, delay_ms, loss_percent or queue_bytes and its value, not \"", name,
          " ", words[i + 1], "\""));
    }
  }
  for (LinkDirection& each : directions_) each.Change(settings);
  return absl::OkStatus();
}

absl::StatusOr<json> Link::Obey(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  return ObeyWords(words);
}

absl::StatusOr<json> Link::ObeyWords(std::span<const std::string> words) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "set" && words.size() >= 3 && words.size() % 2 == 1) {
    RETURN_IF_ERROR(Change(words.subspan(1)));
    return json::object();
  }
  if (command == "cut" && words.size() == 2) {
    ASSIGN_OR_RETURN(const double seconds, ParseNumber(words[1], 0, kMostSeconds));
    const int64_t until = NowNs() + static_cast<int64_t>(seconds * kNsPerSecond);
    for (LinkDirection& each : directions_) each.CutUntil(until);
    return json::object();
  }
  if (command == "reset" && words.size() == 1) {
    // Packets on the way would otherwise move the byte that an end expects.
    for (LinkDirection& each : directions_) each.Clear();
    SendResets(breaker_.BreakAll());
    return json::object();
  }
  if (command == "when" && words.size() >= 4) {
    ASSIGN_OR_RETURN(const End from, ParseDirection(words[1]));
    ASSIGN_OR_RETURN(const double bytes, ParseNumber(words[2], 0, 1e15));
    const std::vector<std::string> action(words.begin() + 3, words.end());
    const bool known = (action[0] == "cut" && action.size() == 2 &&
                        ParseNumber(action[1], 0, kMostSeconds).ok()) ||
                       (action[0] == "reset" && action.size() == 1);
    if (!known) return absl::InvalidArgumentError("when BYTES have passed: cut SECONDS or reset");
    triggers_.push_back(
        {from, direction(from).counters().delivered.bytes + static_cast<int64_t>(bytes), action});
    return json::object();
  }
  if (words.size() == 1 && (command == "counters" || command == "timeline")) {
    const bool with_timeline = command == "timeline";
    return json{{"up", Describe(End::kNear, with_timeline)},
                {"down", Describe(End::kFar, with_timeline)},
                {"now_s", static_cast<double>(NowNs()) / kNsPerSecond},
                {"began_unix_s", begin_unix_s_},
                {"timeline_bin_s", static_cast<double>(kTimelineBinNs) / kNsPerSecond},
                {"triggers_fired", triggers_fired_},
                {"connections_broken", breaker_.connections_broken()},
                {"malformed", malformed_},
                {"refused", refused_},
                {"cpu_s", CpuSeconds()}};
  }
  return absl::InvalidArgumentError(
      "expected: set NAME VALUE ..., cut SECONDS, reset, when up|down BYTES cut SECONDS|reset, "
      "counters or "
      "timeline");
}

json Link::Describe(End from, bool with_timeline) const {
  const LinkDirection& link = directions_[static_cast<size_t>(from)];
  const DirectionCounters& counters = link.counters();
  json text = {{"rate_mbit", link.settings().rate_bits_per_s / 1e6},
               {"delay_ms", static_cast<double>(link.settings().delay_ns) / 1e6},
               {"loss_percent", link.settings().loss * 100},
               {"queue_bytes", link.settings().QueueBytes()},
               {"arrived", ToJson(counters.arrived)},
               {"delivered", ToJson(counters.delivered)},
               {"dropped_by_queue", ToJson(counters.dropped_by_queue)},
               {"lost", ToJson(counters.lost)},
               {"cut", ToJson(counters.cut)},
               {"largest_queue_bytes", counters.largest_queue_bytes},
               {"late_bytes", counters.late_bytes},
               {"latest_ms", static_cast<double>(counters.latest_ns) / 1e6}};
  if (with_timeline) text["timeline"] = link.timeline();
  return text;
}

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

  set NAME VALUE ...                  rate_mbit, delay_ms (one way), loss_percent, queue_bytes
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
