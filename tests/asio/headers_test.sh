#!/bin/bash
# The headers a program includes, each alone and with every warning, by g++ and by
# clang.
#
# usage: headers_test.sh INCLUDE-DIRECTORY
set -uo pipefail
include=$1
failed=0
for compiler in g++ clang++; do
  for header in rcsock/asio.hpp rcsock/asio/beast.hpp; do
    echo "#include <$header>" | "$compiler" -std=c++17 -fsyntax-only -x c++ \
      -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I"$include" - || {
      echo "FAILED: $header, $compiler"
      failed=1
    }
  done
done
exit $failed
