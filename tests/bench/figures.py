#!/usr/bin/env python3
"""The measured tables: docs/figures.md from the data in docs/figures/*.json.

    tests/bench/figures.py --write    # makes docs/figures.md
    tests/bench/figures.py --check    # is docs/figures.md what the data make, and do other pages quote it rightly?

A file of docs/figures is one table:

    group, title    the headings above the table
    machine, date   where and when it was measured
    command         what measures it again; empty: nothing does
    columns, rows   the table; a cell has at most 200 characters
    notes           sentences that a reader of the table needs

The files come in the order of their names.
"""

import argparse
import json
import pathlib
import sys

import paper

ROOT = pathlib.Path(__file__).absolute().parents[2]
HEAD = """# Figures

The measured tables behind [performance.md](performance.md), each with the command that measures it again.
`tests/bench/figures.py --write` makes this page from `docs/figures/*.json`.

*Near* and *far* are the two kinds of machines that performance.md describes. Times and ratios are medians.
"""
MOST_CELL = 200
# Pages whose tables quote rows of these files by their first cell, and how many rows at least.
QUOTING = {"README.md": 6, "docs/performance.md": 12}
QUOTED = ["00_goals.json", "10_programs.json"]


def table(data):
    """The Markdown of one table."""
    width = len(data["columns"])
    for row in [data["columns"], *data["rows"]]:
        if len(row) != width:
            raise ValueError(f"{data['title']}: {len(row)} cells, not {width}")
        for cell in row:
            if len(cell) > MOST_CELL:
                raise ValueError(f"{data['title']}: a cell is too long: {cell}")
    source = f"Machine: {data['machine']}. Date: {data['date']}."
    if data["command"]:
        source += f" Command: `{data['command']}`"
    lines = [f"### {data['title']}", "", source, ""]
    lines += paper.table(data["columns"], data["rows"])
    if data["notes"]:
        lines += ["", *[f"- {note}" for note in data["notes"]]]
    return "\n".join(lines) + "\n"


def page():
    """The whole of docs/figures.md."""
    parts = [HEAD]
    group = None
    for path in sorted((ROOT / "docs/figures").glob("*.json")):
        data = json.loads(path.read_text())
        if data["group"] != group:
            group = data["group"]
            parts.append(f"## {group}\n")
        parts.append(table(data))
    if len(parts) < 3:
        raise ValueError("docs/figures has no tables")
    return "\n".join(parts)


def misquotes():
    """Cells of other pages that the rows which they quote do not have."""
    quoted = {}
    for name in QUOTED:
        for row in json.loads((ROOT / "docs/figures" / name).read_text())["rows"]:
            quoted[row[0]] = row[1:]
    wrong = []
    for page_name, least in QUOTING.items():
        count = 0
        for line in (ROOT / page_name).read_text().splitlines():
            if not line.startswith("|"):
                continue
            first, *others = [cell.strip() for cell in line.strip("|").split("|")]
            if first in quoted:
                count += 1
                wrong += [f"{page_name}: {first}: {cell}" for cell in others if cell not in quoted[first]]
        if count < least:
            wrong.append(f"{page_name}: quotes {count} rows of docs/figures, not {least}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    write = parser.parse_args().write
    target = ROOT / "docs/figures.md"
    made = page()
    if write:
        target.write_text(made)
    elif not target.exists() or target.read_text() != made:
        print("docs/figures.md is not what docs/figures/*.json make: tests/bench/figures.py --write", file=sys.stderr)
        return 1
    wrong = misquotes()
    for one in wrong:
        print(f"not what docs/figures/*.json have: {one}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
