#!/bin/bash
# usage: table_test SHIM EXPORTS_MAP INTERPOSED_MADE INTERPOSED_IN_DOCS
set -euo pipefail
exported=$(nm -D --defined-only --extern-only --format=posix "$1" | cut -d' ' -f1 | sort)
wanted=$(sed -n '/global:/,/local:/p' "$2" | grep -o '[a-zA-Z0-9_]*;' | tr -d ';' | grep -v '^$' | sort)
diff <(echo "$wanted") <(echo "$exported")
diff "$3" "$4"

# A linker that has lost the symbol of a thread's variable takes another's place.
if readelf -rW "$1" | grep -E 'TPOFF64 +0+ <null>'; then
  echo "FAILED: a thread-local variable without its symbol" >&2
  exit 1
fi
