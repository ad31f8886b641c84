#include "worker/group/site_rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

constexpr uint32_t kMagic = 0x43577335;
constexpr absl::Duration kRetry = absl::Milliseconds(100);
constexpr size_t kMostNamed = 8;

enum Refusal : int32_t { kWelcome = 0, kOtherToken = 1, kOtherSize = 2, kTwice = 3 };

// What both sides say first.
struct Hello {
  uint32_t magic = kMagic;
  int32_t process = 0;
  int32_t processes = 0;
  int32_t refusal = kWelcome;  // Of process 0, to who is not welcome.
  uint64_t token = 0;
};

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
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(duration)));
}

bool WaitReadable(int socket, absl::Time deadline) {
  pollfd poll_for = {.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&poll_for, 1, Milliseconds(deadline - absl::Now())) > 0;
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
  if (hello.magic != kMagic) return std::nullopt;
  return hello;
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
    if (socket.get() >= 0 && connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0) {
      return socket;
    }
  }
  return std::nullopt;
}

std::string NameOf(int process) { return absl::StrCat("process ", process, " of this site"); }

using Links = std::vector<std::unique_ptr<SiteLink>>;

absl::Status Missing(const SiteRendezvous& rendezvous, const Links& links,
                     const std::set<std::string>& turned_away) {
  std::vector<int> absent;
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i] == nullptr) absent.push_back(static_cast<int>(i) + 1);
  }
  std::string message =
      absl::StrCat("process 0 of this site waited ", absl::FormatDuration(rendezvous.patience),
                   " for others (WORLD_SIZE is ", rendezvous.launch.processes,
                   "); these did not come: ", absl::StrJoin(absent, ", "));
  if (!turned_away.empty()) {
    absl::StrAppend(&message, "; turned away: ", absl::StrJoin(turned_away, ", "));
  }
  return absl::DeadlineExceededError(message);
}

absl::Status Gather(const SiteRendezvous& rendezvous, absl::Time deadline, Links& links) {
  const int processes = rendezvous.launch.processes;
  Socket listener(rendezvous.listener);
  if (listener.get() < 0) {
    ASSIGN_OR_RETURN(const int socket, ListenOn(rendezvous.launch.master_port));
    listener = Socket(socket);
  }
  links.resize(static_cast<size_t>(processes - 1));
  std::set<std::string> turned_away;
  for (int missing = processes - 1; missing > 0;) {
    RETURN_IF_ERROR(rendezvous.cause->Get());
    if (!WaitReadable(listener.get(), deadline)) return Missing(rendezvous, links, turned_away);
    Socket socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) continue;
    // Whoever says nothing keeps nobody waiting for long.
    const std::optional<Hello> hello =
        ReceiveHello(socket.get(), std::min(deadline, absl::Now() + absl::Seconds(5)));
    if (!hello.has_value()) continue;
    Hello answer = {.process = 0, .processes = processes, .token = hello->token};
    const bool is_ours = hello->token == rendezvous.token;
    const bool fits =
        hello->processes == processes && hello->process >= 1 && hello->process < processes;
    if (!is_ours || !fits) {
      answer.refusal = is_ours ? kOtherSize : kOtherToken;
      SendHello(socket.get(), answer);
      if (turned_away.size() == kMostNamed) continue;
      turned_away.insert(absl::StrCat("one that says that it is process ", hello->process, " of ",
                                      hello->processes,
                                      is_ours ? "" : ", of another worker (--id, --coordinator)"));
      continue;
    }
    std::unique_ptr<SiteLink>& link = links[static_cast<size_t>(hello->process - 1)];
    if (link != nullptr) {
      answer.refusal = kTwice;
      SendHello(socket.get(), answer);
      return absl::FailedPreconditionError(
          absl::StrCat("two processes of this site say that they are process ", hello->process,
                       ": RANK must differ"));
    }
    if (!SendHello(socket.get(), answer)) continue;
    link = std::make_unique<SiteLink>(socket.release(), NameOf(hello->process), rendezvous.cause);
    --missing;
  }
  return absl::OkStatus();
}

// Those that came do not wait for what will not be.
void SendAway(const SiteRendezvous& rendezvous, const absl::Status& why, const Links& links) {
  rendezvous.cause->Set(why);
  for (const std::unique_ptr<SiteLink>& link : links) {
    if (link != nullptr) link->Start();
  }
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
          "--id and --coordinator, and two sites on one machine need two ports"));
    case kOtherSize:
      return absl::FailedPreconditionError(absl::StrCat(there, "its site has ", answer.processes,
                                                        " processes, and WORLD_SIZE is ",
                                                        launch.processes, " here"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(there, "another one has that number already; RANK must differ"));
  }
}

absl::StatusOr<Links> Join(const SiteRendezvous& rendezvous, absl::Time deadline) {
  const LaunchEnvironment& launch = rendezvous.launch;
  do {
    RETURN_IF_ERROR(rendezvous.cause->Get());
    std::optional<Socket> socket = Connect(launch.master_address, launch.master_port);
    if (socket.has_value()) {
      const Hello hello = {
          .process = launch.process, .processes = launch.processes, .token = rendezvous.token};
      std::optional<Hello> answer;
      if (SendHello(socket->get(), hello)) answer = ReceiveHello(socket->get(), deadline);
      if (answer.has_value() && answer->refusal != kWelcome) return Refused(launch, *answer);
      if (answer.has_value()) {
        Links links;
        links.push_back(std::make_unique<SiteLink>(socket->release(), NameOf(0), rendezvous.cause));
        return links;
      }
    }
    absl::SleepFor(kRetry);
  } while (absl::Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat(
      "process ", launch.process, " of this site did not reach process 0 at ",
      launch.master_address, ":", launch.master_port, " (MASTER_ADDR, MASTER_PORT) within ",
      absl::FormatDuration(rendezvous.patience), ": is it running, and can it be reached there?"));
}

}  // namespace

absl::StatusOr<int> ListenOn(int port) {
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int no = 0;
  const int yes = 1;
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  constexpr int kBacklog = 1024;
  if (socket.get() < 0 ||
      setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) != 0 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("process 0 of this site cannot listen on port ", port,
                     " (MASTER_PORT): ", std::strerror(errno), "; choose another port"));
  }
  return socket.release();
}

absl::StatusOr<int> PortOf(int listener) {
  sockaddr_in6 address = {};
  socklen_t size = sizeof(address);
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::InternalError(std::strerror(errno));
  }
  return ntohs(address.sin6_port);
}

absl::StatusOr<std::vector<std::unique_ptr<SiteLink>>> MeetSite(const SiteRendezvous& rendezvous) {
  const absl::Time deadline = absl::Now() + rendezvous.patience;
  if (rendezvous.launch.process != 0) return Join(rendezvous, deadline);
  Links links;
  const absl::Status gathered = Gather(rendezvous, deadline, links);
  if (!gathered.ok()) SendAway(rendezvous, gathered, links);
  RETURN_IF_ERROR(gathered);
  return links;
}

}  // namespace causeway::worker
