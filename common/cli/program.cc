#include "common/cli/program.h"

#include <set>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kAboutColumn = 6;
constexpr size_t kFlagColumn = 8;
constexpr size_t kOthersColumn = 13;
constexpr size_t kTextColumn = 35;

// Flags, their choices, and the words that come right after a command's name, such as those of
// `config show`, are those of the command's help page.
constexpr char kBash[] = R"(_@FUNCTION@() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" flag="" words=""
  case "$COMP_CWORD,${COMP_WORDS[1]}" in
    1,*) words="@COMMANDS@ completion --help --version" ;;
    *,completion) words="bash zsh" ;;
    *) words=$("${COMP_WORDS[0]}" "${COMP_WORDS[1]}" --help 2>/dev/null |
      awk -v command="${COMP_WORDS[1]}" -v at="$COMP_CWORD" -v word="$word" '
        /^  [^ ]/ && $2 == command && $3 ~ /^[a-z]+$/ {
          if (at == 2) print $3
          if (at > 2 && word == "") files = 1  # One stands behind such a word.
        }
        /^        --/ && !files {
          parts = split($1, part, /[=|]/)
          print part[1] (parts > 1 ? "=" : "")
          for (i = 2; i <= parts && $1 ~ /[|]/; ++i)
            if (part[i] ~ /^[a-z0-9-]+$/) print part[1] "=" part[i]
        }
        END { if (!files) print "--help" }') ;;
  esac
  # The shell splits --flag=value in three. Where no value is known it offers files.
  if [ "$word" = "=" ]; then flag="$before=" word=""; fi
  if [ "$before" = "=" ]; then flag="${COMP_WORDS[COMP_CWORD-2]}="; fi
  COMPREPLY=($(compgen -W "$words" -X "$flag" -- "$flag$word"))
  COMPREPLY=("${COMPREPLY[@]#"$flag"}")
  case "${COMPREPLY[0]-}" in *=) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _@FUNCTION@ @PROGRAM@
)";

using Names = std::vector<absl::string_view>;

Names Words(absl::string_view text) { return absl::StrSplit(text, ' ', absl::SkipEmpty()); }

absl::string_view NameOf(const Command& command) {
  return command.usage.substr(0, command.usage.find_first_of(" \n"));
}

// A flag as people write and read it.
struct FlagText {
  std::string name;   // --json, --noNAME of a switch that is on, or with a value --out=
  std::string value;  // What stands for it: the default, or a word.
  bool is_word = false;
  std::string text;
};

FlagText TextOf(absl::string_view name) {
  const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr) Fatal(absl::StrCat("a command names --", name, ", which is no flag"));
  const std::string given = flag->DefaultValue();
  FlagText result;
  result.text = flag->Help();
  if (flag->IsOfType<bool>()) {
    result.name = absl::StrCat(given == "true" ? "--no" : "--", name);
    return result;
  }
  result.name = absl::StrCat("--", name, "=");
  const size_t end = result.text.find(": ");
  result.is_word = end < result.text.find(' ');
  if (!result.is_word) {
    result.value = given;
    return result;
  }
  result.value = result.text.substr(0, end);
  result.text.erase(0, end + 2);
  // A number in whose place there is a word is one that nobody gives, such as 0.
  if (flag->IsOfType<std::string>() && !absl::StripAsciiWhitespace(given).empty()) {
    absl::StrAppend(&result.text, " (default: ", given, ")");
  }
  return result;
}

// Whether the command takes the group's flags; an empty name stands for any command.
bool Takes(const Program& program, absl::string_view command, const FlagGroup& group) {
  return group.name.empty() || absl::c_any_of(program.commands, [&](const Command& part) {
           return (command.empty() || NameOf(part) == command) &&
                  absl::c_linear_search(Words(part.flags), absl::StrCat("@", group.name));
         });
}

// Goes on in the page's last line, from `column` on if that is free, and in lines of that indent.
void AppendText(absl::string_view text, size_t column, std::string& page) {
  size_t used = page.size() - (page.rfind('\n') + 1);
  const size_t gap = used < column ? column - used : 2;
  page.append(gap, ' ');
  used += gap;
  absl::string_view between;
  for (const absl::string_view word : Words(text)) {
    if (!between.empty() && used + 1 + word.size() > kWidth) {
      absl::StrAppend(&page, "\n", std::string(column, ' '));
      used = column;
      between = "";
    }
    absl::StrAppend(&page, between, word);
    used += between.size() + word.size();
    between = " ";
  }
  page += '\n';
}

// `explained`: the flags that have been, to which these are added.
void AppendFlags(absl::string_view flags, std::set<absl::string_view>& explained,
                 std::string& page) {
  std::vector<std::string> others;
  for (const absl::string_view name : Words(flags)) {
    if (name.front() == '@') {
      others.push_back(absl::StrCat(name.substr(1), " (below)"));
      continue;
    }
    const FlagText flag = TextOf(name);
    if (!explained.insert(name).second) {
      others.emplace_back(absl::StripSuffix(flag.name, "="));
      continue;
    }
    absl::StrAppend(&page, std::string(kFlagColumn, ' '), flag.name, flag.value);
    AppendText(flag.text, kTextColumn, page);
  }
  if (!others.empty()) {
    absl::StrAppend(&page, std::string(kFlagColumn, ' '), "also");
    AppendText(absl::StrJoin(others, ", "), kOthersColumn, page);
  }
}

bool IsChoice(absl::string_view value) {
  return absl::c_all_of(
      value, [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; });
}

}  // namespace

const Command* FindCommand(const Program& program, absl::string_view name) {
  const auto found = absl::c_find_if(
      program.commands, [&](const Command& command) { return NameOf(command) == name; });
  return found == program.commands.end() ? nullptr : &*found;
}

std::string CommandNames(const Program& program, absl::string_view separator) {
  Names names;
  for (const Command& command : program.commands) {
    if (&command == FindCommand(program, NameOf(command))) names.push_back(NameOf(command));
  }
  return absl::StrJoin(names, separator);
}

std::vector<absl::string_view> CommandsWithFlag(const Program& program, absl::string_view flag) {
  const auto has = [&](absl::string_view flags) {
    return absl::c_linear_search(Words(flags), flag);
  };
  Names names;
  for (const Command& part : program.commands) {
    const absl::string_view name = NameOf(part);
    if (absl::c_linear_search(names, name)) continue;
    if (has(part.flags) || absl::c_any_of(program.groups, [&](const FlagGroup& group) {
          return has(group.flags) && Takes(program, name, group);
        })) {
      names.push_back(name);
    }
  }
  return names;
}

std::string HelpPage(const Program& program, absl::string_view command) {
  std::string page = command.empty() ? absl::StrCat(program.about, "\n") : "";
  std::set<absl::string_view> explained;
  for (const Command& part : program.commands) {
    if (!command.empty() && NameOf(part) != command) continue;
    page += '\n';
    if (command.empty() && !part.heading.empty()) absl::StrAppend(&page, part.heading, "\n");
    for (const absl::string_view line : absl::StrSplit(part.usage, '\n')) {
      absl::StrAppend(&page, "  ", program.name, " ", line, "\n");
    }
    AppendText(part.about, kAboutColumn, page);
    AppendFlags(part.flags, explained, page);
  }
  for (const FlagGroup& group : program.groups) {
    if (!Takes(program, command, group)) continue;
    absl::StrAppend(&page, "\n", group.heading, "\n");
    AppendFlags(group.flags, explained, page);
  }
  if (!command.empty()) return page.substr(1);
  return absl::StrCat(page, "\n", program.name, " COMMAND --help explains one; ",
                      "--flagfile=FILE has flags, one a line.\nCompletion: source <(", program.name,
                      " completion bash). The release: --version\n", program.end);
}

absl::Status CheckChoice(absl::string_view flag, absl::string_view value) {
  const FlagText text = TextOf(flag);
  Names choices = absl::StrSplit(text.value, '|');
  if (!text.is_word || choices.size() == 1 || !absl::c_all_of(choices, IsChoice) ||
      absl::c_linear_search(choices, value)) {
    return absl::OkStatus();
  }
  const absl::string_view last = choices.back();
  choices.pop_back();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be ",
                                                 absl::StrJoin(choices, ", "), " or ", last,
                                                 "; it is \"", value, "\""));
}

absl::StatusOr<std::string> CompletionScript(const Program& program, absl::string_view shell) {
  if (shell != "bash" && shell != "zsh") {
    return absl::InvalidArgumentError(absl::StrCat("completion is for bash or zsh, not \"", shell,
                                                   "\"; for bash: source <(", program.name,
                                                   " completion bash)"));
  }
  const std::string script =
      absl::StrReplaceAll(kBash, {{"@FUNCTION@", absl::StrReplaceAll(program.name, {{"-", "_"}})},
                                  {"@PROGRAM@", program.name},
                                  {"@COMMANDS@", CommandNames(program, " ")}});
  return absl::StrCat(shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" : "",
                      script);
}

}  // namespace causeway
