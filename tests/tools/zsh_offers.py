"""usage: zsh_offers.py FPATH LINE

What an interactive zsh lists for LINE and Tab: one word in each line.
"""

import os
import pty
import re
import select
import sys
import time

LIMIT = 20  # seconds, only a safety net

fpath, line = sys.argv[1:]
setup = r"""
PS1= PROMPT= RPS1=
fpath=($FPATH_DIR $fpath)
autoload -Uz compinit && compinit -u -D
zstyle ':completion:*' list-colors ''
zstyle ':completion:*' verbose no
zstyle ':completion:*:descriptions' format ''
setopt no_list_beep no_always_last_prompt no_auto_list no_auto_menu
# Instead of what a user sees: each match that is added, in a line of its own.
compadd() {
  # These only ask, and add nothing.
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
    builtin compadd "$@"
    return $?
  fi
  local -a found
  builtin compadd -A found "$@"
  local one
  for one in $found; do print -r -- "@${one}@" >>$OFFERS; done
  builtin compadd "$@"
}
whole() { zle complete-word; print -r -- "@end@" >>$OFFERS; }
zle -N whole
bindkey '^I' whole
print -r -- ready
"""
offers = os.path.join(fpath, "offers")
open(offers, "w").close()
pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(FPATH_DIR=fpath, OFFERS=offers, TERM="dumb")
    os.execvp("zsh", ["zsh", "-f", "-i"])


def read_until(done):
    end = time.monotonic() + LIMIT
    seen = b""
    while not done(seen):
        if time.monotonic() > end:
            sys.exit(f"zsh does not answer: {seen!r}")
        if select.select([terminal], [], [], 0.02)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                sys.exit(f"zsh has ended: {seen!r}")


with open(os.path.join(fpath, "setup"), "w") as file:
    file.write(setup)
os.write(terminal, f"source {fpath}/setup\n".encode())
read_until(lambda seen: b"\nready" in seen)
os.write(terminal, line.encode() + b"\t")
read_until(lambda _: "@end@" in open(offers).read())
os.close(terminal)
os.waitpid(pid, 0)
words = re.findall("@(.*)@", open(offers).read())
print("\n".join(sorted({w.rstrip("=") for w in words} - {"end"})))
