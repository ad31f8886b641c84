// A program's commands and flags, each said once: its help page and the shells' completion are made
// of this table and of the flags' definitions.
//
// A flag's help begins with what stands for its value, "FILE: the run's configuration", which is
// printed as --config=FILE. Without such a word the default stands there: --memory_mb=0. Choices
// have bars between them, "full|none: ...", and no other value is taken unless one is in capitals.
// The help of a switch that is on says what --noNAME does.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

// Commands of one name are one command, which the page explains in several parts.
struct Command {
  absl::string_view usage;  // Lines without the program's name; the command's name comes first.
  absl::string_view about;
  absl::string_view flags = {};    // Names with spaces between; @NAME: those of a group.
  size_t arguments = 0;            // So many that are no flags, at most.
  absl::string_view heading = {};  // A line above the command and those that follow.
};

// Flags of several commands, which the page explains after the commands.
struct FlagGroup {
  absl::string_view name = {};  // Empty: every command takes them.
  absl::string_view heading;
  absl::string_view flags;
};

// Commands, and flags with their dashes, that the program had once.
struct Moved {
  absl::string_view names;  // With spaces between.
  absl::string_view to;     // What took their place.
};

struct Program {
  absl::string_view name;
  absl::string_view about = {};
  std::span<const Command> commands;
  std::span<const FlagGroup> groups = {};
  absl::string_view end = {};  // The page's last lines.
  std::span<const Moved> moved = {};
};

// The first of that name; null: there is none.
const Command* FindCommand(const Program& program, absl::string_view name);
// The names of all commands, with `separator` between them.
std::string CommandNames(const Program& program, absl::string_view separator);

// The names of the commands that take this flag, each once.
std::vector<absl::string_view> CommandsWithFlag(const Program& program, absl::string_view flag);

// The page of one command, or with an empty name that of the program. Each flag is explained once.
// Ends the process if the table names a flag that the program does not define.
std::string HelpPage(const Program& program, absl::string_view command);

// INVALID_ARGUMENT if the flag's help begins with choices, all of them words, and `value` is none.
absl::Status CheckChoice(absl::string_view flag, absl::string_view value);

// A script to be sourced. INVALID_ARGUMENT unless `shell` is bash or zsh.
absl::StatusOr<std::string> CompletionScript(const Program& program, absl::string_view shell);

}  // namespace causeway
