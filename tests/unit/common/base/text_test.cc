#include <string>

#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway {
namespace {

TEST(Printable, TextStaysAsItIsAndNeitherLinesNorOrdersToATerminalPass) {
  for (const char* text : {"", "cpu, 8 threads", "Zürich \u20ac \u00a0", "tilde ~", "a\xC2"}) {
    EXPECT_EQ(Printable(text), text);
  }
  EXPECT_EQ(Printable("gpu\x1b[2J\nINFO: all is well\r\t\x7f"), "gpu?[2J?INFO: all is well???");
  EXPECT_EQ(Printable("\u009b2J\u0080\u009f"), "?2J??");  // C1: CSI in one character.
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a?b");
}

using ::testing::HasSubstr;

TEST(CheckAddress, TakesHostAndPort) {
  for (const char* address : {"127.0.0.1:7070", "localhost:1", "coordinator.example.org:65535",
                              "[::1]:7070", "[2001:db8::2]:443"}) {
    EXPECT_TRUE(CheckAddress(address, false).ok()) << CheckAddress(address, false);
    EXPECT_TRUE(CheckAddress(address, true).ok()) << address;
  }
}

TEST(CheckAddress, RefusesEverythingElseAndShowsAnExample) {
  for (const char* address : {"",
                              ":",
                              "7070",
                              "localhost",
                              "localhost:",
                              ":7070",
                              "localhost:65536",
                              "localhost:-1",
                              "localhost:+1",
                              "localhost: 7070",
                              "localhost:70x",
                              "localhost:99999999999999999999",
                              "::1",
                              "::1:7070",
                              "[]:7070",
                              "[::1:7070",
                              "::1]:7070",
                              "[::1]",
                              "http://localhost:7070",
                              "a b:7070",
                              "localhost/path:7070"}) {
    EXPECT_THAT(CheckAddress(address, false),
                StatusIs(kInvalidArgument, AllOf(HasSubstr("127.0.0.1:7070"),
                                                 HasSubstr(std::string("\"") + address + "\""))))
        << address;
  }
}

TEST(CheckAddress, PortZeroIsForListenersOnly) {
  EXPECT_TRUE(CheckAddress("127.0.0.1:0", true).ok());
  EXPECT_FALSE(CheckAddress("127.0.0.1:0", false).ok());
}

TEST(IsLoopback, IsWhatCannotLeaveThisMachine) {
  for (const char* const address :
       {"127.0.0.1:1", "127.255.0.9:1", "localhost:1", "LOCALHOST:1", "[::1]:1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* const address :
       {"10.0.0.1:1", "0.0.0.0:1", "[::]:1", "128.0.0.1:1", "127.0.0.1.example:1", "127.1:1",
        "127.0.0.256:1", "127.0.0.-1:1", "localhost.example:1", "[::ffff:127.0.0.1]:1", "", ":1",
        "127.0.0.0001:1", "xlocalhost:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(SplitHostPort, GivesTheFormThatResolversTake) {
  const auto named = SplitHostPort("coordinator.example.org:7070", false).value();
  EXPECT_EQ(named.host, "coordinator.example.org");
  EXPECT_EQ(named.port, "7070");
  const auto bracketed = SplitHostPort("[2001:db8::2]:0", true).value();
  EXPECT_EQ(bracketed.host, "2001:db8::2");
  EXPECT_EQ(bracketed.port, "0");
  EXPECT_THAT(SplitHostPort("::1:7070", false), StatusIs(kInvalidArgument));
}

TEST(Annotate, PutsTheContextFirstAndKeepsCodeAndPayload) {
  EXPECT_TRUE(Annotate(absl::OkStatus(), "context").ok());
  absl::Status status = absl::NotFoundError("no such file");
  status.SetPayload("type", absl::Cord("more"));
  const absl::Status annotated = Annotate(status, "loading the corpus");
  EXPECT_THAT(annotated, StatusIs(kNotFound, "loading the corpus: no such file"));
  EXPECT_EQ(annotated.GetPayload("type"), absl::Cord("more"));
}

}  // namespace
}  // namespace causeway
