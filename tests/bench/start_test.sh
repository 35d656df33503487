#!/bin/bash
# usage: start_test START SHIM
#
# The system calls that the preload costs a process that has no connection: its
# own and the loader's, whose number changes a little with glibc. (Page faults
# change with how it is built.) The loader makes sixteen of them for libpthread.so.0
# and libdl.so.2. Since glibc 2.34 these hold nothing. The preload names them, so that
# glibc 2.17 can load it, too.
set -euo pipefail
unset RCSOCK_LOG RCSOCK_LOG_FILE RCSOCK_STATS RCSOCK_RULES
shim=$(readlink -f "$2")
"$1" "$shim" --runs 11 --calls 52
