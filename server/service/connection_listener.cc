#include "server/service/connection_listener.h"

#include <fcntl.h>
// Not netinet/tcp.h, whose struct tcp_info ends before what is wanted here.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/base/dynamic_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

// Options that gRPC gives the sockets that it listens with: see MakeChannel for the time.
constexpr int kUserTimeoutMs = 20'000;
constexpr absl::Duration kSweepInterval = absl::Milliseconds(100);
// After accept() failed for a reason that does not pass by itself at once.
constexpr int kPauseMs = 100;
constexpr double kLinesPerSecond = 0.2;
constexpr double kLineBurst = 5;

// The descriptor's inode; 0 if it is closed. Whoever took the descriptor may close it meanwhile,
// and somebody else open another: then the inode differs. The thread sanitizer has no race to
// report.
ino_t SocketOf(int descriptor) {
  struct stat status = {};
  ABSL_ANNOTATE_IGNORE_READS_BEGIN();
  const int result = fstat(descriptor, &status);
  ABSL_ANNOTATE_IGNORE_READS_END();
  return result == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

bool IsWildcard(const TcpAddress& address) {
  TcpAddress any;
  if (address.ip == any.ip) return true;
  any.ip[10] = any.ip[11] = 0xff;  // 0.0.0.0, mapped.
  return address.ip == any.ip;
}

bool SetOption(int descriptor, int level, int option, int value) {
  return setsockopt(descriptor, level, option, &value, sizeof(value)) == 0;
}

absl::Status Failed(const TcpAddress& address, const char* call) {
  return absl::UnavailableError(
      absl::StrCat(call, " ", address.ToString(), ": ", std::strerror(errno)));
}

const char* Remedy(AcceptFailure failure) {
  switch (failure) {
    case AcceptFailure::kDescriptors:
      return "raise the limit of open files (LimitNOFILE), or lower --max_connections";
    case AcceptFailure::kMemory:
      return "the machine has no memory left for sockets: give it more, or lower --max_connections";
    default:
      return "look at the machine's firewall and security policy; if it goes on, restart the "
             "coordinator";
  }
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

AcceptFailure ClassifyAcceptError(int error) {
  switch (error) {
    case EAGAIN:  // Another was faster, or it is gone.
    case EINTR:
    case ECONNABORTED:
    case ECONNRESET:
    case ETIMEDOUT:
    // accept(2): errors of the new connection's network, to be treated like EAGAIN.
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
      return AcceptFailure::kConnection;
    case EMFILE:
    case ENFILE:
      return AcceptFailure::kDescriptors;
    case ENOBUFS:
    case ENOMEM:
      return AcceptFailure::kMemory;
    default:
      return AcceptFailure::kListener;
  }
}

ConnectionListener::ConnectionListener(ConnectionGate& gate, const Clock& clock)
    : gate_(gate),
      clock_(clock),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spare_(OpenSpare()),
      lines_(kLinesPerSecond, kLineBurst, 1, clock) {}

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Listen(
    const std::string& address, ConnectionGate& gate, const Clock& clock) {
  ASSIGN_OR_RETURN(std::vector<TcpAddress> addresses,
                   ResolveAddress(address, /*allow_any_port=*/true));
  std::unique_ptr<ConnectionListener> listener(new ConnectionListener(gate, clock));
  if (!listener->wake_.valid() || !listener->spare_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("no file descriptor is left to listen with: ", std::strerror(errno)));
  }
  if (std::ranges::any_of(addresses, IsWildcard)) {
    TcpAddress both;
    both.port = addresses.front().port;
    if (listener->Bind(both).ok()) return listener;  // Else a machine without IPv6.
  }
  absl::Status problem;
  for (TcpAddress& one : addresses) {
    if (one.port == 0) one.port = static_cast<uint16_t>(listener->port_);
    const absl::Status bound = listener->Bind(one);
    if (!bound.ok()) problem = bound;
  }
  if (!listener->listeners_.empty()) return listener;
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, " (", problem.message(),
                                             "): the host is not this machine's, or the port is "
                                             "taken or not allowed; choose another one"));
}

absl::Status ConnectionListener::Bind(const TcpAddress& address) {
  sockaddr_storage storage = {};
  const socklen_t length = ToSocketAddress(address, storage);
  OwnedDescriptor listener(
      socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Failed(address, "socket");
  if (storage.ss_family == AF_INET6) {
    SetOption(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, IsWildcard(address) ? 0 : 1);
  }
  // A port whose last connections are not quite over may be taken again; no port is shared.
  SetOption(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted sockets inherit these.
  SetOption(listener.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(listener.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    return Failed(address, "bind");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) return Failed(address, "listen");
  sockaddr_storage bound = {};
  socklen_t bound_length = sizeof(bound);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &bound_length) != 0) {
    return Failed(address, "getsockname");
  }
  port_ = FromSocketAddress(bound)->port;
  listeners_.push_back(std::move(listener));
  return absl::OkStatus();
}

absl::Status ConnectionListener::Start(Taker take) {
  take_ = std::move(take);
  ASSIGN_OR_RETURN(thread_, StartThread([this] { AcceptLoop(); }));
  return absl::OkStatus();
}

void ConnectionListener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // An eventfd takes it, or is readable already.
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }
  listeners_.clear();
}

void ConnectionListener::AcceptLoop() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (const OwnedDescriptor& listener : listeners_) polled.push_back({listener.get(), POLLIN, 0});
  for (;;) {
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0 || AcceptOne(polled[i].fd)) continue;
      poll(polled.data(), 1, kPauseMs);
    }
  }
}

bool ConnectionListener::AcceptOne(int listener) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  OwnedDescriptor connection(accept4(listener, reinterpret_cast<sockaddr*>(&storage), &length,
                                     SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection.valid()) {
    const std::optional<TcpAddress> peer = FromSocketAddress(storage);
    if (peer.has_value()) Take(listener, std::move(connection), *peer);
    return true;
  }
  const int error = errno;
  const AcceptFailure failure = ClassifyAcceptError(error);
  if (failure == AcceptFailure::kConnection) return true;
  if (failure == AcceptFailure::kDescriptors && spare_.valid()) {
    // Whoever waits is told at once, and does not wait for what will not come.
    spare_.Reset();
    OwnedDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).Reset();
    spare_.Reset(OpenSpare());
  }
  Report(absl::StrCat("a connection could not be taken: ", std::strerror(error), "; ",
                      Remedy(failure)));
  if (!spare_.valid()) spare_.Reset(OpenSpare());
  return false;
}

absl::Status ConnectionListener::Admit(const TcpAddress& peer) {
  absl::Status status = gate_.Enter(peer);
  if (status.ok() || clock_.Monotonic() - swept_ < kSweepInterval) return status;
  Sweep();
  return gate_.Enter(peer);
}

void ConnectionListener::Take(int listener, OwnedDescriptor connection, const TcpAddress& peer) {
  {
    absl::MutexLock lock(&mutex_);
    // The descriptor may be that of a connection which has ended.
    const auto former = taken_.find(connection.get());
    if (former != taken_.end()) {
      Forget(former->first, former->second);
      taken_.erase(former);
    }
    const absl::Status admitted = Admit(peer);
    if (!admitted.ok()) {
      Report(absl::StrCat("refused a connection from ", peer.ToString(), ": ", admitted.message()));
      return;
    }
    taken_[connection.get()] = {.socket = SocketOf(connection.get()), .peer = peer};
    newest_[KeyOf(peer)] = connection.get();
  }
  take_(listener, connection.Release());
}

void ConnectionListener::Forget(int descriptor, const Taken& taken) {
  gate_.Leave(taken.peer);
  const auto newest = newest_.find(KeyOf(taken.peer));
  if (newest != newest_.end() && newest->second == descriptor) newest_.erase(newest);
}

void ConnectionListener::Know(const TcpAddress& peer) {
  absl::MutexLock lock(&mutex_);
  const auto newest = newest_.find(KeyOf(peer));
  if (newest != newest_.end()) taken_.at(newest->second).known = true;
}

void ConnectionListener::EndHostile() {
  const absl::Duration now = clock_.Monotonic();
  absl::MutexLock lock(&mutex_);
  Sweep();
  for (auto& [descriptor, taken] : taken_) {
    const std::optional<ConnectionFacts> facts = FactsOf(descriptor);
    if (!facts.has_value()) continue;
    const absl::string_view why = taken.watch.Judge(*facts, taken.known, now);
    // Whoever took it finds it ended, and closes it.
    if (why.empty() || SocketOf(descriptor) != taken.socket) continue;
    shutdown(descriptor, SHUT_RDWR);
    Report(absl::StrCat("ended a connection from ", taken.peer.ToString(), ": ", why));
  }
}

void ConnectionListener::Sweep() {
  swept_ = clock_.Monotonic();
  std::erase_if(taken_, [this](const auto& item) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto& [descriptor, taken] = item;
    if (SocketOf(descriptor) == taken.socket) return false;
    Forget(descriptor, taken);
    return true;
  });
}

void ConnectionListener::Report(const std::string& line) {
  if (lines_.Take("")) Log().warn("{}", line);
}

namespace {

// More networks than the sites of a run have.
constexpr size_t kMaxKnown = 4096;
constexpr size_t kSiteBytes = 8;  // Bytes of an IPv6 address that name a site.

}  // namespace

ConnectionGate::Network ConnectionGate::NetworkOf(const TcpAddress& address) {
  Network network = address.ip;
  if (!address.is_ipv4()) std::fill(network.begin() + kSiteBytes, network.end(), 0);
  return network;
}

absl::Status ConnectionGate::Enter(const TcpAddress& peer) {
  const Network network = NetworkOf(peer);
  absl::MutexLock lock(&mutex_);
  const auto found = of_network_.find(network);
  const int here = found == of_network_.end() ? 0 : found->second;
  if (here >= limits_.per_network) {
    return absl::ResourceExhaustedError(
        absl::StrCat(here, " connections of its address are open (--max_connections_per_address)"));
  }
  if (total_ >= limits_.total) {
    return absl::ResourceExhaustedError(
        absl::StrCat(total_, " connections are open (--max_connections)"));
  }
  if (total_ >= limits_.total - limits_.for_members && !known_.contains(network)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        total_, " connections are open, and the last ", limits_.for_members, " of ", limits_.total,
        " (--max_connections) are kept for addresses from which "
        "somebody has taken part"));
  }
  ++total_;
  ++of_network_[network];
  return absl::OkStatus();
}

void ConnectionGate::Leave(const TcpAddress& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = of_network_.find(NetworkOf(peer));
  if (found == of_network_.end()) return;
  --total_;
  if (--found->second == 0) of_network_.erase(found);
}

void ConnectionGate::Know(const TcpAddress& peer) {
  absl::MutexLock lock(&mutex_);
  if (known_.size() < kMaxKnown) known_.insert(NetworkOf(peer));
}

int ConnectionGate::connections() const {
  absl::MutexLock lock(&mutex_);
  return total_;
}

std::optional<ConnectionFacts> FactsOf(int descriptor) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  // A kernel before 5.4 does not say what the peer can take.
  if (length < offsetof(tcp_info, tcpi_snd_wnd) + sizeof(info.tcpi_snd_wnd)) return std::nullopt;
  return ConnectionFacts{
      .received_bytes = static_cast<int64_t>(info.tcpi_bytes_received),
      .reads = info.tcpi_notsent_bytes == 0 || (info.tcpi_snd_wnd > 0 && info.tcpi_probes == 0)};
}

absl::string_view ConnectionWatch::Judge(const ConnectionFacts& facts, bool admitted,
                                         absl::Duration now) {
  if (admitted || facts.received_bytes <= kStrangerBytes) {
    strange_since_.reset();
  } else {
    if (!strange_since_.has_value()) strange_since_ = now;
    const bool too_much = facts.received_bytes > kMostStrangerBytes;
    if (too_much || now - *strange_since_ >= kPatience) {
      return "it sends without having shown who it is";
    }
  }
  if (facts.reads) {
    unread_.reset();
  } else if (!unread_.has_value()) {
    unread_ = {.since = now, .received_bytes = facts.received_bytes};
  } else if (now - unread_->since >= kPatience &&
             facts.received_bytes - unread_->received_bytes >= kUnreadBytes) {
    return "it asks and does not read what it is answered";
  }
  return "";
}

}  // namespace causeway::server
