# Sourced by tools/test and tools/demo.  Says where the workspace is, and how a
# script calls bazel.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
if [[ -z ${HOME:-} ]]; then
  HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
  export HOME
fi

# Bazel does not see changes of /usr/include.  So the name of the cache has the
# versions of everything that lives there.
bazel_cache() {
  local base=${RCSOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rcsock} key
  key=$(dpkg-query -W -f='${Package} ${Version}\n' 'lib*-dev' linux-libc-dev \
    nlohmann-json3-dev googletest g++ 'g++-*' 'gcc-*' 'clang-*' \
    bazel-bootstrap 2>/dev/null | sort | sha256sum | cut -c1-16)
  mkdir -p "$base/$key"
  touch "$base/$key"
  # Deletes what no build has used for a month.
  find "$base" -mindepth 1 -maxdepth 1 -type d -mtime +30 -exec rm -rf {} +
  echo "$base/$key"
}

# run_bazel COMMAND ARGS...: leaves no server behind, and uses the disk cache.
run_bazel() {
  local command=$1
  shift
  bazel --batch "$command" --disk_cache="$(bazel_cache)" "$@"
}
