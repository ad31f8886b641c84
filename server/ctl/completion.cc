#include "server/ctl/completion.h"

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

constexpr char kBash[] = R"(_causewayctl() {
  local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local command="${COMP_WORDS[1]}"
  local commands="status watch workers rounds events pause resume drain reject stop export config plan simulate completion"
  local flags="--coordinator= --json --timeout= --tls_ca= --tls_cert= --tls_key= --token_file= --tls_server_name= --insecure --help"
  local links="--params= --config= --preset= --step_ms= --links= --connections= --rtt_ms= --link_efficiency= --max_pace= --coordinator_link= --merge_gb_per_s= --commit_ms= --outages= --return_s= --silences= --jitter= --stragglers= --step_spread= --target= --json --help"
  compopt -o nospace 2>/dev/null
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "$commands $flags" -- "$word"))
    return
  fi
  case "$command $previous" in
    "config config") COMPREPLY=($(compgen -W "show check diff presets" -- "$word")); return ;;
    "config check"|"config diff") COMPREPLY=($(compgen -f -- "$word")); return ;;
    "completion completion") COMPREPLY=($(compgen -W "bash zsh" -- "$word")); return ;;
  esac
  case "$command" in
    stop) flags="--at_step= --at_tokens= $flags" ;;
    drain|workers) flags="--all $flags" ;;
    pause) flags="--reason= $flags" ;;
    reject) flags="--fragment= --round= --reason= --undo $flags" ;;
    watch) flags="--interval= --patience= $flags" ;;
    events) flags="--follow --level= --last= --interval= --patience= $flags" ;;
    config) flags="--preset= $flags" ;;
    export) flags="--out= --format= --dtype= --tokenizer= --max_positions= --max_file_gb= --deadline= --replace $flags" ;;
    plan) flags="--coordinator_memory_gb= --disk_gb_per_s= --days= --egress_per_tb= $links" ;;
    simulate) flags="--table=paper --sweep= --need --fragments= --steps_between_syncs= --overlap_steps= --max_overlap_steps= --codec_up= --codec_down= --shards= --slices= --tiers= --object_bytes= --grace_ms= --quorum= --failure_hours= --lease_s= --restart_s= --steps= --seed= $links" ;;
  esac
  COMPREPLY=($(compgen -W "$flags" -- "$word"))
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
