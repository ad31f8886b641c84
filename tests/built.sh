# Sourced by scripts that run programs of this tree; `root` is its folder.

# Whether help is all that is asked for: then nothing is to be built or installed.
wants_help() {
  local word
  for word in "$@"; do
    if [[ $word == --help || $word == -h ]]; then return 0; fi
  done
  return 1
}

# Sets `preset` and `arguments` of a script that prints its usage() on request, from its words.
take_preset() {
  if wants_help "$@"; then usage; exit 0; fi
  preset=release
  arguments=()
  while [[ $# -gt 0 ]]; do
    case $1 in
      --preset=*) preset=${1#*=} ;;
      --preset)
        [[ $# -gt 1 ]] || { echo "$0: --preset needs a name" >&2; exit 2; }
        preset=$2
        shift ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
}

# Builds these targets in the preset, and starts the first one with the arguments.
build_and_start() {
  local build=build/$preset
  {
    [[ -f $build/build.ninja ]] || cmake --preset "$preset" </dev/null
    cmake --build "$build" --target "$@" </dev/null
  } >&2
  exec "$build/bin/$1" "${arguments[@]}"
}

# Builds these targets in the preset release, unless CAUSEWAY_BIN names programs; it does then.
# PACKAGES: a further list of deploy/install_packages.
built() {
  if [[ -n ${CAUSEWAY_BIN:-} ]]; then return; fi
  (
    cd "$root"
    deploy/install_packages ${PACKAGES:-}
    [[ -f build/release/build.ninja ]] || cmake --preset release
    cmake --build build/release --target "$@"
  ) </dev/null >&2
  export CAUSEWAY_BIN=$root/build/release/bin
}
