// An HTTP proxy on loopback that lets connections through by CONNECT, and says so to the channels
// of this process (https_proxy) while it lives.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway {

class ConnectProxy {
 public:
  // `routes`: the port of 127.0.0.1 for each HOST:PORT that may be asked for.
  explicit ConnectProxy(std::map<std::string, int> routes) : routes_(std::move(routes)) {
    setenv("https_proxy", absl::StrCat("http://user:secret@", listener_.address()).c_str(), 1);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~ConnectProxy() {
    unsetenv("https_proxy");
    {
      absl::MutexLock lock(&mutex_);
      over_ = true;
    }
    shutdown(listener_.socket().descriptor(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& relay : relays_) relay.join();
  }
  ConnectProxy(const ConnectProxy&) = delete;

  // The clients' requests, in their order.
  std::vector<std::string> heads() const {
    absl::MutexLock lock(&mutex_);
    return heads_;
  }

 private:
  bool over() const {
    absl::MutexLock lock(&mutex_);
    return over_;
  }
  void Accept() {
    for (;;) {
      Socket client = listener_.Accept();
      if (client.descriptor() < 0) return;
      relays_.emplace_back([this, peer = std::move(client)] { Serve(peer); });
    }
  }
  static void Say(const Socket& client, absl::string_view text) {
    EXPECT_EQ(send(client.descriptor(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void Serve(const Socket& client) {
    std::string head;
    char byte = 0;
    while (!absl::EndsWith(head, "\r\n\r\n") && recv(client.descriptor(), &byte, 1, 0) == 1) {
      head += byte;
    }
    {
      absl::MutexLock lock(&mutex_);
      heads_.push_back(head);
    }
    const size_t name = std::min(head.size(), sizeof("CONNECT"));
    const auto route = routes_.find(head.substr(name, head.find(' ', name) - name));
    if (route == routes_.end()) return Say(client, "HTTP/1.1 502 Bad Gateway\r\n\r\n");
    const Socket server =
        ConnectTo((*ResolveAddress(absl::StrCat("127.0.0.1:", route->second)))[0]);
    Say(client, "HTTP/1.1 200 Connection established\r\n\r\n");
    while (!over() && Pass(client, server)) {
    }
  }
  // Passes on what there is. False: one end has closed.
  static bool Pass(const Socket& client, const Socket& server) {
    std::array<pollfd, 2> ends = {
        {{client.descriptor(), POLLIN, 0}, {server.descriptor(), POLLIN, 0}}};
    poll(ends.data(), ends.size(), /*timeout=*/100);
    for (size_t from = 0; from < 2; ++from) {
      if (ends[from].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t got = recv(ends[from].fd, buffer.data(), buffer.size(), 0);
      if (got <= 0) return false;
      if (send(ends[1 - from].fd, buffer.data(), static_cast<size_t>(got), MSG_NOSIGNAL) != got) {
        return false;
      }
    }
    return true;
  }

  const std::map<std::string, int> routes_;
  const Listener listener_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> heads_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> relays_;  // The acceptor's, until it has ended.
  std::thread acceptor_;
};

}  // namespace causeway
