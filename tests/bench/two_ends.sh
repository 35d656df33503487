# For tests whose server and client are programs of tests/bench: a folder $tmp, and
# $server, which is ended with the test.
# shellcheck shell=bash

tmp=$(mktemp -d)
server=
finish() {
  if [[ -n $server ]]; then kill "$server" 2>/dev/null || true; fi
  # A child of the server may still write its statistics.
  for _ in {1..50}; do
    if rm -rf "$tmp" 2>/dev/null; then return; fi
    sleep 0.1
  done
}
trap finish EXIT

free_port() {
  python3 -c 'import sys; sys.path.insert(0, "tools"); import measure; print(measure.free_port())'
}
