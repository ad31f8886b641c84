// Attacks on HTTP/2 itself, below all that the protocol knows.
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "tests/security/hostile_client/credentials.h"
#include "tests/security/hostile_client/raw_http2.h"
#include "tests/security/hostile_client/scenarios.h"
#include "tests/security/hostile_client/team.h"

namespace causeway::hostile {
namespace {

constexpr char kDescribe[] = "/causeway.v1.Session/Describe";
constexpr absl::Duration kAttack = absl::Seconds(5);
constexpr int64_t kFloodedRounds = 3;

int64_t MemoryInUse() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

double CpuSeconds(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string MiB(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

// Counts what an attack cost the process, without the threads that attack.
struct Cost {
  int64_t memory = 0;  // The most at once.
  double cpu_seconds = 0;
};

// Runs the attacks, each on a thread of its own, and an honest round after the other meanwhile.
absl::StatusOr<Cost> Attack(Team& team, int64_t first_round,
                            const std::vector<std::function<void()>>& attacks) {
  std::atomic<int> left = static_cast<int>(attacks.size());
  std::atomic<double> attackers_cpu = 0;
  const int64_t memory_before = MemoryInUse();
  const double cpu_before = CpuSeconds(RUSAGE_SELF);
  Cost cost;
  std::vector<std::thread> threads;
  for (const std::function<void()>& attack : attacks) {
    threads.emplace_back([&] {
      attack();
      attackers_cpu += CpuSeconds(RUSAGE_THREAD);
      --left;
    });
  }
  std::thread watch([&] {
    while (left > 0) {
      cost.memory = std::max(cost.memory, MemoryInUse() - memory_before);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  absl::Status played;
  for (int64_t round = first_round; played.ok() && round < first_round + kFloodedRounds; ++round) {
    played = team.DoRound(round);
  }
  for (std::thread& thread : threads) thread.join();
  watch.join();
  RETURN_IF_ERROR(played);
  cost.cpu_seconds = CpuSeconds(RUSAGE_SELF) - cpu_before - attackers_cpu;
  return cost;
}

int PortOf(const Run& run) {
  const std::string address = run.address();
  return std::stoi(address.substr(address.rfind(':') + 1));
}

// Headers that never end, over many connections, of a client that acknowledges no limit and has no
// credentials: tokens are asked for once the headers are whole.
absl::StatusOr<Outcome> EndlessHeaders() {
  constexpr int kConnections = 16;
  constexpr size_t kValueBytes = 16000;
  constexpr int64_t kMost = int64_t{64} << 20;  // Bytes on one connection, if nobody ends it.
  Credentials credentials;
  Run run({.server = credentials.Server([&](server::CoordinatorServer::Options& options) {
    options.security.ca_file.clear();
    options.security.token_file = credentials.tokens();
  })});
  RETURN_IF_ERROR(run.Start());
  Team team(run, [&](const std::string& id) { return credentials.Token(run, id); });
  RETURN_IF_ERROR(team.Enter());
  std::atomic<int> ended = 0;
  const auto attack = [&] {
    const auto connection = RawHttp2::Open(PortOf(run), {});
    if (!connection.ok()) return;
    const absl::Time began = absl::Now();
    (*connection)->Send(Frame(FrameType::kHeaders, 0, 1, CallHeaders(kDescribe)));
    const std::string value(kValueBytes, 'v');
    bool open = true;
    for (int64_t sent = 0; open && sent < kMost && absl::Now() - began < kAttack;) {
      open =
          (*connection)
              ->Send(Frame(FrameType::kContinuation, 0, 1, Header(absl::StrCat("k", sent), value)));
      sent += kValueBytes;
    }
    ended += !open || (*connection)->AwaitEnd(began + kAttack);
  };
  const absl::StatusOr<Cost> cost =
      Attack(team, 1, std::vector<std::function<void()>>(kConnections, attack));
  RETURN_IF_ERROR(cost.status());
  const absl::Status same = CompareWithAlone(run, {}, kFloodedRounds);
  return Outcome{.held = same.ok() && ended == kConnections,
                 .what = absl::StrCat(ended.load(), " of ", kConnections,
                                      " connections were ended, ", MiB(cost->memory), " at once; ",
                                      same.ok() ? "the bits of the honest run" : same.message())};
}

// Streams that are opened and reset at once (CVE-2023-44487).
absl::StatusOr<Outcome> RapidReset() {
  Credentials credentials;
  Run run({.server = credentials.Server([&](server::CoordinatorServer::Options& options) {
    options.security.token_file = credentials.tokens();
  })});
  RETURN_IF_ERROR(run.Start());
  Team team(run, [&](const std::string& id) { return credentials.Certificate(run, id); });
  RETURN_IF_ERROR(team.Enter());
  const PemPair member = IssueIdentity(credentials.authority(), "causeway://*/worker/guest");
  const SecurityOptions with_certificate =
      credentials.folder().WriteSet("guest", credentials.authority().pem(), member);
  struct Kind {
    const char* name;
    SecurityOptions security;
    bool admitted;  // It has shown who it is by a call before.
    bool reads;
    bool must_end;  // Else it depends on how much the link carries.
  };
  const Kind kinds[] = {{"a stranger where there are tokens", {}, false, true, true},
                        {"a member whose calls are all reset", with_certificate, false, true, true},
                        {"a member that does not read", with_certificate, true, false, false},
                        {"a member that reads", with_certificate, true, true, false}};
  Outcome outcome = {.held = true};
  int64_t round = 1;
  for (const Kind& kind : kinds) {
    std::atomic<int64_t> resets = 0;
    std::atomic<bool> ended = false;
    const auto attack = [&] {
      const auto connection = RawHttp2::Open(PortOf(run), kind.security);
      if (!connection.ok()) return;
      const std::string headers = CallHeaders(kDescribe);
      const std::string why("\0\0\0\x08", 4);
      const absl::Time began = absl::Now();
      if (kind.admitted) {
        // An empty message, which is answered after it was admitted.
        (*connection)
            ->Send(absl::StrCat(Frame(FrameType::kHeaders, kEndHeaders, 1, headers),
                                Frame(FrameType::kData, kEndStream, 1, std::string(5, '\0'))));
        if (!(*connection)->AwaitAnswer(1)) return;
      }
      for (uint32_t stream = 3; !ended && absl::Now() - began < kAttack;) {
        std::string many;
        for (int i = 0; i < 100; ++i, stream += 2) {
          absl::StrAppend(&many, Frame(FrameType::kHeaders, kEndHeaders, stream, headers),
                          Frame(FrameType::kReset, 0, stream, why));
        }
        ended = !(*connection)->Send(many) || (kind.reads && !(*connection)->Drain());
        resets += 100;
      }
    };
    const absl::StatusOr<Cost> cost = Attack(team, round, {attack});
    round += kFloodedRounds;
    RETURN_IF_ERROR(cost.status());
    outcome.held = outcome.held && (ended || !kind.must_end);
    outcome.table.push_back(
        absl::StrCat(kind.name, ": ", resets.load(), " resets, ",
                     static_cast<int>(1e6 * cost->cpu_seconds / static_cast<double>(resets)),
                     " us of a core each (the rounds included), ", MiB(cost->memory), " at once, ",
                     ended ? "ended" : "goes on"));
  }
  const absl::Status same = CompareWithAlone(run, {}, round - 1);
  outcome.held = outcome.held && same.ok();
  outcome.what = same.ok() ? "the bits of the honest run" : std::string(same.message());
  return outcome;
}

}  // namespace

std::vector<Scenario> Http2Scenarios() {
  return {
      {"endless_headers", "16 strangers send headers of 64 MiB and acknowledge no limit",
       EndlessHeaders},
      {"rapid_reset", "streams are opened and reset for 5 s, as fast as they go", RapidReset},
  };
}

}  // namespace causeway::hostile
