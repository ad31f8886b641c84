#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/common/base/status_is.h"
#include "worker/member/rendezvous.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMethod = 1;

SiteRendezvous ProcessOf(int process, int processes, int port) {
  SiteRendezvous rendezvous;
  rendezvous.launch.process = process;
  rendezvous.launch.processes = processes;
  rendezvous.launch.master_address = "localhost";
  rendezvous.launch.master_port = port;
  rendezvous.token = 17;
  rendezvous.cause = std::make_shared<SharedCause>();
  rendezvous.patience = absl::Minutes(1);
  return rendezvous;
}

std::unique_ptr<SiteDoor> OpenDoor(const SiteRendezvous& first) {
  return SiteDoor::Open(first).value();
}

// Answers the first call, which says `argument`, and stays until process 0 leaves.
void Belong(const SiteRendezvous& member, int64_t argument) {
  const auto link = VisitSite(member).value();
  link->Start();
  const auto call = link->NextCall();
  ASSERT_TRUE(call.ok() && call->has_value()) << call.status();
  EXPECT_EQ((*call)->argument, argument);
  EXPECT_TRUE(link->Answer((*call)->id, absl::OkStatus(), (*call)->bytes).ok());
  const auto end = link->NextCall();
  EXPECT_TRUE(end.ok() && !end->has_value()) << end.status();
}

// Process 0: all come, and each is called with its number.
void Meet(SiteDoor& door) {
  const auto links = door.Gather().value();
  const std::vector<uint8_t> bytes(size_t{3} << 20, 7);
  for (size_t i = 0; i < links.size(); ++i) {
    SiteLink& link = *links[i];
    link.Start();
    const auto answer = link.CallAndAwait(kMethod, static_cast<int64_t>(i) + 1, 0, bytes).value();
    EXPECT_EQ(answer.size(), bytes.size());
  }
}

class SiteDoorOpenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SiteDoorOpenTest, ProcessesFindEachOtherInOrder) {
  SiteRendezvous first = ProcessOf(0, 3, 0);
  first.secret = GetParam();
  const auto door = OpenDoor(first);
  std::vector<std::thread> others;
  for (const int process : {2, 1}) {
    others.emplace_back([&, process] {
      SiteRendezvous member = ProcessOf(process, 3, door->port());
      member.secret = GetParam();
      Belong(member, process);
    });
  }
  Meet(*door);
  for (std::thread& other : others) other.join();
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutASecret, SiteDoorOpenTest,
                         ::testing::Values("", "0123456789abcdef"),
                         [](const auto& param) { return param.param.empty() ? "Plain" : "Tls"; });

// It does not keep the others from coming.
TEST(SiteDoorTest, AProcessOfAnotherWorkerIsTurnedAwayAtOnce) {
  const auto door = OpenDoor(ProcessOf(0, 2, 0));
  std::thread other([port = door->port()] {
    SiteRendezvous stranger = ProcessOf(1, 2, port);
    stranger.token = 18;
    const absl::Status status = VisitSite(stranger).status();
    EXPECT_THAT(status, StatusIs(kFailedPrecondition, AllOf(HasSubstr("turned process 1 away"),
                                                            HasSubstr("--id and --coordinator"))));
    const absl::Status larger = VisitSite(ProcessOf(2, 3, port)).status();
    EXPECT_THAT(larger.message(), HasSubstr("has 2 processes, and WORLD_SIZE is 3 here"));
    Belong(ProcessOf(1, 2, port), 1);
  });
  Meet(*door);
  other.join();
}

TEST(SiteDoorTest, WhoDoesNotKnowTheSecretDoesNotComeIn) {
  SiteRendezvous first = ProcessOf(0, 2, 0);
  first.secret = "the secret of this site";
  const auto door = OpenDoor(first);
  std::thread others([port = door->port()] {
    for (const char* guess : {"", "another secret"}) {
      SiteRendezvous stranger = ProcessOf(1, 2, port);
      stranger.secret = guess;
      stranger.patience = absl::ZeroDuration();  // One try.
      const absl::Status status = VisitSite(stranger).status();
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("--site_secret_file")) << guess;
    }
    SiteRendezvous member = ProcessOf(1, 2, port);
    member.secret = "the secret of this site";
    Belong(member, 1);
  });
  Meet(*door);
  others.join();
}

TEST(SiteDoorTest, WhoeverStandsInForProcessZeroMustKnowTheSecretToo) {
  for (const char* guess : {"", "another secret"}) {
    SiteRendezvous impostor = ProcessOf(0, 2, 0);
    impostor.secret = guess;
    const auto door = OpenDoor(impostor);
    SiteRendezvous member = ProcessOf(1, 2, door->port());
    member.secret = "the secret of this site";
    EXPECT_THAT(
        VisitSite(member),
        StatusIs(kFailedPrecondition, HasSubstr(*guess == 0 ? "has no site secret, and this one has"
                                                            : "has another site secret")));
  }
}

// Processes on different machines make the same one.
TEST(SiteCertificateTest, IsAFunctionOfTheSecretAlone) {
  const KeyedCertificate one = CertificateOfSite("one").value();
  const KeyedCertificate again = CertificateOfSite("one").value();
  const KeyedCertificate other = CertificateOfSite("other").value();
  EXPECT_EQ(one.certificate, again.certificate);
  EXPECT_EQ(one.key, again.key);
  EXPECT_NE(one.certificate, other.certificate);
  EXPECT_NE(one.key, other.key);
}

// Connects to the port on that address of this machine; -1: nobody listens there.
int ConnectTo(uint32_t address, int port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(address);
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(connection, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return connection;
  close(connection);
  return -1;
}

TEST(SiteDoorTest, ItListensWhereTheOthersWereToldToCome) {
  SiteRendezvous first = ProcessOf(0, 2, 0);
  first.launch.master_address = "127.0.0.1";
  const auto here = OpenDoor(first);
  EXPECT_EQ(ConnectTo(INADDR_LOOPBACK + 1, here->port()), -1) << "127.0.0.2";
  const int connection = ConnectTo(INADDR_LOOPBACK, here->port());
  EXPECT_GE(connection, 0);
  close(connection);
  // Not this machine's: others reach it by a translation, so it listens everywhere.
  first.launch.master_address = "192.0.2.1";
  const auto everywhere = OpenDoor(first);
  const int other = ConnectTo(INADDR_LOOPBACK + 1, everywhere->port());
  EXPECT_GE(other, 0);
  close(other);
}

TEST(SiteDoorTest, WhoSaysNothingOrNonsenseKeepsNobodyWaiting) {
  const auto door = OpenDoor(ProcessOf(0, 2, 0));
  std::thread other([port = door->port()] {
    std::vector<int> strangers;
    for (int i = 0; i < 300; ++i) {
      const int stranger = ConnectTo(INADDR_LOOPBACK, port);
      EXPECT_GE(stranger, 0);
      if (i % 10 == 0) {
        const std::string request = "GET / HTTP/1.0\r\nHost: process-0\r\n\r\n";
        EXPECT_EQ(send(stranger, request.data(), request.size(), MSG_NOSIGNAL),
                  std::ssize(request));
      }
      strangers.push_back(stranger);
    }
    Belong(ProcessOf(1, 2, port), 1);
    for (const int stranger : strangers) close(stranger);
  });
  Meet(*door);
  other.join();
}

// Everyone hears it: the one that came first, the second one, and process 0.
TEST(SiteDoorTest, TwoProcessesOfOneNumberEndTheSite) {
  const auto door = OpenDoor(ProcessOf(0, 3, 0));
  std::vector<std::thread> twins;
  for (int i = 0; i < 2; ++i) {
    twins.emplace_back([port = door->port()] {
      const auto link = VisitSite(ProcessOf(1, 3, port));
      if (!link.ok()) {
        EXPECT_THAT(link.status().message(), HasSubstr("another one has that number already"));
        return;
      }
      (*link)->Start();
      EXPECT_THAT((*link)->NextCall().status().message(),
                  HasSubstr("say that they are process 1: RANK must differ"));
    });
  }
  EXPECT_THAT(door->Gather().status().message(), HasSubstr("RANK must differ"));
  for (std::thread& twin : twins) twin.join();
}

TEST(SiteDoorTest, APortThatIsTakenIsNamed) {
  const auto door = OpenDoor(ProcessOf(0, 2, 0));
  EXPECT_THAT(SiteDoor::Open(ProcessOf(0, 2, door->port())),
              StatusIs(kFailedPrecondition,
                       HasSubstr("cannot listen on port " + std::to_string(door->port()))));
}

using ::testing::ElementsAre;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchEnvironment> Read(const Variables& variables) {
  return ReadLaunchEnvironment([&](absl::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node-0"},
                             {"MASTER_PORT", "29500"}};

TEST(LaunchEnvironmentTest, WithoutALauncherAProcessIsByItself) {
  const LaunchEnvironment launch = Read({{"MASTER_ADDR", "left over"}}).value();
  EXPECT_EQ(launch.processes, 1);
  EXPECT_EQ(launch.process, 0);
}

TEST(LaunchEnvironmentTest, ReadsWhatTorchrunSets) {
  const LaunchEnvironment launch = Read(kTorchrun).value();
  EXPECT_EQ(launch.process, 5);
  EXPECT_EQ(launch.processes, 8);
  EXPECT_EQ(launch.local_process, 1);
  EXPECT_EQ(launch.local_processes, 4);
  EXPECT_EQ(launch.master_address, "node-0");
  EXPECT_EQ(launch.master_port, 29500);
}

TEST(LaunchEnvironmentTest, NamesWhatIsMissing) {
  for (const auto& [name, value] : kTorchrun) {
    Variables variables = kTorchrun;
    variables.erase(name);
    EXPECT_THAT(
        Read(variables),
        StatusIs(kInvalidArgument,
                 AllOf(HasSubstr(name), HasSubstr("is not set"),
                       HasSubstr(name == "MASTER_ADDR" ? "" : "unset RANK and WORLD_SIZE"))));
  }
}

TEST(LaunchEnvironmentTest, SaysWhatANumberShouldBe) {
  const std::map<std::string, std::string> wrong = {{"RANK", "8"},
                                                    {"WORLD_SIZE", "0"},
                                                    {"LOCAL_RANK", "4"},
                                                    {"LOCAL_WORLD_SIZE", "9"},
                                                    {"MASTER_PORT", "http"}};
  for (const auto& [name, value] : wrong) {
    Variables variables = kTorchrun;
    variables[name] = value;
    const absl::Status status = Read(variables).status();
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_THAT(status.message(), HasSubstr("is \"" + value + "\"; expected a number from"));
    EXPECT_THAT(status.message(), HasSubstr(name == "RANK" ? "from 0 to 7" : "from "));
  }
}

TEST(LaunchEnvironmentTest, TheGpusOfAMachineAreSharedOut) {
  LaunchEnvironment launch;
  EXPECT_THAT(DevicesOfProcess(launch, {0, 1, 2, 3}).value(), ElementsAre(0, 1, 2, 3));
  launch.local_processes = 2;
  launch.local_process = 1;
  EXPECT_THAT(DevicesOfProcess(launch, {0, 1, 2, 3}).value(), ElementsAre(2, 3));
  // Slurm shows each process its own GPU alone.
  EXPECT_THAT(DevicesOfProcess(launch, {0}).value(), ElementsAre(0));
  EXPECT_THAT(DevicesOfProcess(launch, {0, 1, 2}).status().message(),
              HasSubstr("3 GPUs cannot be shared out equally to the 2 processes"));
}

}  // namespace
}  // namespace causeway::worker
