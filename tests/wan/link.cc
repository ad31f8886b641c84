#include "tests/wan/link.h"

#include <poll.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace causeway::wan {
namespace {

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

}  // namespace

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
  if (words.size() < 3 || words.size() % 2 == 0) {
    return absl::InvalidArgumentError("expected: set up|down|both NAME VALUE ...");
  }
  std::vector<End> ends = {End::kNear, End::kFar};
  if (words[0] != "both") {
    ASSIGN_OR_RETURN(const End only, ParseDirection(words[0]));
    ends = {only};
  }
  for (const End from : ends) {
    DirectionSettings settings = direction(from).settings();
    for (size_t i = 1; i < words.size(); i += 2) {
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
        return absl::InvalidArgumentError(
            absl::StrCat("expected rate_mbit, delay_ms, loss_percent or queue_bytes and its value, "
                         "not \"",
                         name, " ", words[i + 1], "\""));
      }
    }
    direction(from).Change(settings);
  }
  return absl::OkStatus();
}

absl::StatusOr<json> Link::Obey(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  return ObeyWords(words);
}

absl::StatusOr<json> Link::ObeyWords(std::span<const std::string> words) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "set") {
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
      "expected: set, cut SECONDS, reset, when up|down BYTES cut SECONDS|reset, counters or "
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

}  // namespace causeway::wan
