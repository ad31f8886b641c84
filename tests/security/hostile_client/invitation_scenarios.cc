// Lines of invitations that lead elsewhere, are seen or guessed; enrollment_test.cc has those that
// are stolen.
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "causeway/v1/enrollment.grpc.pb.h"
#include "common/client/boarding.h"
#include "common/identity/invitation.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "tests/security/hostile_client/scenarios.h"

namespace causeway::hostile {
namespace {

constexpr absl::Duration kAnswers = absl::Seconds(20);

// A coordinator with its own authority, and who invites.
class Host {
 public:
  Host()
      : run_({.server = [this](server::CoordinatorServer::Options& options) {
          options.authority_folder = folder_.path("authority");
          options.operator_folder = folder_.path("operator");
        }}) {}
  absl::Status Start() { return run_.Start(); }
  Run& run() { return run_; }
  absl::StatusOr<InvitationLine> Invite(const std::string& name) {
    ASSIGN_OR_RETURN(const std::string secret, MakeInvitationSecret());
    ASSIGN_OR_RETURN(const KeyedCertificate shown, CertificateOfInvitation(secret, name));
    v1::InviteRequest request;
    request.set_name(name);
    request.set_role("worker");
    request.set_seconds(3600);
    request.set_certificate(shown.certificate);
    v1::InviteResponse made;
    RETURN_IF_ERROR(
        Ask([&](auto& stub, auto* context) { return stub.Invite(context, request, &made); }));
    return InvitationLine{.addresses = {run_.address()},
                          .run = made.run_name(),
                          .name = name,
                          .pin = made.authority_sha256(),
                          .secret = secret};
  }
  // On a machine of that name.
  absl::StatusOr<Boarded> Board(const std::string& machine, const InvitationLine& line,
                                absl::Duration patience) {
    return causeway::Board(FormatInvitation(line), folder_.path(machine), patience);
  }
  bool HasKept(const std::string& machine) {
    return std::filesystem::exists(folder_.path(absl::StrCat(machine, "/cert.pem")));
  }

 private:
  template <typename Call>
  absl::Status Ask(const Call& call) {
    ASSIGN_OR_RETURN(const Boarded boarded,
                     causeway::Board(folder_.path("operator"), "", kAnswers));
    ASSIGN_OR_RETURN(const ChannelSecurity security,
                     MakeChannelSecurity(boarded.security, run_.address(), absl::Now()));
    const auto stub = v1::Enrollment::NewStub(MakeChannel(run_.address(), 0, security));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kAnswers));
    return FromGrpcStatus(call(*stub, &context));
  }

  const TestFolder folder_;
  Run run_;
};

// A coordinator with an authority of the same name takes the connection of who was invited.
absl::StatusOr<Outcome> AnotherAuthority() {
  Host host, liar;
  for (Host* each : {&host, &liar}) {
    RETURN_IF_ERROR(each->Start());
  }
  absl::StatusOr<InvitationLine> line = host.Invite("berlin");
  RETURN_IF_ERROR(line.status());
  line->addresses = {liar.run().address()};
  const absl::Status status = host.Board("thief", *line, kAnswers).status();
  const bool told = !liar.run().record().all().empty();
  return Outcome{.held = absl::IsFailedPrecondition(status) && !told && !host.HasKept("thief"),
                 .what = absl::StrCat(told ? "it was told something: " : "", status.message())};
}

// A secret has 256 bits. What is tried is whether guesses reach a call, or disturb who was invited.
absl::StatusOr<Outcome> ThousandGuesses() {
  Host host;
  RETURN_IF_ERROR(host.Start());
  const absl::StatusOr<InvitationLine> line = host.Invite("berlin");
  RETURN_IF_ERROR(line.status());
  const TestFolder folder;
  const absl::StatusOr<std::string> authority =
      FetchAuthority(host.run().address(), line->pin, kAnswers);
  RETURN_IF_ERROR(authority.status());
  constexpr int kSecrets = 10;  // Each takes a tenth of a second to make.
  constexpr int kEach = 100;
  int admitted = 0;
  for (int i = 0; i < kSecrets; ++i) {
    const absl::StatusOr<std::string> secret = MakeInvitationSecret();
    RETURN_IF_ERROR(secret.status());
    const absl::StatusOr<KeyedCertificate> guess = CertificateOfInvitation(*secret, "berlin");
    RETURN_IF_ERROR(guess.status());
    SecurityOptions options = folder.WriteSet(
        "guess", *authority, {.certificate = guess->certificate, .key = guess->key});
    options.server_name = kCoordinatorName;
    for (int j = 0; j < kEach; ++j) {
      admitted += TryTlsHandshake(host.run().address(), options, kAnswers).ok();
    }
  }
  const absl::Status owner = host.Board("owner", *line, kAnswers).status();
  return Outcome{.held = admitted == 0 && owner.ok(),
                 .what = absl::StrCat(kSecrets * kEach, " guesses, ", admitted,
                                      " beyond the handshake; the owner is ",
                                      owner.ok() ? "in" : std::string(owner.message()))};
}

// Whether another user of the machine can read `secret` while causewayctl, started with that flag
// and that variable, waits for an answer from `listener`.
absl::StatusOr<bool> IsShown(int listener, const std::string& secret, std::string flag,
                             std::string variable) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string program = (self.parent_path() / "causewayctl").string();
  std::string command = "status";
  char* const words[] = {program.data(), command.data(), flag.data(), nullptr};
  char* const variables[] = {variable.data(), nullptr};
  pid_t process = 0;
  const int spawned = posix_spawn(&process, program.c_str(), nullptr, nullptr, words, variables);
  if (spawned != 0) {
    return absl::NotFoundError(absl::StrCat(program, ": ", std::strerror(spawned)));
  }
  int asked = -1;
  const auto end = absl::MakeCleanup([&] {  // In this order: it would ask again.
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    if (asked >= 0) close(asked);
  });
  pollfd wanted{listener, POLLIN, 0};
  if (poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(kAnswers))) <= 0) {
    return absl::UnavailableError(absl::StrCat(program, " asks nobody"));
  }
  asked = accept(listener, nullptr, nullptr);
  const std::string shown = absl::StrCat("/proc/", process);
  std::ifstream file(shown + "/cmdline");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  struct stat environment {};
  if (line.empty() || stat((shown + "/environ").c_str(), &environment) != 0) {
    return absl::UnavailableError(absl::StrCat(program, " has ended"));
  }
  return absl::StrContains(line, secret) || (environment.st_mode & 077) != 0;
}

absl::StatusOr<Outcome> InPs() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto close_it = absl::MakeCleanup([listener] { close(listener); });
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, size) != 0 || listen(listener, 8) != 0 ||
      getsockname(listener, generic, &size) != 0) {
    return absl::UnavailableError("no port");
  }
  const absl::StatusOr<std::string> made = MakeInvitationSecret();
  RETURN_IF_ERROR(made.status());
  const std::string line =
      FormatInvitation({.addresses = {absl::StrCat("127.0.0.1:", ntohs(address.sin_port))},
                        .run = "first",
                        .name = "berlin",
                        .pin = std::string(64, '0'),
                        .secret = *made});
  const std::string secret = line.substr(line.rfind('.') + 1);
  const TestFolder folder;
  const std::string file = folder.Write("line", line);
  const std::string kept = absl::StrCat("--identity=", folder.path("kept"));
  Outcome outcome{.held = true};
  const struct {
    const char* name;
    std::string flag, variable;
  } ways[] = {{"flag", absl::StrCat("--join=", line), absl::StrCat("HOME=", folder.path("home"))},
              {"file", absl::StrCat("--join=@", file), absl::StrCat("HOME=", folder.path("home"))},
              {"environment", kept, absl::StrCat("CAUSEWAY_JOIN=", line)}};
  for (const auto& way : ways) {
    const absl::StatusOr<bool> is_shown = IsShown(listener, secret, way.flag, way.variable);
    RETURN_IF_ERROR(is_shown.status());
    outcome.held &= !*is_shown;
    absl::StrAppend(&outcome.what, outcome.what.empty() ? "" : ", ", "by ", way.name, ": ",
                    *is_shown ? "shown" : "hidden");
  }
  return outcome;
}

}  // namespace

std::vector<Scenario> InvitationScenarios() {
  return {{"invitation_another_authority", "another coordinator where the line leads",
           AnotherAuthority},
          {"invitation_in_ps", "what other users of the invited machine see", InPs},
          {"invitation_guesses", "a thousand guesses at an open line", ThousandGuesses}};
}

}  // namespace causeway::hostile
