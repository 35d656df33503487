#!/bin/bash
# usage: containers_test.sh PRELOAD
exec /usr/bin/python3 -B "$(dirname "$0")/containers_test.py" "$@"
