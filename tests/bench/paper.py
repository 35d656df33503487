#!/usr/bin/env python3
"""What a message costs over an HCA on paper: the tables of docs/paper.md.

    tests/bench/paper.py                        # prints them
    tests/bench/paper.py --set pcie_rtt_ns=900 copy_GBps=20
    tests/bench/paper.py --write docs/paper.md  # puts them into the page
    tests/bench/paper.py --check docs/paper.md  # are they what the page has?

ASSUMED is what nobody has measured for rcsock; CODE and PACE are what its code
has, and --check compares them with the sources.  With --model PROGRAM, which is
tests/lane:fake_time_test, --write and --check also make the tables of what that
program says.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).absolute().parents[2]

# docs/paper.md has the source of each.
ASSUMED = {
    "pcie_rtt_ns": 500,       # a DMA read of host memory
    "nic_ns": 100,            # an adapter's own time, each way
    "switch_ns": 300,         # one switch
    "cable_ns": 25,           # five metres
    "header_bytes": 78,       # RoCE v2: a packet's headers and CRCs
    "verbs_post_ns": 50,      # the CPU's, of a posted request
    "verbs_poll_ns": 50,      # the CPU's, from the DMA write to the completion
    "rcsock_send_ns": 150,    # rcsock's own, beyond these
    "rcsock_receive_ns": 150,
    "copy_GBps": 10,          # one thread's memcpy, of long messages
    "copy_small_GBps": 20,    # ... of what the caches have
    "wake_ns": 5000,          # from the interrupt to the woken thread
    "syscall_ns": 200,
    "bf_bytes": 256,          # mlx5: a BlueFlame register
}
# name: what it is, link in Gb/s, PCIe in GB/s
DEVICES = {
    "ConnectX-6": {"links": [100, 200], "pcie_GBps": 25},
    "ConnectX-7": {"links": [200, 400], "pcie_GBps": 50},
}
# name: value, file, text before the number
CODE = {
    "messages": (32, "lib/lane/rdma/layout.h", "kMessages = "),
    "ring_enough": (1 << 20, "lib/lane/rdma/layout.h", "kRingEnough = "),
    "inline": (220, "lib/lane/rdma/domain.cc", "kInlineMost = "),
    "signal_every": (64, "lib/lane/rdma/chain.cc", "kSignalEvery = "),
    "signal_in_flight": (2, "lib/lane/rdma/chain.cc", "kSignalInFlight = "),
    "routed_from": (8 << 10, "lib/lane/rdma/chain.cc", "kRoutedFrom = "),
    "joined": (16 << 10, "lib/lane/rdma/qp_lane_tx.cc", "kJoined = "),
    "batch": (16, "lib/lane/rdma/rdma_poller.cc", "kBatch = "),
    "refill": (32, "lib/lane/rdma/shared_receives.h", "kRefill = "),
    "own_batch": (8, "lib/lane/rdma/limits.h", "kOwnBatch = "),
    "ctl_slots": (4, "lib/ring/tx.h", "kCtlSlots = "),
    "min_room": (4096, "lib/ring/tx.h", "kMinRoom = "),
}
# kHardwarePace of lib/lane/rdma/pace.h: the members of Pace in their order.
PACE = {
    "record": 32 << 10,
    "doorbell": 32 << 10,
    "window": 24,
    "window_iwarp": 24,
    "credit_part": 4,
    "joins_bursts": False,
    "flush_us": 100,
    "flushes_at_once": True,
}
# A sleep: the wait, and the read of its event (RdmaPoller::FetchEvents).
SLEEP_CALLS = 2
MTU = 4096


def code(name):
    return CODE[name][0]


def check_code():
    """Says which of CODE and PACE the sources do not have."""
    wrong = []
    path = "lib/lane/rdma/pace.h"
    found = re.search(r"kHardwarePace = \{([^}]+)\}", (ROOT / path).read_text())
    words = found[1].split(",") if found else []
    names = {"true": True, "false": False}
    values = [names[word] if word in names else eval(word)  # digits only
              for word in map(str.strip, words)
              if word in names or re.fullmatch(r"[0-9 *]+", word)]
    if values != list(PACE.values()):
        wrong.append(f"{path}: kHardwarePace has {values}, "
                     f"and not {list(PACE.values())}")
    for name, (value, path, before) in CODE.items():
        text = (ROOT / path).read_text()
        found = re.search(re.escape(before) + r"([^;]+);", text)
        expression = found[1] if found else ""
        expression = expression.replace("kMessages", str(code("messages")))
        if not re.fullmatch(r"[0-9 */()]+", expression):
            wrong.append(f"{path}: no number behind '{before}'")
        elif eval(expression.replace("/", "//")) != value:  # digits only
            wrong.append(f"{path}: {before}{found[1]}, and not {value}")
    return wrong


def wqe_bytes(size):
    """mlx5's request: control, address, and the bytes or where they lie."""
    if size <= code("inline"):
        return 32 + (4 + size + 15) // 16 * 16
    return 48


def counts(size):
    """Of one message alone: requests, and what the device does for it."""
    inlined = size <= code("inline")
    blueflame = wqe_bytes(size) <= ASSUMED["bf_bytes"]
    return {
        "requests": 1,
        "doorbells": 1,
        "blueflame": int(blueflame),
        "reads": (not blueflame) + (not inlined),
        "writes": 2,  # the bytes, and the receiver's completion
        "copies": 2 + inlined,
    }


def wire_ns(size, link_gbps):
    packets = max(1, -(-size // MTU))
    return (size + packets * ASSUMED["header_bytes"]) * 8 / link_gbps


def one_way_ns(size, link_gbps, pcie_gbps, who):
    """`who`: write (ib_write_lat), verbs (a completion as well), rcsock."""
    a = ASSUMED
    count = counts(size)
    half = a["pcie_rtt_ns"] / 2
    time = a["verbs_post_ns"] + half + a["nic_ns"]
    time += count["reads"] * a["pcie_rtt_ns"]
    time += wire_ns(size, link_gbps) + a["switch_ns"] + a["cable_ns"]
    time += a["nic_ns"] + half + size / pcie_gbps + a["verbs_poll_ns"]
    if who != "write":
        # The completion is polled, and receives are posted again.
        time += a["verbs_poll_ns"]
    if who == "rcsock":
        time += a["rcsock_send_ns"] + a["rcsock_receive_ns"]
        time += 2 * size / a["copy_small_GBps"]
    return time


def asleep_ns():
    return ASSUMED["wake_ns"] + SLEEP_CALLS * ASSUMED["syscall_ns"]


class Stream:
    """A one-way stream of records: the sender copies, the link carries, the
    receiver copies and gives credit."""

    def __init__(self, link_gbps, record, share, ring=None, copy_gbps=None):
        self.link = link_gbps
        self.record = record
        self.share = share  # of the ring, after which credit is given
        self.ring = ring or code("ring_enough")
        self.copy = copy_gbps or ASSUMED["copy_GBps"]

    def run(self, total=64 << 20):
        a = ASSUMED
        reach = (a["pcie_rtt_ns"] + 2 * a["nic_ns"] + a["switch_ns"]
                 + a["cable_ns"])
        copy = self.record / self.copy
        wire = wire_ns(self.record, self.link)
        most = min(self.ring // self.record,
                   code("messages") - code("ctl_slots"))
        due = max(1, int(self.share * self.ring) // self.record + 1)
        due = min(due, int(self.share * code("messages")))
        n = total // self.record
        sender = link = receiver = 0.0
        landed, taken, known = [], [], []  # times; known: when credit comes
        given = 0        # records whose credit has been sent
        credits = signalled = signalled_at = stalled = 0
        acked = []
        for i in range(n):
            if i >= most:
                # Needs the credit of record i - most.
                need = i - most
                while len(known) <= need:
                    # All that is posted has been taken: the receiver sees that
                    # the sender starves, and gives what it has.
                    last = taken[-1]
                    known += [last + reach] * (len(taken) - len(known))
                    given = len(taken)
                    credits += 1
                if known[need] > sender:
                    stalled += known[need] - sender
                    sender = known[need]
            sender += copy + a["rcsock_send_ns"] + a["verbs_post_ns"]
            link = max(link, sender + reach / 2) + wire
            landed.append(link + reach / 2)
            # In flight, as the sender counts: what no completion has covered.
            while acked and acked[0][1] <= sender:
                signalled_at = acked.pop(0)[0]
            if i + 1 - signalled_at > code("signal_in_flight"):
                signalled += 1
                acked.append((i + 1, link + reach))
            receiver = (max(receiver, landed[i]) + copy
                        + a["rcsock_receive_ns"] + a["verbs_poll_ns"])
            taken.append(receiver)
            if i + 1 - given >= due:
                known += [receiver + reach] * (i + 1 - len(known))
                given = i + 1
                credits += 1
        mib = total / (1 << 20)
        return {"GBps": total / receiver, "stall": stalled / receiver,
                "records": n / mib, "credits": credits / mib,
                "signalled": signalled / mib}


def size_name(size):
    for shift, unit in (20, " MiB"), (10, " KiB"):
        if size >= 1 << shift:
            return f"{size >> shift}{unit}"
    return f"{size} B"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |"
                    for row in rows]


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 100 else \
        f"{value:.0f}"


def counts_table():
    rows = []
    for size in 8, 64, 1 << 10:
        c = counts(size)
        rows.append([size_name(size) + ", alone", c["requests"],
                     f"{c['doorbells']} ({c['blueflame']})", c["reads"],
                     c["writes"], f"1, 1/{code('signal_every')}", c["copies"],
                     SLEEP_CALLS])
    rows.append(["8 B, one after another", 1, "1 (1)", 0, 2, "1, 1", 3,
                 f"0 to {SLEEP_CALLS}"])
    s = Stream(200, PACE["record"], 1 / PACE["credit_part"]).run()
    n = number(s["records"])
    twice = number(2 * s["records"])
    completions = f"{n}, {number(s['signalled'])}"
    asleep = f"0 to {number(SLEEP_CALLS * s['records'])}"
    rows.append(["1 MiB, streaming, RoCE", n, f"{n} ({n})", n, twice,
                 completions, 2, asleep])
    rows.append(["1 MiB, streaming, InfiniBand", twice, f"{n} (0)", twice,
                 twice, completions, 2, asleep])
    return table(["message", "requests", "doorbells (BlueFlame)",
                  "DMA reads", "DMA writes", "completions: receiver, sender",
                  "copies of its bytes", "system calls, asleep"], rows)


def latency_table():
    rows = []
    for name, device in DEVICES.items():
        for link in device["links"]:
            for size in 8, 64, 1 << 10:
                ways = [one_way_ns(size, link, device["pcie_GBps"], who) / 1e3
                        for who in ("write", "verbs", "rcsock")]
                rows.append([
                    f"{name}, {link} Gb/s", size_name(size),
                    *(f"{way:.2f}" for way in ways), f"{2 * ways[2]:.2f}",
                    f"{ways[0] / ways[2]:.2f}", f"{ways[1] / ways[2]:.2f}",
                    f"{2 * (ways[2] + asleep_ns() / 1e3):.1f}"])
    return table(["", "size", "ib_write_lat", "verbs", "rcsock",
                  "its round trip", "of ib_write_lat", "of verbs",
                  "round trip, asleep"], rows)


def stream_table():
    rows = []
    for copy in 10, 20, 40:
        for link in 100, 200, 400:
            cells = []
            for record, share in RECORDS:
                s = Stream(link, record, share, copy_gbps=copy).run()
                cells.append(f"{s['GBps']:.1f} ({s['stall']:.0%})")
            rows.append([f"{copy} GB/s", f"{link} Gb/s",
                         f"{min(copy, link / 8):.1f}", *cells])
    head = ["a copy", "link", "bound"]
    for record, share in RECORDS:
        head.append(f"{size_name(record)}, {SHARES[share]}{now(record, share)}")
    return table(head, rows)


def now(record, share):
    here = record == PACE["record"] and share == 1 / PACE["credit_part"]
    return " (now)" if here else ""


SHARES = {0.5: "half", 0.25: "a quarter"}
RECORDS = [(256 << 10, 0.5), (256 << 10, 0.25), (64 << 10, 0.5),
           (64 << 10, 0.25), (32 << 10, 0.25)]


def records_table():
    rows = []
    for record, share in RECORDS:
        s = Stream(200, record, share).run()
        rows.append([size_name(record) + now(record, share), SHARES[share],
                     number(s["records"]), number(s["credits"])])
    return table(["record", "credit at", "records", "credit writes"], rows)


def model_tables(program):
    """What tests/lane:fake_time_test says, as tables."""
    said = subprocess.run([program, "--gtest_filter=Pace.*"], env={},
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    links = {}
    for link, now_, most, before in re.findall(
            r"^ *(\d+) Gb/s: +([\d.]+) B/ns, of +([\d.]+); records of 256 KiB: "
            r"+([\d.]+)$", said, re.M):
        links[link] = [f"{link} Gb/s", f"{most}", f"{before}, {now_}"]
    for link, now_, before in re.findall(
            r"^ *(\d+) Gb/s, +\d+ KiB: +([\d.]+) us, copy +[\d.]+; records of "
            r"256 KiB: +([\d.]+)$", said, re.M):
        links[link].append(f"{before}, {now_}")
    paces = {}
    for record, part, rate, short, long in re.findall(
            r"^ *(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.M):
        paces.setdefault(int(record), {})[int(part)] = rate, short, long
    rows = [[f"{record} KiB" + now(record << 10, 1 / 4), of[2][0], *of[4]]
            for record, of in paces.items()]
    locks = re.findall(r"^locks, (.+): ([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+), "
                       r"receives posted ([\d.]+), (\d+) ns a way, ([\d.]+) a us$",
                       said, re.M)
    least = int(locks[0][6])
    locks = [[way, *map(number, map(float, counts)), posted,
              f"{int(ns):,} ({int(ns) / least - 1:+.1%})", rate]
             for way, *counts, posted, ns, rate in locks]
    return {
        "model": table(["link", "bound", "a stream, GB/s", "64 KiB, us",
                        "256 KiB, us", "1 MiB, us"], links.values()),
        "model records": table(["record", "a stream, GB/s, credit at half",
                                "credit at a quarter", "64 KiB, us",
                                "1 MiB, us"], rows),
        "model locks": table(["", "send queue", "register", "CQ", "receives",
                              "calls that post receives", "one way, ns",
                              "messages a us"], locks),
    }


TABLES = {"counts": counts_table, "latency": latency_table,
          "stream": stream_table, "records": records_table}


def with_tables(text, tables):
    for name, lines in tables.items():
        begin, end = f"<!-- paper.py: {name} -->\n", "<!-- end -->"
        at = text.index(begin) + len(begin)
        text = text[:at] + "\n".join(lines) + "\n" + text[text.index(end, at):]
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--write", metavar="PAGE")
    parser.add_argument("--check", metavar="PAGE")
    parser.add_argument("--model", metavar="PROGRAM")
    options = parser.parse_args()
    for word in options.set:
        name, _, value = word.partition("=")
        if name not in ASSUMED:
            parser.error(f"{name}: of " + ", ".join(ASSUMED))
        ASSUMED[name] = float(value)
    tables = {name: make() for name, make in TABLES.items()}
    if options.model:
        tables.update(model_tables(options.model))
    if options.write or options.check:
        page = pathlib.Path(options.write or options.check)
        text = page.read_text()
        new = with_tables(text, tables)
        if options.write:
            page.write_text(new)
            return 0
        wrong = check_code()
        if new != text:
            wrong.append(f"{page} has other tables: tests/bench/paper.py "
                         f"--write {page} --model PROGRAM, where PROGRAM is "
                         "bazel-bin/tests/lane/fake_time_test")
        for name, value in ASSUMED.items():
            if f"| `{name}` | {value:,} |" not in text:
                wrong.append(f"{page} does not say: | `{name}` | {value:,} |")
        print("\n".join(wrong) or "as the page has them")
        return 1 if wrong else 0
    for name, lines in tables.items():
        print(f"{name}:\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
