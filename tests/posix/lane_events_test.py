#!/usr/bin/env python3
"""The steps of LaneState in docs/adoption.md are those of the code.

usage: lane_events_test.py ADOPTION.MD FILE...

The FILEs are the sources of lib/posix/socket.  A row of the page's table has events
and the functions that step by them.  Each event of lane_state.h has a row, and each
step of a function stands there.  Each edge's event stands in the picture.
"""

import pathlib
import re
import sys

ROW = re.compile(r"^\| (`k\w+`(?:, `k\w+`)*) \| (`\w+::\w+`(?:, `\w+::\w+`)*) \|", re.M)
FUNCTION = re.compile(r"[A-Z]\w*::~?\w+(?=\()")


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def steps_in(text):
    """Returns the pairs of event and function of one source."""
    steps = set()
    function = None
    for line in text.splitlines():
        if line[:1].isalpha() or line.startswith("[["):
            found = FUNCTION.search(line)
            function = found[0] if found else function
        steps |= {(event, function) for event in re.findall(r"\bEvent::(k\w+)", line)}
    return steps


def compare(what, code, page):
    for one in sorted(code - page):
        print(f"{what}: the page lacks {one}")
    for one in sorted(page - code):
        print(f"{what}: the code lacks {one}")
    return code == page


def main():
    page = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    sources = {pathlib.Path(path).name: pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[2:]}
    header = sources["lane_state.h"]
    events = set(re.findall(r"^    (k\w+),", re.search(r"enum class Event.*?\};", header, re.S)[0], re.M))
    edges = re.search(r"kEdges\[\] = \{.*?\n  \};", header, re.S)[0]
    edges = set(re.findall(r"Event::(k\w+), State::k\w+, State::k\w+", edges))
    steps = set().union(*(steps_in(text) for name, text in sources.items() if name.endswith(".cc")))
    table = {(event, function) for row in ROW.findall(page)
             for event in quoted(row[0]) for function in quoted(row[1])}
    picture = re.search(r"^```\n(.*?kNever.*?)^```", page, re.M | re.S)[1]
    drawn = set(re.findall(r"\bk\w+", picture)) & events
    good = [compare("events", events, {event for event, _ in table}),
            compare("steps", steps, table),
            compare("picture", edges, drawn)]
    # A page or a header that could not be read has none.
    if not all(good) or len(events) < 10 or len(steps) < 20:
        sys.exit("docs/adoption.md, The states: not as lib/posix/socket steps")
    print("ok")


main()
