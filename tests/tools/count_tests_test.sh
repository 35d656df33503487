#!/bin/bash
# usage: count_tests_test COUNT_TESTS
#
# A failure, a target that does not build, a bazel that dies, and what was left out
# must all count.
set -euo pipefail
count=$PWD/$1
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/count.XXXXXX")
cd "$tmp"

configured() {
  echo '{"id":{"targetConfigured":{"label":"'"$1"'"}},"configured":{"targetKind":"'"$2"' rule"}}'
}
completed() {
  echo '{"id":{"targetCompleted":{"label":"'"$1"'"}},"completed":{'"$2"'}}'
}
summary() {
  echo '{"id":{"testSummary":{"label":"'"$1"'"}},"testSummary":{"overallStatus":"'"$2"'"}}'
}
good() {
  configured //a:lib cc_library
  configured //a:t cc_test
  configured //a:vm sh_test
  completed //a:lib '"success":true'
  completed //a:t '"success":true'
  completed //a:vm '"success":true'
  summary //a:t PASSED
}
# expect NAME STATUS LAST_LINE CONFIG...
expect() {
  local name=$1 wanted=$2 line=$3 status=0
  shift 3
  python3 "$count" . "$@" >out.txt || status=$?
  if [[ $status != "$wanted" || $(tail -n 1 out.txt) != "$line" ]]; then
    echo "FAILED: $name: status $status"
    cat out.txt
    exit 1
  fi
}

good >good.json && echo 0 >good.status
expect good 0 "1 passed, 0 failed, 0 skipped" good
expect twice 0 "2 passed, 0 failed, 0 skipped" good good

{ good && configured //a:u cc_test && completed //a:u '"success":true' &&
  summary //a:u FAILED; } >red.json
echo 3 >red.status
expect red 1 "1 passed, 1 failed, 0 skipped" red
expect both 1 "2 passed, 1 failed, 0 skipped" good red

{ good && configured //a:u cc_test && completed //a:u ''; } >unbuilt.json
echo 1 >unbuilt.status
expect unbuilt 1 "1 passed, 1 failed, 0 skipped" unbuilt

{ good && echo '{"id":{"cut'; } >dead.json
echo 37 >dead.status
expect dead 1 "1 passed, 1 failed, 0 skipped" dead

echo 4 >none.status
expect none 1 "0 passed, 1 failed, 0 skipped" none

good >less.json && echo 0 >less.status
printf '//a:guest\n//b:guest\n' >less.skipped
expect less 0 "1 passed, 0 failed, 2 skipped" less
grep -qxF 'SKIPPED: //b:guest (less)' out.txt

good >early.json && echo 0 >early.status
echo //a:kernel >early.failed
cp less.skipped early.skipped
expect early 1 "1 passed, 1 failed, 2 skipped" early
grep -qxF 'FAILED: //a:kernel (early)' out.txt
expect less_and_red 1 "2 passed, 1 failed, 2 skipped" less red
