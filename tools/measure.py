"""Runs programs plain and under rcsock, and reads what came of it.

Used by tools/demo.py and tests/bench/shm_compare.
"""

import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Failure(Exception):
    """A program did not do what it should; the text is for the user."""


def find_output():
    """The tree of `bazel build -c opt`, whatever bazel-bin points to now."""
    for tree in sorted(ROOT.glob("bazel-out/*-opt/bin")):
        if (tree / "tools/rcsock/rcsock").exists():
            return tree
    raise Failure("not built: bazel build -c opt //...")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _listens(port):
    # Does not connect: some servers take the first connection seriously.
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A" and int(local.rsplit(":", 1)[1], 16) == port:
            return True
    return False


def _children_cpu():
    """Seconds of CPU time of all children that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Session:
    """The processes of one run of one case: plain, or under rcsock.

    `cpu` is the CPU time in seconds of those that stop() and result() have seen
    end, with their own children.
    """

    def __init__(self, output, under_rcsock):
        self.output = output
        self.under_rcsock = under_rcsock
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="rcsock-demo-"))
        self.stats = self.directory / "stats"
        self.stats.mkdir()
        self.cpu = 0.0
        self._processes = []
        self._wrapped = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _ in self._processes:
            if process.poll() is None:
                # Kills the group, since a hung server may have forked.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        subprocess.run(["rm", "-rf", str(self.directory)], check=False)

    def start(self, *command, rcsock=True, keep_output=True):
        """Starts a command; under rcsock if this run is, unless told not to.

        Its standard output comes by a pipe, or goes to its log.
        """
        command = [str(word) for word in command]
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        env.pop("RCSOCK_STATS", None)
        words = command
        if self.under_rcsock and rcsock:
            words = [str(self.output / "tools/rcsock/rcsock"), "run",
                     f"--stats={self.stats}/%p.json", "--"] + command
            self._wrapped += 1
        log = self.directory / f"{len(self._processes)}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                words, env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if keep_output else errors,
                stderr=errors, cwd=self.directory, start_new_session=True)
        self._processes.append((process, log))
        process.rcsock_name = command[0].rsplit("/", 1)[-1]
        process.rcsock_log = log
        return process

    def serve(self, port, *command, rcsock=True):
        """Starts a server and waits until it listens on the port."""
        process = self.start(*command, rcsock=rcsock, keep_output=False)
        limit = time.monotonic() + 20
        while not _listens(port):
            if process.poll() is not None:
                raise self._failure(process, "ended before it listened")
            if time.monotonic() > limit:
                raise self._failure(process, "does not listen")
            time.sleep(0.01)
        return process

    def output_of(self, *command, timeout, rcsock=True):
        """Runs a command to its end; returns its standard output."""
        return self.result(self.start(*command, rcsock=rcsock), timeout)

    def result(self, process, timeout):
        """Waits for what start() began; returns its standard output."""
        before = _children_cpu()
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(process, f"still runs after {timeout:.0f} s") \
                from None
        self.cpu += _children_cpu() - before
        text = out.decode(errors="replace")
        if process.returncode != 0:
            raise self._failure(process, f"status {process.returncode}",
                                text[-400:])
        return text

    def stop(self, process, how=signal.SIGTERM):
        """Stops a server as its users do, so that it can write its stats."""
        if how is not None and process.poll() is None:
            process.send_signal(how)
        before = _children_cpu()
        try:
            status = process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            raise self._failure(process, "does not stop") from None
        self.cpu += _children_cpu() - before
        if status not in (0, -signal.SIGTERM):
            raise self._failure(process, f"status {status}")

    def _failure(self, process, what, more=""):
        with contextlib.suppress(OSError):
            more += process.rcsock_log.read_text(errors="replace")[-800:]
        kind = "under rcsock" if self.under_rcsock else "plain"
        return Failure(f"{process.rcsock_name} ({kind}): {what}\n{more}".strip())

    def lane_bytes(self):
        """{lane: bytes in and out} over the processes that ran under rcsock."""
        lanes = {"tcp": 0, "shm": 0, "rdma": 0}
        files = sorted(self.stats.glob("*.json"))
        for file in files:
            try:
                counters = json.loads(file.read_text())["lanes"]
                for lane, c in counters.items():
                    lanes[lane] = (lanes.get(lane, 0) + c["tx_bytes"] +
                                   c["rx_bytes"])
            except (ValueError, KeyError, TypeError) as error:
                raise Failure(f"{file.name}: not the stats of a process: "
                              f"{error!r}") from None
        if len(files) < self._wrapped:
            raise Failure(f"{self._wrapped} processes ran under rcsock, "
                          f"{len(files)} wrote their stats")
        return lanes


_rates = {}


def count_for(session, what, seconds, first, rate_of):
    """How many of something take about `seconds` in such a session.

    `rate_of(session, count)` runs so many and returns how many a second that
    were; it is asked once for each `what`, plain and under rcsock, `first` of
    them and more if that is over too soon to tell.  The sessions are others:
    nothing of that counts.
    """
    kind = what, session.under_rcsock
    if kind not in _rates:
        count = first
        while True:
            with Session(session.output, session.under_rcsock) as other:
                rate = rate_of(other, count)
            if count > first or count >= 0.2 * rate:
                break
            count = int(0.3 * rate)
        _rates[kind] = rate
    return max(first, int(_rates[kind] * seconds))


class Lanes:
    """Bytes by lane, added up over runs."""

    def __init__(self):
        self.bytes = {}

    def add(self, lanes):
        for lane, n in lanes.items():
            self.bytes[lane] = self.bytes.get(lane, 0) + n

    @property
    def total(self):
        return sum(self.bytes.values())

    @property
    def main(self):
        return max(self.bytes, key=self.bytes.get) if self.total else "none"

    @property
    def share(self):
        """The part of the bytes that did not go over TCP."""
        if not self.total:
            return 0.0
        return 1 - self.bytes.get("tcp", 0) / self.total


def ratio(better, plain, rcsock):
    """How many times faster; more than 1 is faster, whatever the unit."""
    return rcsock / plain if better == "higher" else plain / rcsock


def median(values):
    return statistics.median(values)


def number(value):
    """Four significant digits, no exponent."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def table(header, rows):
    """Aligned columns: the first to the left, the others to the right."""
    rows = [header] + rows
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                  for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows)


def progress(text):
    """One line on the terminal that the next one replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
