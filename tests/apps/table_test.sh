#!/bin/bash
# usage: table_test RUN PAGE MEASURE
#
# The table of programs in docs/programs.md has those that there are, and
# says what they do: RUN --table FILE prints it.
set -euo pipefail
columns() { sed -n 's/^\(| [^|]* | [^|]* |\).*/\1/p'; }
made=$("$1" --table | columns)
shown=$(sed -n '/^| program | its work /,/^$/p' "$2" | columns)
diff -u <(echo "$shown") <(echo "$made")

# The library is that of `bazel build -c opt`, not what bazel-bin happens to be.
tree=$(mktemp -d "${TEST_TMPDIR:-/tmp}/tree.XXXXXX")
mkdir -p "$tree"/{tests,tools,bazel-bin/preload}
cp -L -r "$(dirname "$1")" "$tree/tests/apps"
cp -L "$3" "$tree/tools/"
touch "$tree/bazel-bin/preload/librcsock_preload.so"
if said=$(env -u RCSOCK_PRELOAD "$tree/tests/apps/run" nc-openbsd 2>&1); then status=0; else status=$?; fi
[[ $status != 0 && $said == *"not built"* ]] || {
  echo "took bazel-bin's library: $said"
  exit 1
}
