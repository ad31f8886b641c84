#include "server/ctl/completion.h"

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

constexpr char kBash[] = R"(_causewayctl() {
  local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local commands="status watch workers rounds pause resume drain stop config completion"
  local flags="--coordinator= --json --timeout= --tls_ca= --tls_cert= --tls_key= --token_file= --tls_server_name= --insecure --help"
  compopt -o nospace 2>/dev/null
  case "$previous" in
    causewayctl) COMPREPLY=($(compgen -W "$commands $flags" -- "$word")) ;;
    config) COMPREPLY=($(compgen -W "show check diff presets" -- "$word")) ;;
    check|diff) COMPREPLY=($(compgen -f -- "$word")) ;;
    completion) COMPREPLY=($(compgen -W "bash zsh" -- "$word")) ;;
    stop) COMPREPLY=($(compgen -W "--at_step= --at_tokens= $flags" -- "$word")) ;;
    drain|workers) COMPREPLY=($(compgen -W "--all $flags" -- "$word")) ;;
    pause) COMPREPLY=($(compgen -W "--reason= $flags" -- "$word")) ;;
    watch) COMPREPLY=($(compgen -W "--interval= $flags" -- "$word")) ;;
    *) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
  esac
}
complete -F _causewayctl causewayctl
)";

}  // namespace

absl::StatusOr<std::string> CompletionScript(const std::string& shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") {
    return absl::StrCat("autoload -U +X bashcompinit && bashcompinit\n", kBash);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("completion is for bash or zsh, not \"", shell,
                   "\"; for bash: source <(causewayctl completion bash)"));
}

}  // namespace causeway::server
