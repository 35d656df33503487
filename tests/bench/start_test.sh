#!/bin/bash
# usage: start_test START SHIM
#
# The system calls that the preload costs a process that has no connection: its
# own and the loader's, whose number changes a little with glibc. (Page faults
# change with how it is built.) The loader makes nine of them, and ten more for
# each library that the preload names and the program does not: there is none.
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES
shim=$(readlink -f "$2")
"$1" "$shim" --runs 11 --calls 23
