// A stranger in the network of a site of several processes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/security/hostile_client/scenarios.h"
#include "worker/group/site_rendezvous.h"

namespace causeway::hostile {
namespace {

using worker::SiteRendezvous;

constexpr char kSecret[] = "of this site alone";
constexpr uint64_t kToken = 17;  // Follows from names that are public.
constexpr int kProcesses = 2;

SiteRendezvous Process(int process, int port, const std::string& secret) {
  SiteRendezvous rendezvous;
  rendezvous.launch.process = process;
  rendezvous.launch.processes = kProcesses;
  rendezvous.launch.master_address = "127.0.0.1";
  rendezvous.launch.master_port = port;
  rendezvous.token = kToken;
  rendezvous.secret = secret;
  rendezvous.cause = std::make_shared<worker::SharedCause>();
  rendezvous.patience = absl::Seconds(20);
  return rendezvous;
}

int ConnectTo(const char* address, int port) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    return connection;
  }
  close(connection);
  return -1;
}

// One end of a relay: what goes by is kept.
void Relay(int from, int to, std::string& kept) {
  char buffer[4096];
  for (ssize_t got = 0; (got = recv(from, buffer, sizeof(buffer), 0)) > 0;) {
    kept.append(buffer, static_cast<size_t>(got));
    if (send(to, buffer, static_cast<size_t>(got), MSG_NOSIGNAL) != got) break;
  }
  shutdown(to, SHUT_RDWR);
}

// Returns what both sides of a site say as they come together. Empty if they do not.
struct Heard {
  std::string of_process;
  std::string of_first;
};
Heard Overhear() {
  const int door = *worker::ListenOn(0, "127.0.0.1");
  const int first_listener = *worker::ListenOn(0, "127.0.0.1");
  const int first_port = *worker::PortOf(first_listener);
  const int door_port = *worker::PortOf(door);
  Heard heard;
  bool together = false;
  std::thread first([&] {
    SiteRendezvous rendezvous = Process(0, first_port, kSecret);
    rendezvous.listener = first_listener;
    together = worker::MeetSite(rendezvous).ok();
  });
  std::thread member([&] { worker::MeetSite(Process(1, door_port, kSecret)).IgnoreError(); });
  const int member_side = accept(door, nullptr, nullptr);
  const int first_side = ConnectTo("127.0.0.1", first_port);
  std::thread up([&] { Relay(member_side, first_side, heard.of_process); });
  Relay(first_side, member_side, heard.of_first);
  up.join();
  first.join();
  member.join();
  for (const int open : {member_side, first_side, door}) close(open);
  return together ? heard : Heard();
}

// Plays what was heard to process 0 of the site as it comes together anew, and waits until that has
// ended the connection. Taken in, it would have been the site's only other process.
void Replay(int port, const std::string& said) {
  const int connection = ConnectTo("127.0.0.1", port);
  if (connection < 0) return;
  if (send(connection, said.data(), said.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(said.size())) {
    char buffer[4096];
    while (recv(connection, buffer, sizeof(buffer), 0) > 0) {
    }
  }
  close(connection);
}

Outcome Stranger() {
  const Heard heard = Overhear();
  if (heard.of_process.empty()) return {.held = false, .what = "the honest site does not meet"};
  const int listener = *worker::ListenOn(0, "127.0.0.1");
  const int port = *worker::PortOf(listener);
  std::vector<std::string> turned_away;
  bool together = false;
  std::string trouble;
  const bool elsewhere = [&] {
    const int connection = ConnectTo("127.0.0.2", port);
    if (connection >= 0) close(connection);
    return connection >= 0;
  }();
  std::thread first([&] {
    SiteRendezvous rendezvous = Process(0, port, kSecret);
    rendezvous.listener = listener;
    rendezvous.on_stranger = [&](const std::string& who) { turned_away.push_back(who); };
    const auto links = worker::MeetSite(rendezvous);
    together = links.ok();
    if (!together) trouble = std::string(links.status().message());
  });
  int in = 0;
  for (const char* guess : {"", "another"}) {
    in += worker::MeetSite(Process(1, port, guess)).ok();
  }
  Replay(port, heard.of_process);
  const bool member_in = worker::MeetSite(Process(1, port, kSecret)).ok();
  first.join();
  in += together && !member_in;
  // One who stands in for process 0, and says what it said to another.
  const int false_listener = *worker::ListenOn(0, "127.0.0.1");
  const int false_port = *worker::PortOf(false_listener);
  std::thread impostor([&] {
    const int connection = accept(false_listener, nullptr, nullptr);
    (void)!send(connection, heard.of_first.data(), heard.of_first.size(), MSG_NOSIGNAL);
    char buffer[4096];
    while (recv(connection, buffer, sizeof(buffer), 0) > 0) {
    }
    close(connection);
    close(false_listener);
  });
  in += worker::MeetSite(Process(1, false_port, kSecret)).ok();
  impostor.join();
  const bool held = in == 0 && member_in && together && !elsewhere && !turned_away.empty();
  return {
      .held = held,
      .what = absl::StrCat(in, " of 4 tries got in, the site ",
                           together && member_in ? "came together" : "did not meet: ", trouble,
                           "; another address of the machine is ", elsewhere ? "open" : "closed")};
}

}  // namespace

std::vector<Scenario> SiteScenarios() {
  return {{"site_stranger",
           "a stranger comes as process 1 of a site: no secret, a wrong one, one overheard; and as "
           "process 0",
           Stranger}};
}

}  // namespace causeway::hostile
