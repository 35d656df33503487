#!/bin/bash
# usage: table_test RUN PAGE
#
# The table of programs in docs/compatibility.md has those that there are, and
# says what they do: RUN --table FILE prints it.
set -euo pipefail
columns() { sed -n 's/^\(| [^|]* | [^|]* |\).*/\1/p'; }
made=$("$1" --table | columns)
shown=$(sed -n '/^| program | its work /,/^$/p' "$2" | columns)
diff -u <(echo "$shown") <(echo "$made")
