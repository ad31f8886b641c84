// A stranger in the network of a site of several processes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/security/hostile_client/scenarios.h"
#include "worker/member/rendezvous.h"

namespace causeway::hostile {
namespace {

using worker::SiteDoor;
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

// One try.
bool GetsIn(int port, const std::string& secret) {
  SiteRendezvous stranger = Process(1, port, secret);
  stranger.patience = absl::ZeroDuration();
  return worker::VisitSite(stranger).ok();
}

bool IsOpenAt(const char* address, int port) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  const bool open = connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  close(connection);
  return open;
}

absl::StatusOr<Outcome> Stranger() {
  ASSIGN_OR_RETURN(const auto door, SiteDoor::Open(Process(0, 0, kSecret)));
  const int port = door->port();
  const bool elsewhere = IsOpenAt("127.0.0.2", port);
  std::string trouble;
  bool together = false;
  std::thread first([&] {
    const auto links = door->Gather();
    together = links.ok();
    if (!together) trouble = std::string(links.status().message());
  });
  int in = 0;
  for (const char* guess : {"", "another"}) in += GetsIn(port, guess);
  // It stays until process 0 has seen it.
  const auto member = worker::VisitSite(Process(1, port, kSecret));
  first.join();
  if (!member.ok()) absl::StrAppend(&trouble, " ", member.status().message());
  // One who stands in for process 0.
  for (const char* guess : {"", "another"}) {
    const auto impostor = SiteDoor::Open(Process(0, 0, guess));
    in += impostor.ok() && GetsIn((*impostor)->port(), kSecret);
  }
  const bool held = in == 0 && member.ok() && together && !elsewhere;
  return Outcome{
      .held = held,
      .what = absl::StrCat(in, " of 4 tries got in, the site ",
                           together && member.ok() ? "came together" : "did not meet: ", trouble,
                           "; another address of the machine is ", elsewhere ? "open" : "closed")};
}

}  // namespace

std::vector<Scenario> SiteScenarios() {
  return {
      {"site_stranger",
       "a stranger comes as process 1 of a site, without its secret and with a wrong one; and as "
       "process 0",
       Stranger}};
}

}  // namespace causeway::hostile
