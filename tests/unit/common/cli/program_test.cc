#include "common/cli/program.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(std::string, store, "", "FOLDER: where bread is kept");
ABSL_FLAG(std::string, grain, "rye", "rye|spelt|NAME: of the flour");
ABSL_FLAG(int, loaves, 3,
          "so many at once, as long as the oven has room for them and for the baker");
ABSL_FLAG(int64_t, most, 0, "N: never more");
ABSL_FLAG(absl::Duration, rest, absl::Minutes(90), "before the oven");
ABSL_FLAG(bool, salted, true, "leaves salt out");
ABSL_FLAG(std::string, oven, "wood", "wood|electric: the oven's heat");
ABSL_FLAG(bool, loud, false, "says what it does");

namespace causeway {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

constexpr Command kCommands[] = {
    {.usage = "bake --store=FOLDER",
     .about = "Makes bread.",
     .flags = "store grain loaves most salted @oven",
     .heading = "Make"},
    {.usage = "bake (at night)", .about = "While others sleep.", .flags = "loud"},
    {.usage = "list all\nlist NAME",
     .about = "Tells what there is.",
     .flags = "store",
     .arguments = 1},
};
constexpr FlagGroup kGroups[] = {
    {.name = "oven", .heading = "The oven", .flags = "oven rest"},
    {.heading = "For all", .flags = "loud"},
};
constexpr Moved kMoved[] = {{.names = "fry --oil", .to = "the kitchen does"},
                            {.names = "bottle", .to = "the cellar does"}};
constexpr Program kBakery = {.name = "the-bakery",
                             .about = "the-bakery has bread.",
                             .commands = kCommands,
                             .groups = kGroups,
                             .end = "Closed on Mondays.\n",
                             .moved = kMoved};

TEST(HelpPage, ExplainsEveryFlagOnceByItsDefinition) {
  EXPECT_EQ(HelpPage(kBakery, ""),
            R"(the-bakery has bread.

Make
  the-bakery bake --store=FOLDER
      Makes bread.
        --store=FOLDER             where bread is kept
        --grain=rye|spelt|NAME     of the flour (default: rye)
        --loaves=3                 so many at once, as long as the oven has room for them and for
                                   the baker
        --most=N                   never more
        --nosalted                 leaves salt out
        also oven (below)

  the-bakery bake (at night)
      While others sleep.
        --loud                     says what it does

  the-bakery list all
  the-bakery list NAME
      Tells what there is.
        also --store

The oven
        --oven=wood|electric       the oven's heat (default: wood)
        --rest=1h30m               before the oven

For all
        also --loud

the-bakery COMMAND --help explains one; --flagfile=FILE has flags, one a line.
Completion: source <(the-bakery completion bash). The release: --version
Closed on Mondays.
)");
}

TEST(HelpPage, OfOneCommandHasAllThatItTakes) {
  EXPECT_EQ(HelpPage(kBakery, "list"),
            R"(  the-bakery list all
  the-bakery list NAME
      Tells what there is.
        --store=FOLDER             where bread is kept

For all
        --loud                     says what it does
)");
}

TEST(HelpPageDeathTest, NamesNoFlagThatIsNone) {
  constexpr Command kWrong[] = {{.usage = "bake", .about = "Makes bread.", .flags = "no_such"}};
  EXPECT_DEATH(HelpPage({.name = "the-bakery", .commands = kWrong}, ""), "--no_such, which is no");
}

// tests/integration/command_line_test.py has what it offers of a help page.
TEST(CompletionScript, OffersCommands) {
  const auto script = CompletionScript(kBakery, "bash").value();
  EXPECT_THAT(script, HasSubstr("words=\"bake list completion --help --version\""));
  EXPECT_THAT(script, HasSubstr("complete -o default -F _the_bakery the-bakery\n"));
  EXPECT_EQ(*CompletionScript(kBakery, "zsh"),
            "autoload -U +X bashcompinit && bashcompinit\n" + script);
  EXPECT_FALSE(CompletionScript(kBakery, "fish").ok());
}

void Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "the-bakery");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ParseCommandLine(static_cast<int>(argv.size()), argv.data(), kBakery, "1.0");
}

TEST(ParseCommandLineDeathTest, RefusesWhatIsNoCommand) {
  EXPECT_EXIT(Parse({}), ExitedWithCode(2), "a command is required: bake, list");
  EXPECT_EXIT(Parse({"brew"}), ExitedWithCode(2), "unknown command \"brew\": bake, list");
  EXPECT_EXIT(Parse({"list", "rye", "all"}), ExitedWithCode(2), "unexpected argument \"all\"");
  EXPECT_EXIT(Parse({"completion", "fish"}), ExitedWithCode(2), "for bash or zsh, not \"fish\"");
  EXPECT_EXIT(Parse({"bake", "--brew"}), ExitedWithCode(2), "unknown flag --brew");
  EXPECT_EXIT(Parse({"bake", "--brew", "--help"}), ExitedWithCode(2), "unknown flag --brew");
  EXPECT_EXIT(Parse({"bake", "--oven=gas"}), ExitedWithCode(2),
              "--oven must be wood or electric; it is \"gas\"; --help lists the flags");
  EXPECT_EXIT(Parse({"bake", "--oven=wood", "--grain=oat", "--help"}), ExitedWithCode(0), "");
  EXPECT_EXIT(Parse({"bake", "--help"}), ExitedWithCode(0), "");
}

TEST(ParseCommandLineDeathTest, SaysWhatTookThePlaceOfWhatItHadOnce) {
  EXPECT_EXIT(Parse({"fry", "--pan=big"}), ExitedWithCode(2),
              "the-bakery: fry has moved: the kitchen does");
  EXPECT_EXIT(Parse({"bake", "--oil=olive", "--help"}), ExitedWithCode(2),
              "the-bakery: --oil has moved: the kitchen does");
  EXPECT_EXIT(Parse({"bottle", "--help"}), ExitedWithCode(2), "bottle has moved: the cellar does");
  Parse({"list", "--store=--oil"});
  Parse({"list", "fry"});
}

TEST(ParseCommandLineDeathTest, RefusesFlagsOfOtherCommands) {
  EXPECT_EXIT(Parse({"list", "--loaves=2"}), ExitedWithCode(2),
              "the-bakery: list takes no --loaves, which is for bake; --help explains");
  EXPECT_EXIT(Parse({"list", "--nosalted"}), ExitedWithCode(2), "list takes no --salted");
  EXPECT_EXIT(Parse({"list", "--rest", "1h"}), ExitedWithCode(2), "list takes no --rest");
  EXPECT_EXIT(Parse({"--rest=1h", "list"}), ExitedWithCode(2), "list takes no --rest");
}

TEST(ParseCommandLine, TakesFlagsOfTheCommandAndOfAllCommands) {
  Parse({"bake", "--loaves=2", "--rest=1h", "--loud"});
  EXPECT_EQ(absl::GetFlag(FLAGS_loaves), 2);
  Parse({"list", "--store=cellar", "--loud"});
  EXPECT_EQ(absl::GetFlag(FLAGS_store), "cellar");
}

TEST(ParseCommandLine, AFileOfFlagsMayServeSeveralCommands) {
  const std::string path = testing::TempDir() + "/bakery.flags";
  std::ofstream(path) << "--loaves=7\n--store=attic\n";
  Parse({"list", "--flagfile=" + path});
  EXPECT_EQ(absl::GetFlag(FLAGS_store), "attic");
}

}  // namespace
}  // namespace causeway
