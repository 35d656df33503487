#!/bin/bash
# usage: completion_test RCSOCK BASH_COMPLETION ZSH_COMPLETION
#
# What Tab offers, in a bash and in a zsh that really run.
set -euo pipefail
tool=$(realpath "$1") bash_file=$(realpath "$2") zsh_file=$(realpath "$3")
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/completion.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/bin" "$tmp/fpath"
ln -s "$tool" "$tmp/bin/rcsock"
cp "$zsh_file" "$tmp/fpath/_rcsock"
touch "$tmp/plain.toml"
export PATH=$tmp/bin:$PATH
cd "$tmp"

failed=0
# check SHELL LINE WORDS...: LINE and then Tab offers each of WORDS
check() {
  local shell=$1 line=$2 offered word
  shift 2
  offered=$("$shell"_offers "$line")
  if [[ -n $(sort <<<"$offered" | uniq -d) ]]; then
    printf 'FAILED: %s: "%s" offers twice: %s\n' "$shell" "$line" "$(sort <<<"$offered" | uniq -d)"
    failed=1
  fi
  for word in "$@"; do
    grep -qxF -- "$word" <<<"$offered" && continue
    printf 'FAILED: %s: "%s" offers no %s, but\n%s\n' "$shell" "$line" "$word" "$offered"
    failed=1
  done
}
all() {
  local shell=$1
  check "$shell" 'rcsock ' run stat doctor perf
  check "$shell" 'rcsock st' stat
  check "$shell" 'rcsock run --lanes ' auto shm rdma shm,rdma tcp
  check "$shell" 'rcsock run --config plain' plain.toml
  check "$shell" 'rcsock perf --transport ' auto shm rdma tcp verbs
  # Every long option that --help tells of.
  local command options
  for command in run stat doctor perf; do
    mapfile -t options < <("$tool" "$command" --help |
      grep -oE -- '(^ +|,)--[a-z][-a-z]*' | tr -d ' ,')
    if ((${#options[@]} < 3)); then
      echo "FAILED: rcsock $command --help tells of ${#options[@]} options"
      failed=1
    fi
    check "$shell" "rcsock $command --" "${options[@]}"
  done
}

# shellcheck disable=SC2317  # called by its name
bash_offers() {
  LINE=$1 FILE=$bash_file bash --norc -c '
    source /usr/share/bash-completion/bash_completion
    source "$FILE"
    COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9 COMP_KEY=9
    read -ra COMP_WORDS <<<"$LINE"
    [[ $LINE == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _rcsock rcsock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
    printf "%s\n" "${COMPREPLY[@]%% }"'
}
# shellcheck disable=SC2317
zsh_offers() { python3 "$here/zsh_offers.py" "$tmp/fpath" "$1"; }

ran=0
if [[ -e /usr/share/bash-completion/bash_completion ]]; then
  all bash
  ran=$((ran + 1))
else
  echo "FAILED: no bash-completion here (tools/install_deps installs it)"
fi
if command -v zsh >/dev/null; then
  all zsh
  ran=$((ran + 1))
else
  echo "FAILED: no zsh here (tools/install_deps installs it)"
fi
echo "$ran shells tried"
[[ $ran == 2 ]] || failed=1
exit "$failed"
