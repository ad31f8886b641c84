# Sourced by scripts that run programs of this tree; `root` is its folder.

# Whether help is all that is asked for: then nothing is to be built or installed.
wants_help() {
  local word
  for word in "$@"; do
    if [[ $word == --help || $word == -h ]]; then return 0; fi
  done
  return 1
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
