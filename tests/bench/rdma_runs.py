"""The runs of rdma_compare, inside the guests: used by rdma_compare only.

    rdma_runs.py drive PLAN   runs the plan's cases; figures go to its results
    rdma_runs.py serve PLAN   starts servers for the driver on the other host

The plan is a JSON file that rdma_compare writes.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

CONTROL_PORT = 19999
FIRST_PORT = 20000
PERFTEST = ("perftest",)
MIB = 1 << 20


class Failed(Exception):
    """One run did not work; the others go on."""


class Host:
    """Starts and ends the servers on this host."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="rdma-runs-"))
        self.runs = {}

    def start(self, key, words, env, until, limit):
        """Starts a server; returns when it can be connected to."""
        stats = self.directory / f"stats-{key}"
        stats.mkdir()
        log = (self.directory / f"log-{key}").open("w+b")
        words = [w.replace("@STATS@", str(stats)) for w in words]
        env = {k: v.replace("@STATS@", str(stats)) for k, v in env.items()}
        process = subprocess.Popen(
            words, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True)
        self.runs[key] = (process, log, stats)
        end = time.monotonic() + limit
        while not self._listens(until, log):
            if process.poll() is not None:
                raise Failed(f"the server ended: {self._tail(log)}")
            if time.monotonic() > end:
                raise Failed("the server does not listen")
            time.sleep(0.01)
        return {}

    @staticmethod
    def _listens(until, log):
        if isinstance(until, int):
            return subprocess.run(["guestctl", "listening", str(until), "0"],
                                  capture_output=True,
                                  check=False).returncode == 0
        return until in Host._text(log)

    @staticmethod
    def _text(log):
        log.flush()
        return pathlib.Path(log.name).read_text(errors="replace")

    @staticmethod
    def _tail(log):
        return Host._text(log).strip()[-300:]

    def finish(self, key, limit):
        """Waits for the end of a server, or ends it; returns what it left."""
        process, log, stats = self.runs.pop(key)
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            pass
        status = process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        files = {f.name: f.read_text() for f in stats.iterdir()}
        text = self._tail(log)
        log.close()
        return {"status": status, "files": files, "text": text}


class RemoteHost:
    """The same, by the process that serves on the other host."""

    def __init__(self, address):
        end = time.monotonic() + 20
        while True:
            try:
                self.socket = socket.create_connection((address, CONTROL_PORT))
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        self.file = self.socket.makefile("rw")

    def _call(self, *request):
        self.file.write(json.dumps(request) + "\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def start(self, *arguments):
        return self._call("start", *arguments)

    def finish(self, *arguments):
        return self._call("finish", *arguments)


def serve():
    host = Host()
    with socket.create_server(("", CONTROL_PORT)) as listener:
        connection, _ = listener.accept()
    with connection, connection.makefile("rw") as file:
        for line in file:
            what, *arguments = json.loads(line)
            try:
                answer = getattr(host, what)(*arguments)
            except Failed as failed:
                answer = {"failed": str(failed)}
            file.write(json.dumps(answer) + "\n")
            file.flush()


class Driver:
    def __init__(self, plan):
        self.plan = plan
        self.spin = plan["mode"] == "spin"
        self.local = Host()
        peer = os.environ.get("PEER_IP")
        two = plan["hosts"] == 2
        self.address = peer if two else os.environ["RDMA_IP"]
        self.remote = RemoteHost(peer) if two else self.local
        self.port = FIRST_PORT
        self.keys = 0
        self.rates = {}     # what a message takes, by case and transport
        self.failures = {}  # how often, by case and transport
        self.results = open(plan["results"], "a")

    # What a first run takes as given: microseconds of a message.
    def guess(self, case):
        return 40 + case["size"] / 150

    def count(self, case, transport):
        us = self.rates.get((case["name"], transport), self.guess(case))
        count = int(self.plan["seconds"] * 1e6 / us)
        # Round trips are timed in a hundred batches.
        count = max(100, case["connections"] * 4, min(count, 200000))
        return count // case["connections"] * case["connections"]

    def words(self, case, transport, role, port, count):
        program = "verbs" if transport == "verbs" else "sockets"
        words = [self.plan["programs"][program], "--role", role, "--host",
                 self.address, "--port", port, "--pattern", case["kind"],
                 "--size", case["size"], "--connections", case["connections"],
                 "--count", count, "--limit", self.plan["limit"]]
        if self.spin:
            words.append("--spin")
        if program == "sockets" and role == "client":
            settle = self.plan["settle_ms"]
            if transport == "rcsock":
                settle += self.plan["settle_each_ms"] * case["connections"]
            words += ["--settle-ms", settle]
            if transport == "rsocket":
                words.append("--rsocket")
        return [str(w) for w in words]

    def env(self, transport):
        if transport == "rsocket":
            return {"LD_PRELOAD": self.plan["rspreload"]}
        if transport == "rcsock":
            env = {"LD_PRELOAD": self.plan["shim"],
                   "RCSOCK_STATS": "@STATS@/%p.json", "RCSOCK_LANES": "rdma",
                   "RCSOCK_PROMOTE_OPS": "1"}
            if not self.spin:
                env["RCSOCK_SPIN_US"] = "0"  # asleep, as the others
            return env | self.plan.get("env", {})
        return {}

    def client(self, words, env, limit):
        stats = pathlib.Path(tempfile.mkdtemp(dir=self.local.directory))
        env = {k: v.replace("@STATS@", str(stats)) for k, v in env.items()}
        words = [w.replace("@STATS@", str(stats)) for w in words]
        process = subprocess.Popen(
            words, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"the client still ran after {limit:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            raise Failed(f"the client's status is {process.returncode}: "
                         f"{err.strip()[-300:]}")
        return out, {f.name: f.read_text() for f in stats.iterdir()}

    def run(self, case, transport, traced=False):
        """One run of both ends: what goes into the results."""
        if transport in PERFTEST:
            return self.perftest(case)
        count = self.count(case, transport)
        if traced:
            count = min(count, case["connections"] * 1000)
        env = self.env(transport)
        limit = self.plan["limit"]
        share = max(1, case["connections"])
        if transport == "rsocket":
            share = min(share, self.plan["rsocket_accepts"])
        servers, port = [], self.port
        try:
            left = case["connections"]
            while left > 0:
                own = min(share, left)
                left -= own
                words = self.words({**case, "connections": own}, transport,
                                   "server", self.port,
                                   count * own // case["connections"])
                servers.append(self.start(words, env, traced, "listening\n"))
                self.port += 1
            words = self.words(case, transport, "client", port, count)
            if transport == "rsocket" and len(servers) > 1:
                words += ["--per-port", str(share)]
            out, files = self.client(*self.traced(words, env, traced), limit)
            figures = json.loads(out)
            ends = [self.remote.finish(key, 3) for key in servers]
            servers = []
        finally:
            for key in servers:
                with contextlib.suppress(Failed):
                    self.remote.finish(key, 0)
        result = {"figures": figures, "count": count}
        if transport == "rcsock":
            result["lanes"] = lanes([files, *(e["files"] for e in ends)])
        if traced:
            result["client_calls"] = json.loads(files["calls"])
            result["server_calls"] = [json.loads(e["files"]["calls"])
                                      for e in ends]
        elif case["kind"] == "oneway":
            self.rates[case["name"], transport] = 1e6 / figures["mps"]
        else:
            self.rates[case["name"], transport] = 2 * figures["us"]
        return result

    def traced(self, words, env, traced):
        """The same command, with its system calls counted."""
        if not traced:
            return words, env
        return [self.plan["programs"]["count_syscalls"], "@STATS@/calls",
                "env", *(f"{k}={v}" for k, v in env.items()), *words], {}

    def start(self, words, env, traced, until):
        self.keys += 1
        # Also if it fails: what it left has to be ended.
        try:
            self.remote.start(self.keys, *self.traced(words, env, traced),
                              until, self.plan["limit"])
        except Failed:
            with contextlib.suppress(Failed):
                self.remote.finish(self.keys, 0)
            raise
        return self.keys

    def perftest(self, case):
        """ib_write_bw, and where it may spin ib_write_lat."""
        oneway = case["kind"] == "oneway"
        words = ["ib_write_bw" if oneway else "ib_write_lat", "-R", "-F", "-p",
                 str(self.port), "-s", str(case["size"]), "-n",
                 str(max(100, self.count(case, "perftest")))]
        self.port += 1
        key = self.start(words, {}, False, self.port - 1)
        try:
            out, _ = self.client([*words, self.address], {},
                                 self.plan["limit"])
        finally:
            self.remote.finish(key, 1)
        found = re.search(rf"^ *{case['size']} +\d+ +(.*)$", out, re.MULTILINE)
        if not found:
            raise Failed(f"perftest printed: {out[-300:]}")
        numbers = found[1].split()
        if not oneway:  # t_min, t_max, t_typical
            return {"figures": {"us": float(numbers[2])}}
        rate = float(numbers[1]) * MIB  # peak, average
        if rate == 0:
            # On a busy machine it does not trust what it finds.
            raise Failed("perftest could not measure the CPU's clock")
        return {"figures": {"MBps": rate / 1e6, "mps": rate / case["size"]}}

    def drive(self):
        plan = self.plan
        for repetition in range(plan["repetitions"]):
            for case in plan["cases"]:
                order = case["transports"]
                if repetition % 2 == 1:
                    order = order[::-1]
                for transport in order:
                    self.attempt(case, transport, repetition, False)
        for case in plan["traced"]:
            for transport in case["transports"]:
                self.attempt(case, transport, 0, True)

    def attempt(self, case, transport, repetition, traced):
        name = (case["name"], transport)
        # What does not work twice is not tried for ever.
        if self.failures.get(name, 0) >= 2:
            return
        line = {"case": case["name"], "transport": transport,
                "repetition": repetition, "traced": traced}
        start = time.monotonic()
        try:
            line |= self.run(case, transport, traced)
        except (Failed, OSError, ValueError, KeyError) as error:
            self.failures[name] = self.failures.get(name, 0) + 1
            line["failed"] = str(error) or repr(error)
        line["took"] = round(time.monotonic() - start, 3)
        self.results.write(json.dumps(line) + "\n")
        self.results.flush()


def lanes(all_files):
    """Bytes by lane over the processes of one run."""
    total = {"tcp": 0, "shm": 0, "rdma": 0}
    for files in all_files:
        stats = [text for name, text in files.items() if name.endswith(".json")]
        if not stats:
            raise Failed("a process under rcsock left no stats")
        for text in stats:
            for lane, counts in json.loads(text)["lanes"].items():
                total[lane] += counts["tx_bytes"] + counts["rx_bytes"]
    return total


def main():
    plan = json.loads(pathlib.Path(sys.argv[2]).read_text())
    if sys.argv[1] == "serve":
        serve()
    else:
        Driver(plan).drive()
    return 0


if __name__ == "__main__":
    sys.exit(main())
