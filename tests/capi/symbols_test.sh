#!/bin/bash
# usage: symbols_test (LIBRARY VERSION_SCRIPT)...
set -euo pipefail
failed=0
while (($# > 0)); do
  library=$1 map=$2
  shift 2
  version=$(grep -o '^[A-Z0-9_.]* *{' "$map" | tr -d ' {' || true)
  wanted=$(sed -n '/global:/,/local:/p' "$map" | grep -o '[a-zA-Z0-9_]*;' |
    tr -d ';' | sed "s/\$/${version:+@@$version}/" | sort)
  # (The version itself is listed as a symbol too.)
  exported=$(nm -D --defined-only --extern-only --format=posix "$library" |
    awk '$2 != "A" {print $1}' | sort)
  diff <(echo "$wanted") <(echo "$exported") || failed=1
  soname=$(objdump -p "$library" | awk '/SONAME/ {print $2}')
  [[ $soname == "$(basename "$library")" ]] || {
    echo "$library has the soname $soname"
    failed=1
  }
  # Programs of C load it too.
  if objdump -p "$library" | grep 'NEEDED.*libstdc++'; then
    echo "$library needs C++'s library"
    failed=1
  fi
done
# librdmacm's own names are all there.
own=$(nm -D --defined-only --format=posix /usr/lib/x86_64-linux-gnu/librdmacm.so.1 |
  awk '{print $1}' | grep -E '^(r(socket|bind|listen|accept|connect|shutdown|close|recv|send|read|write|poll|select|get|set|fcntl)|rio)' |
  sort)
diff <(echo "$own") <(echo "$exported") || failed=1
exit $failed
