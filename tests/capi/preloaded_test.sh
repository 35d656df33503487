#!/bin/bash
# usage: preloaded_test PROGRAM SHIM ARGUMENTS...: PROGRAM under the preload
program=$1 shim=$2
shift 2
export LD_PRELOAD=$PWD/$shim
exec "$program" "$@"
