#include "worker/group/site_rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr uint32_t kHelloMagic = 0x43577336;
constexpr absl::Duration kRetry = absl::Milliseconds(100);
constexpr size_t kMostNamed = 8;
constexpr size_t kMostSilent = 256;
constexpr int kBacklog = 1024;
// For the rest of what somebody has begun to say.
constexpr absl::Duration kHelloPatience = absl::Seconds(1);
// For the proof of who has been asked for one.
constexpr absl::Duration kProofPatience = absl::Seconds(5);

enum Refusal : int32_t {
  kWelcome = 0,
  kOtherToken = 1,
  kOtherSize = 2,
  kTwice = 3,
  kProve = 4,  // Not yet: the caller is to prove that it knows the secret.
  kNoSecret = 5
};

using Nonce = std::array<uint8_t, 16>;
using Proof = std::array<uint8_t, 32>;

// What both sides say first. With a secret the caller says a second one, with its proof, after
// process 0 has proven itself.
struct Hello {
  uint32_t magic = kHelloMagic;
  int32_t process = 0;
  int32_t processes = 0;
  int32_t refusal = kWelcome;  // Of process 0, to who is not welcome.
  uint64_t token = 0;
  Nonce nonce = {};
  Proof proof = {};
};

absl::StatusOr<Nonce> MakeNonce() {
  Nonce nonce;
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    return absl::InternalError("the system gives no random bytes");
  }
  return nonce;
}

// HMAC-SHA256 over who proves it, and what each side made up: no proof is of use twice.
Proof Prove(const std::string& secret, int32_t prover, int32_t caller, const Nonce& of_caller,
            const Nonce& of_first) {
  std::array<uint8_t, 2 * sizeof(int32_t) + 2 * sizeof(Nonce)> text;
  uint8_t* at = text.data();
  const auto append = [&](const void* bytes, size_t size) {
    std::memcpy(at, bytes, size);
    at += size;
  };
  append(&prover, sizeof(prover));
  append(&caller, sizeof(caller));
  append(of_caller.data(), of_caller.size());
  append(of_first.data(), of_first.size());
  Proof proof = {};
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(), text.size(),
       proof.data(), &size);
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

class Socket {
 public:
  explicit Socket(int socket) : socket_(socket) {}
  ~Socket() {
    if (socket_ >= 0) (void)close(socket_);
  }
  Socket(Socket&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  int get() const { return socket_; }
  int release() { return std::exchange(socket_, -1); }

 private:
  int socket_;
};

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 0, std::numeric_limits<int>::max()));
}

bool WaitReadable(int socket, absl::Time deadline) {
  pollfd poll_for = {.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&poll_for, 1, Milliseconds(deadline - absl::Now())) > 0;
}

// Whether the other side is gone, whatever it said before.
bool HasHungUp(int socket) {
  pollfd poll_for = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&poll_for, 1, 0) > 0;
}

bool SendHello(int socket, const Hello& hello) {
  return send(socket, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
}

std::optional<Hello> ReceiveHello(int socket, absl::Time deadline) {
  Hello hello;
  auto* const bytes = reinterpret_cast<uint8_t*>(&hello);
  for (size_t got = 0; got < sizeof(hello);) {
    if (!WaitReadable(socket, deadline)) return std::nullopt;
    const ssize_t received = recv(socket, bytes + got, sizeof(hello) - got, 0);
    if (received <= 0) return std::nullopt;
    got += static_cast<size_t>(received);
  }
  if (hello.magic != kHelloMagic) return std::nullopt;
  return hello;
}

// Whether it is connected to itself: where nobody listens yet, a caller on the same machine may be
// given the very port that it calls.
bool IsOwnEcho(int socket) {
  sockaddr_storage here = {};
  sockaddr_storage there = {};
  socklen_t here_size = sizeof(here);
  socklen_t there_size = sizeof(there);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
         here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

// Connected, or nothing: nobody listens there yet, or the name is not known yet.
std::optional<Socket> Connect(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() >= 0 && connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        !IsOwnEcho(socket.get())) {
      return socket;
    }
  }
  return std::nullopt;
}

std::string NameOf(int process) { return absl::StrCat("process ", process, " of this site"); }

using Links = std::vector<std::unique_ptr<SiteLink>>;

// Process 0's side.
class Gathering {
 public:
  explicit Gathering(const SiteRendezvous& rendezvous)
      : rendezvous_(rendezvous), processes_(rendezvous.launch.processes) {
    for (int i = 1; i < processes_; ++i) came_.emplace_back(-1);
  }

  // Until all have come.
  absl::Status Gather(absl::Time deadline);
  // To those that have.
  Links TakeLinks();

 private:
  absl::Status Listen();
  absl::StatusOr<bool> AllAreHere();
  // Of a caller who has something to say.
  absl::Status Hear(Socket socket);
  // Whether the caller knows the secret; it has heard that process 0 does.
  absl::StatusOr<bool> HasProven(const Socket& socket, const Hello& hello);
  void TurnAway(const Socket& socket, const Hello& hello, Refusal why);
  absl::Status Missing() const;

  const SiteRendezvous& rendezvous_;
  const int processes_;
  Socket listener_{-1};
  std::vector<Socket> silent_;  // Callers who have said nothing yet: they keep nobody waiting.
  std::vector<Socket> came_;    // By process; -1: not yet.
  std::set<std::string> turned_away_;
};

absl::Status Gathering::Listen() {
  listener_ = Socket(rendezvous_.listener);
  if (listener_.get() >= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int socket,
                   ListenOn(rendezvous_.launch.master_port, rendezvous_.launch.master_address));
  listener_ = Socket(socket);
  return absl::OkStatus();
}

absl::Status Gathering::Gather(absl::Time deadline) {
  RETURN_IF_ERROR(Listen());
  while (std::ranges::any_of(came_, [](const Socket& socket) { return socket.get() < 0; })) {
    RETURN_IF_ERROR(rendezvous_.cause->Get());
    std::vector<pollfd> waits = {{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Socket& socket : silent_) {
      waits.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
    }
    // Of those that have not come, poll knows nothing.
    for (const Socket& socket : came_) {
      waits.push_back({.fd = socket.get(), .events = POLLRDHUP, .revents = 0});
    }
    if (poll(waits.data(), waits.size(), Milliseconds(deadline - absl::Now())) <= 0) {
      if (absl::Now() >= deadline) return Missing();
      continue;
    }
    // One that has ended may come again.
    for (size_t i = 0; i < came_.size(); ++i) {
      if (waits[1 + silent_.size() + i].revents != 0) came_[i] = Socket(-1);
    }
    for (size_t i = silent_.size(); i > 0; --i) {
      if (waits[i].revents == 0) continue;
      Socket socket = std::move(silent_[i - 1]);
      silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
      RETURN_IF_ERROR(Hear(std::move(socket)));
    }
    if (waits[0].revents == 0) continue;
    if (silent_.size() == kMostSilent) silent_.erase(silent_.begin());
    Socket socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() >= 0) silent_.push_back(std::move(socket));
  }
  return absl::OkStatus();
}

absl::Status Gathering::Hear(Socket socket) {
  const std::optional<Hello> hello = ReceiveHello(socket.get(), absl::Now() + kHelloPatience);
  if (!hello.has_value()) return absl::OkStatus();
  if (hello->token != rendezvous_.token) {
    TurnAway(socket, *hello, kOtherToken);
    return absl::OkStatus();
  }
  if (hello->processes != processes_ || hello->process < 1 || hello->process >= processes_) {
    TurnAway(socket, *hello, kOtherSize);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool proven, HasProven(socket, *hello));
  if (!proven) {
    TurnAway(socket, *hello, kNoSecret);
    return absl::OkStatus();
  }
  Socket& place = came_[static_cast<size_t>(hello->process - 1)];
  // One that has ended since may be started again.
  if (place.get() >= 0 && !HasHungUp(place.get())) {
    TurnAway(socket, *hello, kTwice);
    return absl::FailedPreconditionError(
        absl::StrCat("two processes of this site say that they are process ", hello->process,
                     ": RANK must differ"));
  }
  const Hello answer = {.process = 0, .processes = processes_, .token = hello->token};
  if (SendHello(socket.get(), answer)) place = std::move(socket);
  return absl::OkStatus();
}

absl::StatusOr<bool> Gathering::HasProven(const Socket& socket, const Hello& hello) {
  const std::string& secret = rendezvous_.secret;
  if (secret.empty()) return true;
  ASSIGN_OR_RETURN(const Nonce nonce, MakeNonce());
  const Hello challenge = {.process = 0,
                           .processes = processes_,
                           .refusal = kProve,
                           .token = hello.token,
                           .nonce = nonce,
                           .proof = Prove(secret, 0, hello.process, hello.nonce, nonce)};
  if (!SendHello(socket.get(), challenge)) return false;
  const std::optional<Hello> answer = ReceiveHello(socket.get(), absl::Now() + kProofPatience);
  return answer.has_value() &&
         SameProof(answer->proof, Prove(secret, hello.process, hello.process, hello.nonce, nonce));
}

void Gathering::TurnAway(const Socket& socket, const Hello& hello, Refusal why) {
  SendHello(socket.get(),
            {.process = 0, .processes = processes_, .refusal = why, .token = hello.token});
  if (turned_away_.size() == kMostNamed) return;
  const auto [stranger, is_new] = turned_away_.insert(
      absl::StrCat("one that says that it is process ", hello.process, " of ", hello.processes,
                   why == kOtherToken ? ", of another worker or with another --id or --coordinator"
                   : why == kNoSecret ? ", without this site's secret (--site_secret_file)"
                                      : ""));
  if (is_new && rendezvous_.on_stranger) rendezvous_.on_stranger(*stranger);
}

absl::Status Gathering::Missing() const {
  std::vector<size_t> absent;
  for (size_t i = 0; i < came_.size(); ++i) {
    if (came_[i].get() < 0) absent.push_back(i + 1);
  }
  std::string message =
      absl::StrCat("process 0 of this site waited ", absl::FormatDuration(rendezvous_.patience),
                   " for others (WORLD_SIZE is ", processes_,
                   "); these did not come: ", absl::StrJoin(absent, ", "));
  if (!turned_away_.empty()) {
    absl::StrAppend(&message, "; turned away: ", absl::StrJoin(turned_away_, ", "));
  }
  return absl::DeadlineExceededError(message);
}

Links Gathering::TakeLinks() {
  Links links;
  for (size_t i = 0; i < came_.size(); ++i) {
    if (came_[i].get() < 0) continue;
    links.push_back(std::make_unique<SiteLink>(came_[i].release(), NameOf(static_cast<int>(i) + 1),
                                               rendezvous_.cause));
  }
  return links;
}

absl::Status Refused(const LaunchEnvironment& launch, const Hello& answer) {
  const std::string there =
      absl::StrCat("process 0 at ", launch.master_address, ":", launch.master_port,
                   " (MASTER_ADDR, MASTER_PORT) turned process ", launch.process, " away: ");
  switch (answer.refusal) {
    case kOtherToken:
      return absl::FailedPreconditionError(absl::StrCat(
          there,
          "it belongs to another worker; all processes of a site are started with the same "
          "--id and --coordinator, spelled the same, and two sites on one machine need two ports"));
    case kOtherSize:
      return absl::FailedPreconditionError(absl::StrCat(there, "its site has ", answer.processes,
                                                        " processes, and WORLD_SIZE is ",
                                                        launch.processes, " here"));
    case kProve:
    case kNoSecret:
      return absl::FailedPreconditionError(
          absl::StrCat(there,
                       "it does not know this site's secret; give all processes the same "
                       "--site_secret_file, or none of them one"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(there, "another one has that number already; RANK must differ"));
  }
}

absl::StatusOr<Links> Join(const SiteRendezvous& rendezvous, absl::Time deadline) {
  const LaunchEnvironment& launch = rendezvous.launch;
  bool connected = false;
  do {
    RETURN_IF_ERROR(rendezvous.cause->Get());
    std::optional<Socket> socket = Connect(launch.master_address, launch.master_port);
    if (socket.has_value()) {
      connected = true;
      ASSIGN_OR_RETURN(const Nonce nonce, MakeNonce());
      Hello hello = {.process = launch.process,
                     .processes = launch.processes,
                     .token = rendezvous.token,
                     .nonce = nonce};
      std::optional<Hello> answer;
      if (SendHello(socket->get(), hello)) answer = ReceiveHello(socket->get(), deadline);
      const std::string& secret = rendezvous.secret;
      const bool asked = answer.has_value() && answer->refusal == kProve;
      if (asked && !secret.empty() &&
          SameProof(answer->proof, Prove(secret, 0, launch.process, nonce, answer->nonce))) {
        hello.proof = Prove(secret, launch.process, launch.process, nonce, answer->nonce);
        answer.reset();
        if (SendHello(socket->get(), hello)) answer = ReceiveHello(socket->get(), deadline);
      } else if (!secret.empty() && answer.has_value() && answer->refusal == kWelcome) {
        answer->refusal = kNoSecret;  // It is not process 0, or was given no secret.
      }
      // Another one that looks for process 0 says another number.
      if (answer.has_value() && answer->process == 0 && answer->token == rendezvous.token) {
        if (answer->refusal != kWelcome) return Refused(launch, *answer);
        Links links;
        links.push_back(
            std::make_unique<SiteLink>(socket->release(), NameOf(0), rendezvous.cause,
                                       SiteLink::Patience{.first_sign = rendezvous.patience}));
        return links;
      }
    }
    absl::SleepFor(kRetry);
  } while (absl::Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat(
      "process ", launch.process, " of this site did not reach process 0 at ",
      launch.master_address, ":", launch.master_port, " (MASTER_ADDR, MASTER_PORT) within ",
      absl::FormatDuration(rendezvous.patience),
      connected ? ": what listens there does not answer as process 0 does"
                : ": is it running, can it be reached there, or has it all its processes already "
                  "(is a RANK there twice)?"));
}

absl::Status CannotListen(int port) {
  return absl::FailedPreconditionError(absl::StrCat("process 0 of this site cannot listen on port ",
                                                    port, " (MASTER_PORT): ", std::strerror(errno),
                                                    "; choose another port"));
}

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(ipv4.sin_addr.s_addr) >> 24) == 127;
  }
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  return address.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
}

// Listens at that address, or nothing where it is not this machine's, or one that a name stands for
// here and not elsewhere (Debian's 127.0.1.1 of the machine's own name).
absl::StatusOr<std::optional<Socket>> ListenAt(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* numeric = nullptr;
  const bool is_number = getaddrinfo(host.c_str(), nullptr, &hints, &numeric) == 0;
  if (is_number) freeaddrinfo(numeric);
  if (IsLoopback(*addresses->ai_addr) && !is_number && host != "localhost") return std::nullopt;
  Socket socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (socket.get() < 0 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0) {
    return CannotListen(port);
  }
  if (bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno == EADDRNOTAVAIL) return std::nullopt;  // The address of a translation before it.
    return CannotListen(port);
  }
  if (listen(socket.get(), kBacklog) != 0) return CannotListen(port);
  return socket;
}

}  // namespace

absl::StatusOr<int> ListenOn(int port, const std::string& host) {
  if (!host.empty()) {
    ASSIGN_OR_RETURN(std::optional<Socket> there, ListenAt(host, port));
    if (there.has_value()) return there->release();
  }
  // Both kinds of addresses, where the system has both.
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool has_ipv6 = socket.get() >= 0;
  if (!has_ipv6) socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int no = 0;
  const int yes = 1;
  sockaddr_storage address = {};
  socklen_t size = 0;
  if (has_ipv6) {
    auto& any = reinterpret_cast<sockaddr_in6&>(address);
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof(any);
    (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  } else {
    auto& any = reinterpret_cast<sockaddr_in&>(address);
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof(any);
  }
  if (socket.get() < 0 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return CannotListen(port);
  }
  return socket.release();
}

absl::StatusOr<int> PortOf(int listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::InternalError(std::strerror(errno));
  }
  const in_port_t port = address.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                             : reinterpret_cast<const sockaddr_in&>(address).sin_port;
  return ntohs(port);
}

absl::StatusOr<std::vector<std::unique_ptr<SiteLink>>> MeetSite(const SiteRendezvous& rendezvous) {
  const absl::Time deadline = absl::Now() + rendezvous.patience;
  if (rendezvous.launch.process != 0) return Join(rendezvous, deadline);
  Gathering gathering(rendezvous);
  const absl::Status gathered = gathering.Gather(deadline);
  Links links = gathering.TakeLinks();
  if (gathered.ok()) return links;
  // Those that came do not wait for what will not be: they hear why.
  rendezvous.cause->Set(gathered);
  for (const std::unique_ptr<SiteLink>& link : links) link->Start();
  return gathered;
}

}  // namespace causeway::worker
