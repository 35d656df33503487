"""usage: perf_rate_test.py RCSOCK PRELOAD

`rcsock perf --rate`: as many round trips begin as were asked for, and each latency
counts from when its round trip was due.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from perf_test import ENV, TOOL, Server, check


def worker_of(pid, server):
    try:
        stat = pathlib.Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return int(stat.rsplit(")", 1)[1].split()[1]) == server


def test_rate():
    with Server() as server:
        for transport, extra in ("tcp", ()), ("shm", ("-P", 3)), ("auto", ("--connections", 40)):
            kind = () if "--connections" in extra else ("--latency",)
            result = server.client("-J", *kind, "--rate", 2000, "-t", 1, "--transport", transport, *extra)
            check(result.returncode == 0, result)
            run = json.loads(result.stdout)
            # 2000 and five times the deviation of Poisson's law.
            check(abs(run["messages_per_second"] - 2000) < 230, run["messages_per_second"])
            check(run["latency_us"]["count"] >= 1700, run["latency_us"])
            check(run["spec"]["rate"] == 2000, run["spec"])


def test_overload():
    with Server() as server:
        # More than can be had: what was due and not sent counts, and it ends.
        result = server.client("-J", "--latency", "--rate", 5_000_000, "-t", 0.5, "--transport", "tcp")
        check(result.returncode == 0, result)
        run = json.loads(result.stdout)
        check(run["latency_us"]["p50"] > 10_000, run["latency_us"])
        check(run["latency_us"]["count"] > 1.5 * run["client"]["tx_bytes"] / 64, run)


def test_standstill():
    with Server() as server:
        # A server that stands still for a while is charged for it.
        client = subprocess.Popen(
            [TOOL, "perf", "-c", "127.0.0.1", "-p", str(server.port), "-J", "--latency", "--rate", "1000", "-t", "2",
             "--transport", "tcp"], stdout=subprocess.PIPE, text=True, env=ENV)
        time.sleep(1)
        workers = [pid for pid in os.listdir("/proc") if pid.isdigit() and worker_of(pid, server.process.pid)]
        check(len(workers) == 1, workers)
        os.kill(int(workers[0]), signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(int(workers[0]), signal.SIGCONT)
        run = json.loads(client.communicate(timeout=60)[0])
        check(run["latency_us"]["p90"] > 50_000, run["latency_us"])


if __name__ == "__main__":
    for test in (test_rate, test_overload, test_standstill):
        test()
        print(test.__name__, "ok", flush=True)
    sys.exit(0)
