#include "server/ctl/completion.h"

#include <set>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace causeway::server {
namespace {

constexpr char kBash[] = R"(_causewayctl() {
  local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local command="${COMP_WORDS[1]}"
  local flags="--coordinator= --json --timeout= --tls_ca= --tls_cert= --tls_key= --token_file= --tls_server_name= --insecure --help"
  compopt -o nospace 2>/dev/null
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "@COMMANDS@ $flags" -- "$word"))
    return
  fi
  case "$command $previous" in
    "config config") COMPREPLY=($(compgen -W "show check diff presets" -- "$word")); return ;;
    "config check"|"config diff") COMPREPLY=($(compgen -f -- "$word")); return ;;
    "completion completion") COMPREPLY=($(compgen -W "bash zsh" -- "$word")); return ;;
  esac
  case "$command" in
    plan|simulate) flags="--json --help" ;;  # Without a coordinator.
  esac
  case "$command" in
@FLAGS@  esac
  COMPREPLY=($(compgen -W "$flags" -- "$word"))
}
complete -F _causewayctl causewayctl
)";

// The flags whose help begins with the command: "pause, reject: for the record".
std::string FlagsOf(absl::string_view command) {
  std::set<std::string> words;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    const std::string help = flag->Help();
    const std::vector<std::string> commands = absl::StrSplit(help.substr(0, help.find(':')), ", ");
    if (absl::c_linear_search(commands, command)) {
      words.insert(absl::StrCat("--", name, flag->IsOfType<bool>() ? "" : "="));
    }
  }
  return absl::StrReplaceAll(absl::StrJoin(words, " "), {{"--table=", "--table=paper"}});
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const std::string& shell) {
  std::string flags;
  for (const absl::string_view command : kCommands) {
    absl::StrAppend(&flags, "    ", command, ") flags=\"", FlagsOf(command), " $flags\" ;;\n");
  }
  const std::string bash = absl::StrReplaceAll(
      kBash, {{"@COMMANDS@", absl::StrJoin(kCommands, " ")}, {"@FLAGS@", flags}});
  if (shell == "bash") return bash;
  if (shell == "zsh") return absl::StrCat("autoload -U +X bashcompinit && bashcompinit\n", bash);
  return absl::InvalidArgumentError(
      absl::StrCat("completion is for bash or zsh, not \"", shell,
                   "\"; for bash: source <(causewayctl completion bash)"));
}

}  // namespace causeway::server
