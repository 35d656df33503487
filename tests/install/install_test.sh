#!/bin/bash
# Installs what has been built, then builds and runs programs outside the tree
# against it: by pkg-config, by CMake, and with --bazel by Bazel.
#
# usage: install_test.sh [--bazel]   in the tree's layout (runfiles)
set -euo pipefail

here=$PWD
version=$(<VERSION)
work=${TEST_TMPDIR:-$(mktemp -d)}
prefix=$work/prefix
# Where rcsock would look, too.
unset RUNFILES_DIR RCSOCK_PRELOAD
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# --- The same files, with DESTDIR and without
tools/install.sh "$prefix" >/dev/null
DESTDIR=$work/stage tools/install.sh /usr >/dev/null
(cd "$prefix" && find . ! -name uninstall | sort) >"$work/plain"
(cd "$work/stage/usr" && find . | sort) >"$work/staged"
diff "$work/plain" "$work/staged" || fail "DESTDIR changes what is installed"
[[ $(find "$work/stage" -mindepth 1 -maxdepth 1) == "$work/stage/usr" ]] ||
  fail "something outside the prefix"
if grep -rl --binary-files=without-match "$work" "$work/stage"; then
  fail "the staging directory's name is in an installed file"
fi
if grep -rl '@[A-Z]*@' "$prefix/lib/pkgconfig" "$prefix/lib/cmake" "$prefix/share/rcsock"; then
  fail "a place was not filled in"
fi
for file in bin/rcsock lib/librcsock_preload.so lib/librcsock.so.0 lib/librcsock.so \
  include/rcsock/rcsock.h include/rcsock/asio.hpp include/rcsock/asio/connect.hpp \
  lib/pkgconfig/rcsock.pc lib/pkgconfig/rcsock-posix.pc \
  lib/pkgconfig/rcsock-rsocket.pc lib/cmake/rcsock/rcsock-config.cmake \
  share/doc/rcsock/examples/rcsock.conf share/doc/rcsock/LICENSE; do
  [[ -e $prefix/$file ]] || fail "$file is missing"
done
"$prefix/bin/rcsock" run -- true || fail "the installed program does not run"
LIBDIR=$work/other/lib64 tools/install.sh "$work/other" >/dev/null
"$work/other/bin/rcsock" run -- true || fail "with LIBDIR it does not run"
PRELOADDIR=$work/third/libexec tools/install.sh "$work/third" >/dev/null
"$work/third/bin/rcsock" run -- true || fail "with PRELOADDIR it does not run"
# What comes from /etc/rcsock.conf comes by `rcsock run`.
grep -q "^ExecStart=$prefix/bin/rcsock run -- " "$prefix/share/doc/rcsock/examples/rcsock.conf" ||
  fail "the drop-in does not use rcsock run"

# --- A page by the name of each call
pages=$prefix/share/man/man3
for call in rcs_send rcs_get_lane rcs_epoll_look rcs_place rcs_accept4 rcs_poll; do
  [[ $(<"$pages/$call.3") == ".so man3/rcs_socket.3" ]] || fail "no page $call(3)"
done
if command -v man >/dev/null; then
  for page in "$pages"/*.3; do
    man -E UTF-8 -M "$prefix/share/man" 3 "$(basename "$page" .3)" 2>/dev/null | grep -q 'RCS_SOCKET(3)' ||
      fail "man 3 $(basename "$page" .3)"
  done
fi

# --- What the pages lead to is there
cd "$prefix/share/doc/rcsock"
for page in *.md; do
  while read -r link; do
    [[ -e $link ]] || fail "$page leads to $link, which is not there"
  done < <(grep -oE '\]\([^):]+\)' "$page" | sed -E 's/^..//; s/[)#].*//' | grep . | sort -u)
done
grep -q '^# rcsock$' README.md || fail "README.md is not the reader's"
cd "$here"

# --- What is removed, and what is not
tools/install.sh "$work/fourth" >/dev/null
echo mine >"$work/fourth/include/rcsock/mine.h"
"$work/fourth/share/rcsock/uninstall" || fail "uninstall"
[[ $(cd "$work/fourth" && find . -type f -o -type l) == ./include/rcsock/mine.h ]] ||
  fail "left by uninstall: $(find "$work/fourth" -type f -o -type l)"
[[ ! -e $work/fourth/share/doc/rcsock && ! -e $work/fourth/share/rcsock ]] ||
  fail "directories are left by uninstall"

# --- Bad use: one line, no files
for bad in relative/path --nonsense; do
  if tools/install.sh "$bad" 2>"$work/err"; then fail "took $bad"; fi
  [[ $(wc -l <"$work/err") == 1 ]] || fail "$bad: more than a line"
done

export HOME=$work USER=${USER:-root} LD_LIBRARY_PATH=$prefix/lib
# A copy, so that nothing of the tree is near.
mkdir -p "$work/app"
cp -L tests/install/consumer.c "$work/app/"
awk '/^```cpp/{p=1;next} /^```/{p=0} p' docs/asio.md >"$work/app/echo.cc"
cd "$work/app"

# --- pkg-config
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# shellcheck disable=SC2046
cc -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Werror -o by_pkg consumer.c \
  $(pkg-config --cflags --libs rcsock)
[[ $(./by_pkg) == hello ]] || fail "pkg-config"
[[ $(pkg-config --modversion rcsock) == "$version" ]] || fail "pkg-config version"

# --- A program of plain sockets, and one of rsockets. Neither needs LD_LIBRARY_PATH
sed -e 's/rcs_//g' -e 's/<rcsock.rcsock.h>/<sys\/socket.h>\n#include <unistd.h>/' consumer.c >plain.c
sed -e 's/rcs_socket/rsocket/g; s/rcs_/r/g' -e 's/rcsock.h/rsocket.h/' consumer.c >rsockets.c
needs() { # PROGRAM LIBRARY: fails unless the program runs and needs the library
  readelf -d "$1" | grep -q "NEEDED.*\[$2\]" || fail "$1 does not need $2"
  [[ $(env -u LD_LIBRARY_PATH "./$1") == hello ]] || fail "$1 does not run"
}
# shellcheck disable=SC2046
cc -o plain_by_pkg plain.c -Wl,--as-needed "-Wl,-rpath,$prefix/lib" $(pkg-config --cflags --libs rcsock-posix)
needs plain_by_pkg librcsock_posix.so.0
# shellcheck disable=SC2046
cc -o rsockets_by_pkg rsockets.c "-Wl,-rpath,$prefix/lib" $(pkg-config --cflags --libs rcsock-rsocket)
needs rsockets_by_pkg librcsock_rsocket.so.0
for library in posix rsocket; do
  said=$(env -u LD_LIBRARY_PATH LD_PRELOAD="$prefix/lib/librcsock_$library.so.0" true 2>&1) && [[ -z $said ]] ||
    fail "librcsock_$library.so.0 cannot be preloaded: $said"
done

# --- CMake, C and Asio
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(consumer C CXX)
find_package(rcsock 0.1 REQUIRED)
add_executable(by_cmake consumer.c)
target_link_libraries(by_cmake rcsock::rcsock)
add_executable(plain_by_cmake plain.c)
target_link_libraries(plain_by_cmake rcsock::posix)
target_link_options(plain_by_cmake PRIVATE LINKER:--as-needed)
add_executable(rsockets_by_cmake rsockets.c)
target_link_libraries(rsockets_by_cmake rcsock::rsocket)
add_executable(echo echo.cc)
target_compile_features(echo PRIVATE cxx_std_20)
target_link_libraries(echo rcsock::asio)
CMAKE
cmake -B build -DCMAKE_PREFIX_PATH="$prefix" . >cmake.log || { cat cmake.log; fail "cmake"; }
cmake --build build >cmake.log || { cat cmake.log; fail "cmake --build"; }
[[ $(build/by_cmake) == hello ]] || fail "CMake"
needs build/plain_by_cmake librcsock_posix.so.0
needs build/rsockets_by_cmake librcsock_rsocket.so.0
lane=$(build/echo)
[[ $lane == shm || $lane == tcp ]] || fail "CMake, Asio: $lane"

# --- Bazel
if [[ ${1:-} == --bazel ]]; then
  # Bazel 4 fetches some repositories of its own; the tree has stand-ins.
  compat=$(dirname "$(realpath "$here/tests/install/install_test.sh")")/../../third_party/bazel_compat
  compat=$(realpath "$compat")
  cat >WORKSPACE <<WORKSPACE
workspace(name = "consumer")
local_repository(name = "rcsock", path = "$prefix/share/rcsock/bazel")
$(for name in rules_cc rules_java rules_shell remote_coverage_tools; do
    echo "local_repository(name = \"$name\", path = \"$compat/$name\")"
  done)
WORKSPACE
  cat >BUILD <<'BUILD'
cc_binary(
    name = "by_bazel",
    srcs = ["consumer.c"],
    deps = ["@rcsock//:rcsock"],
)
BUILD
  # (CMake's directory has names that Bazel would look into.)
  rm -rf build
  bazel --batch --output_user_root="$work/bazel" build --noshow_progress \
    --spawn_strategy=local //:by_bazel >bazel.log 2>&1 ||
    { cat bazel.log; fail "bazel build"; }
  [[ $(bazel-bin/by_bazel) == hello ]] || fail "Bazel"
  chmod -R u+w "$work/bazel" && rm -rf "$work/bazel"
fi
echo "ok"
