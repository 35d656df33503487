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
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "guest/apps"))
import hosts  # noqa: E402
from hosts import STATS, Failed, Host, RemoteHost  # noqa: E402

FIRST_PORT = 20000
PERFTEST = ("perftest",)
VERBS = ("verbs", "copies")
MIB = 1 << 20
RSOCKET = pathlib.Path("/etc/rdma/rsocket")  # the guest's own copy


def rsocket_asleep(plan):
    """Without it rsocket polls for 10 us before each sleep."""
    if plan["mode"] == "sleep" and os.environ.get("IN_GUEST"):
        RSOCKET.mkdir(parents=True, exist_ok=True)
        (RSOCKET / "polling_time").write_text("0\n")


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
        # Round trips are timed in a hundred batches of equal length.
        unit = 100 if case["kind"] == "pingpong" else case["connections"]
        return max(100, unit, min(count, 200000)) // unit * unit

    def settle_limit(self, case):
        """In milliseconds; it ends sooner, when all connections have a lane."""
        return 1000 + self.plan["settle_each_ms"] * case["connections"]

    def limit(self, traced):
        return self.plan["limit"] * (3 if traced else 1)

    def words(self, case, transport, role, port, count, traced):
        program = "verbs" if transport in VERBS else "sockets"
        words = [self.plan["programs"][program], "--role", role, "--host",
                 self.address, "--port", port, "--pattern", case["kind"],
                 "--size", case["size"], "--connections", case["connections"],
                 "--count", count, "--limit", self.limit(traced)]
        if self.spin:
            words.append("--spin")
        if transport == "copies":
            words.append("--copy")
        if program == "sockets" and role == "client":
            settle = self.plan["settle_ms"]
            if transport == "rcsock":
                settle = self.settle_limit(case) * (10 if traced else 1)
                words.append("--until-off-tcp")
            words += ["--settle-ms", settle]
            if transport == "rsocket":
                words.append("--rsocket")
        return [str(w) for w in words]

    def env(self, transport):
        if transport == "rsocket":
            return {"LD_PRELOAD": self.plan["rspreload"]}
        if transport == "rcsock":
            env = {"LD_PRELOAD": self.plan["shim"],
                   "RCSOCK_STATS": f"{STATS}/%p.json", "RCSOCK_LANES": "rdma",
                   "RCSOCK_PROMOTE_OPS": "1"}
            if not self.spin:
                env["RCSOCK_SPIN_US"] = "0"  # asleep, as the others
            return env | self.plan.get("env", {})
        return {}

    def run(self, case, transport, traced):
        """One run of both ends: what goes into the results. `traced` is how
        many messages, if system calls are to be counted."""
        if transport in PERFTEST:
            return self.perftest(case)
        count = self.count(case, transport)
        if traced:
            count = traced
        env = self.env(transport)
        limit = self.limit(traced)
        if transport == "rcsock":
            limit += self.settle_limit(case) / 1000
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
                                   count * own // case["connections"],
                                   traced)
                servers.append(self.start(words, env, traced, "listening\n"))
                self.port += 1
            words = self.words(case, transport, "client", port, count, traced)
            if transport == "rsocket" and len(servers) > 1:
                words += ["--per-port", str(share)]
            out, err, files = self.local.run(
                *self.traced(words, env, traced), limit)
            figures = json.loads(out)
            ends = [self.remote.finish(key, None, 3) for key in servers]
            servers = []
        finally:
            for key in servers:
                with contextlib.suppress(Failed):
                    self.remote.finish(key, None, 0)
        result = {"figures": figures, "count": count}
        if transport == "rcsock":
            result["lanes"] = hosts.lane_bytes(
                [files, *(e["files"] for e in ends)])
            result["client_bytes"] = sum(hosts.lane_bytes([files]).values())
            (result["tcp_bytes"], result["measured_tcp_bytes"],
             result["measured_bytes"]) = (int(n) for n in re.search(
                 r"tcp_bytes (\d+), measured (\d+) of (\d+)", err).groups())
        if traced:
            result["client_calls"] = json.loads(files["calls"])
            result["server_calls"] = [json.loads(e["files"]["calls"])
                                      for e in ends]
            for counts in [result["client_calls"], *result["server_calls"]]:
                if counts["marks"] != 2:
                    raise Failed(f"{counts['marks']} marks and not 2")
        elif case["kind"] == "oneway":
            self.rates[case["name"], transport] = 1e6 / figures["mps"]
        else:
            self.rates[case["name"], transport] = 2 * figures["us"]
        return result

    def traced(self, words, env, traced):
        """The same command, with its system calls counted."""
        if not traced:
            return words, env
        return [self.plan["programs"]["count_syscalls"], f"{STATS}/calls",
                "env", *(f"{k}={v}" for k, v in env.items()), *words], {}

    def start(self, words, env, traced, until):
        self.keys += 1
        # Also if it fails: what it left has to be ended.
        try:
            self.remote.start(self.keys, *self.traced(words, env, traced),
                              until, self.plan["limit"])
        except Failed:
            with contextlib.suppress(Failed):
                self.remote.finish(self.keys, None, 0)
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
            out, _, _ = self.local.run([*words, self.address], {},
                                 self.plan["limit"])
        finally:
            self.remote.finish(key, None, 1)
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
        rsocket_asleep(plan)
        for repetition in range(plan["repetitions"]):
            for case in plan["cases"]:
                order = case["transports"]
                if repetition % 2 == 1:
                    order = order[::-1]
                for transport in order:
                    self.attempt(case, transport, repetition, 0)
        for case in plan["traced"]:
            for transport in case["transports"]:
                self.attempt(case, transport, 0, plan["traced_count"])

    def attempt(self, case, transport, repetition, traced):
        name = (case["name"], transport)
        # What does not work twice is not tried for ever.
        if self.failures.get(name, 0) >= 2:
            return
        line = {"case": case["name"], "transport": transport,
                "repetition": repetition, "traced": bool(traced)}
        start = time.monotonic()
        try:
            line |= self.run(case, transport, traced)
        except (Failed, OSError, ValueError, KeyError) as error:
            self.failures[name] = self.failures.get(name, 0) + 1
            line["failed"] = str(error) or repr(error)
        line["took"] = round(time.monotonic() - start, 3)
        self.results.write(json.dumps(line) + "\n")
        self.results.flush()


def main():
    plan = json.loads(pathlib.Path(sys.argv[2]).read_text())
    if sys.argv[1] == "serve":
        rsocket_asleep(plan)
        hosts.serve()
    else:
        Driver(plan).drive()
    return 0


if __name__ == "__main__":
    sys.exit(main())
