#include "common/base/text.h"

#include <string>

#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(Printable, TextStaysAsItIs) {
  for (const char* text : {"", "cpu, 8 threads", "Zürich \u20ac \u00a0", "tilde ~"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, NeitherLinesNorOrdersToATerminalPass) {
  EXPECT_EQ(Printable("gpu\x1b[2J\nINFO: all is well\r\t\x7f"), "gpu?[2J?INFO: all is well???");
  EXPECT_EQ(Printable("\u009b2J\u0080\u009f"), "?2J??");  // C1: CSI in one character.
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a?b");
}

TEST(Printable, ACharacterThatIsCutOffIsNoReasonToReadOn) {
  EXPECT_EQ(Printable("a\xC2"), "a\xC2");
}

}  // namespace
}  // namespace causeway
