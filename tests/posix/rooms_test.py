#!/usr/bin/env python3
"""Makes sure that each room of lib/posix needs only the rooms below it.

usage: rooms_test.py ROOM.BZL FILE...

ROOM.BZL lists the rooms, the lowest first, and the packages above them all.  The
FILEs are the sources and the objects of both.  A room needs what its sources
include, what its BUILD file names, and what its objects do not define.  The order
has no cycle, so the rooms have none.  A package above them includes only rooms
that its BUILD file names, so Bazel's visibility says which.
"""

import pathlib
import posixpath
import re
import subprocess
import sys

TOP = "lib/posix"
# Above all rooms.
ABOVE = re.compile(r"(?:lib/api|preload|tests|tools)(?:[/:]|$)")
# Where a name begins that is not relative to its file.
ROOTS = ("lib/", "preload/", "tests/", "third_party/", "tools/")


def room_of(path, rooms):
    """The number of the room that has the path; None: it is outside lib/posix."""
    found = re.search(rf"(?:^|/){TOP}(?:/([^/:]+))?[/:]", path + "/")
    if not found:
        return None
    return rooms.index(found[1]) if found[1] in rooms else len(rooms)


def in_tree(path):
    """A path of Bazel's, from the root of the sources on."""
    found = re.search(r"(?:^|/)((?:lib|preload)/.*)", path)
    return found[1] if found else path


def names_in(path, text):
    """What a source includes, or a BUILD file depends on, from the root on."""
    if path.endswith("BUILD"):
        # A visibility and a load are no dependencies.
        text = re.sub(r"load\(.*?\)|visibility = \[.*?\]", "", text, flags=re.S)
        return re.findall(r'"(?:@+[^"/]*)?//([^"]+)"', text)
    names = []
    for mark, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', text,
                                 flags=re.M):
        if mark == '"' and not name.startswith(ROOTS):
            name = posixpath.join(posixpath.dirname(in_tree(path)), name)
        names.append(posixpath.normpath(name))
    return names


def wrong_names(sources, rooms):
    """Sentences about sources {path: text} that name a room above, and how many
    names of rooms there were."""
    wrong, count = [], 0
    for path, text in sorted(sources.items()):
        own = room_of(path, rooms)
        if own is None:
            continue
        if own == len(rooms):
            if path.endswith((".h", ".cc")):
                wrong.append(f"{path} lies in no room")
            continue
        for name in names_in(path, text):
            its = room_of(name, rooms)
            count += its is not None
            if ABOVE.match(name) or (its is not None and its > own):
                wrong.append(f"{path} names {name}")
    return wrong, count


def wrong_callers(sources, rooms):
    """Sentences about packages above the rooms that include a room which their
    BUILD file does not name, and how many such includes there were."""
    wrong, count, named = [], 0, {}
    for path, text in sources.items():
        if path.endswith("BUILD"):
            named[posixpath.dirname(path)] = {
                room_of(name, rooms) for name in names_in(path, text)}
    for path, text in sorted(sources.items()):
        if path.endswith("BUILD") or room_of(path, rooms) is not None:
            continue
        for name in names_in(path, text):
            its = room_of(name, rooms)
            count += its is not None
            if its is not None and its not in named.get(posixpath.dirname(path), ()):
                wrong.append(f"{path} names {name}, and its BUILD file does not")
    return wrong, count


def wrong_symbols(defined, needed, rooms):
    """As wrong_names, of symbols: {room: symbols}."""
    home = {}
    for room in sorted(defined, reverse=True):
        home.update(dict.fromkeys(defined[room], room))
    wrong, count = [], 0
    for room in range(len(rooms)):
        for symbol in sorted(needed[room] - defined[room]):
            its = home.get(symbol)
            count += its is not None
            if its is not None and its > room:
                where = rooms[its] if its < len(rooms) else TOP
                wrong.append(f"{rooms[room]} needs {symbol} of {where}")
    return wrong, count


def symbols(paths, which):
    if not paths:
        return set()
    said = subprocess.run(["nm", which, "-P", *paths], check=True,
                          capture_output=True, text=True).stdout
    # A line with one word names a file.
    return {line.split()[0] for line in said.splitlines()
            if len(line.split()) > 1}


def prove():
    """What is wrong is found."""
    rooms = ["low", "high"]
    low, high, rest = f"{TOP}/low/a.h", f"{TOP}/high/b.cc", f"{TOP}/c.h"
    for path, text, is_wrong in [
            (low, f'#include "{TOP}/high/b.h"\n', True),
            (low, f'#  include <{TOP}/c.h>\n', True),
            (low, '#include "lib/api/d.h"\n', True),
            (low, '#include "lib/base/e.h"\n', False),
            (low, '#include "../high/b.h"\n', True),
            (low, f'#include "{TOP}/low/../high/b.h"\n', True),
            (low, '#include "f.h"\n', False),
            (f"elsewhere/{low}", '#include "../high/b.h"\n', True),
            (high, f'#include "{low}"\n', False),
            (high, '#include "../low/a.h"\n', False),
            (high, f'#include "{rest}"\n', True),
            (rest, "", True),
            (f"{TOP}/low/BUILD", f'deps = ["//{TOP}/high"]', True),
            (f"{TOP}/low/BUILD", f'deps = ["@//{TOP}/high"]', True),
            (f"{TOP}/low/BUILD", f'deps = ["@@rcsock//{TOP}/high:high"]', True),
            (f"{TOP}/low/BUILD", f'deps = ["//{TOP}"]', True),
            (f"{TOP}/low/BUILD", 'deps = ["//preload"]', True),
            (f"{TOP}/low/BUILD", 'visibility = ["//lib/api:__pkg__"]', False),
            (f"{TOP}/high/BUILD",
             f'load("//{TOP}:room.bzl", "room")\ndeps = ["//{TOP}/low"]', False)]:
        assert bool(wrong_names({path: text}, rooms)[0]) == is_wrong, (path, text)
    for text, is_wrong in [(f'deps = ["//{TOP}/low"]', False),
                           (f'deps = ["//{TOP}/high"]', True), ("", True)]:
        sources = {"lib/api/a.cc": f'#include "{low}"\n', "lib/api/BUILD": text}
        assert bool(wrong_callers(sources, rooms)[0]) == is_wrong, text
    defined = {0: {"a"}, 1: {"b", "both"}, 2: {"c", "both"}}
    for room, symbol, is_wrong in [(0, "a", False), (0, "b", True), (0, "c", True),
                                   (1, "a", False), (1, "c", True), (1, "both", False),
                                   (1, "malloc", False)]:
        needed = {0: set(), 1: set(), room: {symbol}}
        assert bool(wrong_symbols(defined, needed, rooms)[0]) == is_wrong, symbol


def main():
    prove()
    text = pathlib.Path(sys.argv[1]).read_text()
    rooms = re.findall(r'"(\w+)"', re.search(r"^ROOMS = \[(.*?)\]", text,
                                             re.M | re.S)[1])
    every = range(len(rooms) + 1)
    sources, objects = {}, {i: [] for i in every}
    for path in sys.argv[2:]:
        if path.endswith(".o"):
            objects[room_of(path, rooms)].append(path)
        elif path.endswith((".h", ".cc", "BUILD")):
            sources[path] = pathlib.Path(path).read_text()
    defined = {i: symbols(objects[i], "--defined-only") for i in every}
    needed = {i: symbols(objects[i], "--undefined-only") for i in every}
    wrong, names = wrong_names(sources, rooms)
    more, calls = wrong_callers(sources, rooms)
    wrong += more
    more, uses = wrong_symbols(defined, needed, rooms)
    wrong += more
    for i, room in enumerate(rooms):
        if not defined[i] or f"{TOP}/{room}/BUILD" not in sources:
            wrong.append(f"{room} has no objects, or no BUILD file")
    if names < 300 or uses < 300 or calls < 10:
        wrong.append(f"{names} and {calls} names and {uses} symbols cannot be all")
    for sentence in wrong:
        print(f"rooms_test: {sentence}", file=sys.stderr)
    print(f"rooms: {len(rooms)} below {TOP}, {len(sources)} files, "
          f"{names} names and {uses} symbols of rooms, {calls} names from above")
    return 1 if wrong else 0


sys.exit(main())
