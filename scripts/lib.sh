# Shared by the scripts in this folder; sourced, never run.
#
# Nouns: a package list (Debian package names), a preset (of CMakePresets.json, built in build/<preset>).
# Invariant: with nothing to install and nothing to build, a script says nothing about it and takes seconds.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# What each kind of work needs. Nothing here pulls in CUDA: the device tier is found at run time.
build_packages=(g++ cmake ninja-build liburing-dev libxxhash-dev nlohmann-json3-dev libhwloc-dev libnuma-dev
  doctest-dev libbenchmark-dev)
program_packages=(python3 python3-numpy python3-torch libopenblas0-openmp)
peer_packages=(libtcmalloc-minimal4 libjemalloc2 libmimalloc2.0 util-linux valgrind)
demo_packages=(fortunes fortunes-min) # the text that the demo trains on: plain files, no service

say() { printf 'terrace: %s\n' "$*"; }
die() { printf 'terrace: %s\n' "$*" >&2; exit 1; }

# missing_packages NAME...: prints those that dpkg does not hold as installed.
missing_packages() {
  local have name
  have=" $(dpkg-query -W -f='${db:Status-Status}=${Package} ' "$@" 2>/dev/null || true)"
  for name in "$@"; do
    [[ $have == *" installed=$name "* ]] || printf '%s ' "$name"
  done
}

# ensure_packages NAME...: says what is missing, then installs it; root or sudo only when something is.
# The names that were added are left in installed_packages.
installed_packages=()
ensure_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: please see to it that these are installed: $*"
    return 0
  fi
  local missing become=()
  missing=$(missing_packages "$@")
  [[ -n $missing ]] || return 0
  say "missing Debian packages: $missing"
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || die "not root and no sudo; install them with: apt-get install $missing"
    become=(sudo)
  fi
  say "installing them (apt-get, no recommended extras)"
  export DEBIAN_FRONTEND=noninteractive
  if [[ -z ${apt_updated:-} ]]; then
    "${become[@]}" apt-get update -qq || die "apt-get update failed: is the network reachable?"
    apt_updated=1
  fi
  # shellcheck disable=SC2086
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 $missing >/dev/null ||
    die "apt-get could not install: $missing"
  # shellcheck disable=SC2206
  installed_packages+=($missing)
  say "installed: $missing"
}

# build_preset NAME [TARGET...]: configures once (ninja reruns cmake when a CMakeLists changed) and builds.
build_preset() {
  local preset=$1
  shift
  if [[ ! -f build/$preset/build.ninja ]]; then
    cmake --preset "$preset" >"/dev/null" || cmake --preset "$preset"
  fi
  local targets=()
  [[ $# == 0 ]] || targets=(--target "$@")
  # ninja says "no work to do." by itself when that is so
  cmake --build "build/$preset" -j "$(nproc)" "${targets[@]}"
}
