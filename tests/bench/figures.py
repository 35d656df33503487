#!/usr/bin/env python3
"""The measured tables: docs/figures.md from the data in docs/figures/*.json.

    tests/bench/figures.py --write    # makes docs/figures.md
    tests/bench/figures.py --check    # is docs/figures.md what the data make, and do other pages quote it rightly?
    tests/bench/figures.py --load FILE --machine TEXT --date DATE    # data from what load_compare --json wrote

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
# Groups of load_compare's rows: the file, what the table is called, and a note.
LOADS = {
    "open": ("13_load_open.json", "Requests at a rate, whatever has been answered",
             "A latency counts from when a request was due. The server has CPU 0, the client CPU 1."),
    "closed": ("14_load_closed.json", "Each connection sends its next request at once",
               "With *-io* and *-many* each end has several threads or processes, where the kernel puts them."),
    "churn": ("15_load_churn.json", "Connections that take, lose or leave their lanes",
              "*From the first* counts from the first request on, while all connections take their lanes."),
}


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


def figure(value):
    """Three significant digits, no exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def of_ends(one, what):
    """What the server and the client have of this; rows of older runs may have the sum alone."""
    parts = [one.get(f"{end}_{what}") for end in ("server", "client")]
    return figure(one[what]) if None in parts else ", ".join(figure(part) for part in parts)


def load_rows(row):
    """The lines of one row of load_compare: one for each kind."""
    plain = row["kinds"].get("plain")
    name = row["name"]
    for kind, one in row["kinds"].items():
        on_lanes = one["share"] is not None
        lanes = f"{one['promoted']} of {one['streams']}, " if on_lanes and "promoted" in one else ""
        yield [name, kind, figure(one["done"]),
               *(figure(one[f"{what}_us"]) for what in ("p50", "p99", "p999", "max")),
               of_ends(one, "cpu_us"), f"{one['cpu_us'] / plain['cpu_us']:.2f}" if plain and plain["cpu_us"] else "",
               of_ends(one, "sleeps"), f"{lanes}{one['share']:.1%}" if on_lanes else ""]
        name = ""


def group_of(row):
    """Rows of older runs have no group."""
    if "group" in row:
        return row["group"]
    if row["name"].startswith("loop"):
        return "closed"
    return "churn" if ", " in row["name"] else "open"


def load(path, machine, date):
    """Writes the data of the tables of one run of load_compare."""
    run = json.loads(path.read_text())
    arguments = " ".join(word for word in run.get("arguments", ["..."]) if word != "--json")
    notes = [f"Each run took {run['seconds']:g} s."]
    if run.get("repetitions", 1) > 1:
        notes.append(f"Each figure is the median of {run['repetitions']} runs. Connections are of all of them.")
    else:
        notes.append("A line is one run, so its p99.9 and its max come and go.")
    for group, (name, title, note) in LOADS.items():
        rows = [line for row in run["rows"] if group_of(row) == group for line in load_rows(row)]
        if not rows:
            continue
        (ROOT / "docs/figures" / name).write_text(json.dumps({
            "group": "Services: tails and CPU time", "title": title,
            "machine": f"{machine}, {run['cpus']} CPUs" + (f", {run['cpu']}" if "cpu" in run else ""), "date": date,
            "command": f"tests/bench/load_compare {arguments} --json FILE",
            "columns": ["row", "", "done/s", "p50 us", "p99", "p99.9", "max", "CPU us for a request: server, client",
                        "times plain", "sleeps for a request: server, client", "connections and bytes on lanes"],
            "rows": rows, "notes": [note, *notes]}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    what.add_argument("--load", type=pathlib.Path, metavar="FILE", help="what load_compare --json wrote")
    parser.add_argument("--machine", help="where that was: near, idle")
    parser.add_argument("--date", help="and when: 2026-11-29")
    options = parser.parse_args()
    if options.load:
        if not options.machine or not options.date:
            parser.error("--load needs --machine and --date")
        load(options.load, options.machine, options.date)
    write = options.write or options.load
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
