#!/bin/bash
# usage: headers_test HEADER...
#
# Each header alone, with every warning, in C and C++, by g++ and clang; and
# posix_names.h sends every call of a source to us, whatever the source defines.
set -uo pipefail
here=$(dirname "$0")
include=
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for header; do
  [[ $header == */rcsock/rcsock.h ]] && include=${header%/rcsock/rcsock.h}
done
strict="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only"

# compile COMMAND...: it must succeed and say nothing
compile() {
  local out
  out=$("$@" 2>&1) && [[ -z $out ]] && return
  echo "FAILED: $*"
  echo "$out"
  failed=1
}

for header; do
  # (asio.hpp includes those below asio/.)
  case $header in */asio/*) continue ;; *.h | *.hpp) ;; *) continue ;; esac
  name=rcsock/${header##*/rcsock/}
  for extra in '' "#define _GNU_SOURCE"; do
    printf '%s\n#include <%s>\n#include <%s>\nint nothing;\n' \
      "$extra" "$name" "$name" >"$work/one.c"
    # (A C++ compiler defines it itself.)
    for compiler in gcc clang; do
      if [[ $header == *.h ]]; then
        for standard in c99 c11 gnu17; do
          # shellcheck disable=SC2086
          compile $compiler -x c -std=$standard $strict -I"$include" "$work/one.c"
        done
      fi
      [[ -z $extra ]] || continue
      for standard in c++11 c++17 c++20; do
        # (Boost's headers take seconds each.)
        [[ $header == *.hpp && $standard != c++20 ]] && continue
        # shellcheck disable=SC2086
        compile $compiler -x c++ -std=$standard $strict -I"$include" \
          "$work/one.c"
      done
    done
  done
done

for compiler in "gcc -std=c11" "clang -std=c11" "g++ -x c++ -std=c++17" \
  "clang++ -x c++ -std=c++17"; do
  for options in -O0 "-O2 -D_FORTIFY_SOURCE=2"; do
    # shellcheck disable=SC2086
    compile $compiler $options -Wall -Wextra -Wpedantic -Werror -I"$include" \
      -include rcsock/posix_names.h -c "$here/names.c" -o "$work/names.o"
    names=$(nm -u "$work/names.o" | awk '{print $2}' | grep -E \
      '^(_?_?(read|recv|send|poll|close|fcntl|accept|epoll|signal|fork|exec|_exit|dprintf|sendfile|preadv))')
    if [[ -n $names ]]; then
      echo "FAILED: $compiler $options leaves" $names
      failed=1
    fi
    [[ $(nm -u "$work/names.o" | grep -c ' rcs_') == 15 ]] || {
      echo "FAILED: $compiler $options: not 15 calls of ours"
      nm -u "$work/names.o"
      failed=1
    }
  done
done
exit $failed
