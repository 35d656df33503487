#!/bin/bash
# usage: fakeroot_test BOTH PROGRAM SHIM
set -euo pipefail
exec fakeroot -- "$1" "$2" "$3" lane
