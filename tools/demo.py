#!/usr/bin/env python3
"""Runs real programs plain and under rcsock, side by side, on this machine.

Every case runs several times in turn, plain and under rcsock, with fresh
processes, on 127.0.0.1; the figures are medians.  The scheduler places the
programs; only the two ends of pingpong are pinned, to one CPU each, in both.
A ratio above 1 means faster under rcsock.  `share` is the part of the bytes of
all the processes under rcsock that did not go over TCP.

p99 is that of the load tool, where it tells one, and CPU the time of all
processes together: for a request, a round trip, or with iperf3 a MiB.  Both are
microseconds, plain > rcsock.

The exit status is not 0 if a program failed, or if a share is below 0.99.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import signal
import sys
import time

import measure
from measure import Failure, Lanes

MINIMUM_SHARE = 0.99

NGINX = """\
daemon off;
worker_processes {workers};
{user}
error_log {dir}/error.log;
pid {dir}/nginx.pid;
events {{ worker_connections {connections}; }}
http {{
  access_log off;
  open_file_cache max=100;
  sendfile on;
  tcp_nopush on;
  types {{ text/html html; }}
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  server {{
    listen 127.0.0.1:{port};
    root {dir}/www;
  }}
}}
"""
PAGE = ("<!DOCTYPE html>\n<html>\n<head><title>Welcome</title></head>\n<body>\n"
        + "<p>About as long as the page that nginx comes with.</p>\n" * 9
        + "</body>\n</html>\n")


class Figure:
    """What one run says of one row."""

    def __init__(self, value, work, p99=None):
        self.value = value  # in the unit of the case
        self.work = work    # how many requests the session's CPU time was for
        self.p99 = p99      # us; None: the load tool tells none


def p99_of_wrk(text):
    found = re.search(r"99%\s+([\d.]+)(us|ms|s)\b", text)
    if not found:
        raise Failure(f"wrk printed:\n{text}")
    return float(found[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[found[2]]


class Case:
    """Programs to run, and the rows of the table that one run of them fills."""

    def __init__(self, rows, unit, better, run):
        self.rows = rows      # names, in the order of what `run` returns
        self.unit = unit
        self.better = better  # "higher" or "lower"
        self.run = run        # (session, seconds) -> [Figure]


def limit(seconds):
    return 30 + 10 * seconds


def redis(clients):
    def benchmark(session, requests, seconds):
        port = measure.free_port()
        server = session.serve(
            port, "redis-server", "--port", port, "--bind", "127.0.0.1",
            "--save", "", "--appendonly", "no", "--dir", session.directory)
        text = session.output_of(
            "redis-benchmark", "-h", "127.0.0.1", "-p", port, "-t", "set,get",
            "-c", clients, "-P", 1, "-n", requests, "--csv",
            timeout=limit(seconds))
        rows = {row["test"]: row for row in csv.DictReader(text.splitlines())}
        try:
            figures = [Figure(float(rows[test]["rps"]), 2 * requests,
                              1e3 * float(rows[test]["p99_latency_ms"]))
                       for test in ("GET", "SET")]
        except (KeyError, ValueError):
            raise Failure(f"redis-benchmark printed:\n{text}") from None
        session.stop(server)
        return figures

    def run(session, seconds):
        requests = measure.count_for(
            session, f"redis {clients}", seconds, 5000,
            lambda other, n: min(
                figure.value for figure in benchmark(other, n, seconds)))
        return benchmark(session, requests, seconds)

    return run


def memcached(session, seconds):
    port = measure.free_port()
    user = ["-u", "root"] if os.getuid() == 0 else []
    server = session.serve(port, "memcached", *user, "-l", "127.0.0.1", "-p",
                           port, "-U", 0, "-t", 1,
                           # Room for all that the load tool sets: no misses.
                           "-m", 2048)
    text = session.output_of(
        "memcaslap", "-s", f"127.0.0.1:{port}", "-T", 1, "-c", 16, "-t",
        f"{max(1, round(seconds))}s", timeout=limit(seconds))
    found = re.search(r"Ops: (\d+) TPS: (\d+)", text)
    if not found or re.search(r"get_misses: [1-9]", text):
        raise Failure(f"memcaslap printed:\n{text}")
    session.stop(server)
    return [Figure(float(found[2]), int(found[1]))]


def serve_nginx(session, workers=1, connections=1024):
    """Starts nginx with a page; returns its port and the process."""
    port = measure.free_port()
    www = session.directory / "www"
    www.mkdir()
    (www / "index.html").write_text(PAGE)
    session.directory.chmod(0o755)
    config = session.directory / "nginx.conf"
    config.write_text(NGINX.format(
        dir=session.directory, port=port, workers=workers,
        connections=connections,
        user="user root;" if os.getuid() == 0 else ""))
    return port, session.serve(port, "/usr/sbin/nginx", "-e",
                               session.directory / "error.log", "-c", config)


def nginx(connections):
    def run(session, seconds):
        port, server = serve_nginx(session)
        text = session.output_of(
            "wrk", "--latency", "-t", 1, "-c", connections, "-d",
            f"{max(1, round(seconds))}s", f"http://127.0.0.1:{port}/",
            timeout=limit(seconds))
        rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
        done = re.search(r"(\d+) requests in", text)
        if not rate or not done or "Non-2xx" in text or "Socket errors" in text:
            raise Failure(f"wrk printed:\n{text}")
        session.stop(server, signal.SIGQUIT)
        return [Figure(float(rate[1]), int(done[1]), p99_of_wrk(text))]

    return run


def iperf3(*options):
    def run(session, seconds):
        port = measure.free_port()
        # One test.  The server ends by itself after it.
        server = session.serve(port, "iperf3", "-s", "-1", "-B", "127.0.0.1",
                               "-p", port)
        text = session.output_of(
            "iperf3", "-c", "127.0.0.1", "-p", port, "-t",
            round(seconds) + 2, "-J", *options, timeout=limit(seconds))
        try:
            received = json.loads(text)["end"]["sum_received"]
            bits, size = received["bits_per_second"], received["bytes"]
        except (ValueError, KeyError):
            raise Failure(f"iperf3 printed:\n{text[-800:]}") from None
        session.stop(server, None)
        return [Figure(bits / 1e9, size / (1 << 20))]

    return run


def pingpong(mode):
    def round_trip(session, iterations, seconds):
        program = session.output / "tests/bench/pingpong"
        port = measure.free_port()
        server = session.serve(
            port, program, "--role", "server", "--port", port, "--cpu", 0,
            "--mode", mode)
        text = session.output_of(
            program, "--role", "client", "--port", port, "--cpu", 1, "--mode",
            mode, "--size", 8, "--iters", iterations, timeout=limit(seconds))
        session.stop(server, None)
        return json.loads(text)["ns"]

    def run(session, seconds):
        iterations = measure.count_for(
            session, f"pingpong {mode}", seconds, 4000,
            lambda other, n: 1e9 / round_trip(other, n, seconds))
        return [Figure(round_trip(session, iterations, seconds) / 1000,
                       iterations)]

    return run


CASES = [
    Case(["redis-get-c1", "redis-set-c1"], "req/s", "higher", redis(1)),
    Case(["redis-get-c50", "redis-set-c50"], "req/s", "higher", redis(50)),
    Case(["memcached"], "req/s", "higher", memcached),
    Case(["nginx-c1"], "req/s", "higher", nginx(1)),
    Case(["nginx-c50"], "req/s", "higher", nginx(50)),
    Case(["iperf3-1"], "Gbit/s", "higher", iperf3("-P", 1)),
    Case(["iperf3-4"], "Gbit/s", "higher", iperf3("-P", 4)),
    Case(["iperf3-reverse"], "Gbit/s", "higher", iperf3("-R")),
    Case(["pingpong-8"], "us", "lower", pingpong("blocking")),
    Case(["pingpong-8-epoll"], "us", "lower", pingpong("epoll")),
]


def medians(runs, row):
    """(value, p99, CPU time) of a row, each the median of its own."""
    figures = [(run[row], cpu) for run, cpu in runs]
    # A load tool that rounds to milliseconds says 0.
    p99 = [figure.p99 for figure, _ in figures if figure.p99]
    return (measure.median([figure.value for figure, _ in figures]),
            measure.median(p99) if p99 else None,
            measure.median([1e6 * cpu / figure.work for figure, cpu in figures]))


def measure_case(case, output, repetitions, seconds, label):
    """One row per name, as in the JSON file; raises Failure."""
    figures = {False: [], True: []}
    lanes = Lanes()
    for repetition in range(repetitions):
        # Plain first, then rcsock first, in turn: a drift hits both.
        for under_rcsock in sorted(figures, reverse=repetition % 2 == 1):
            measure.progress(f"{label} {case.rows[0]}: run {repetition + 1} of "
                             f"{repetitions}, "
                             f"{'rcsock' if under_rcsock else 'plain'}")
            with measure.Session(output, under_rcsock) as session:
                figures[under_rcsock].append(
                    (case.run(session, seconds), session.cpu))
                if under_rcsock:
                    lanes.add(session.lane_bytes())
    rows = []
    for i, name in enumerate(case.rows):
        plain, plain_p99, plain_cpu = medians(figures[False], i)
        rcsock, rcsock_p99, rcsock_cpu = medians(figures[True], i)
        rows.append({
            "name": name, "unit": case.unit, "better": case.better,
            "plain": plain, "rcsock": rcsock,
            "ratio": measure.ratio(case.better, plain, rcsock),
            "plain_p99_us": plain_p99, "rcsock_p99_us": rcsock_p99,
            "plain_cpu_us": plain_cpu, "rcsock_cpu_us": rcsock_cpu,
            "lane": lanes.main, "lane_share": lanes.share})
    return rows


def both(row, what):
    """"plain > rcsock" of a row."""
    if row["plain_" + what] is None or row["rcsock_" + what] is None:
        return "-"
    return (measure.number(row["plain_" + what]) + " > " +
            measure.number(row["rcsock_" + what]))


def main():
    names = [name for case in CASES for name in case.rows]
    parser = argparse.ArgumentParser(
        prog="tools/demo", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="shorter and fewer runs: under two minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names,
                        help="only these: " + " ".join(names))
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="write the table there too")
    parser.add_argument("--no-build", action="store_true",
                        help="measure what was built before")
    options = parser.parse_args()

    wanted = set(options.only or names)
    cases = [case for case in CASES if wanted & set(case.rows)]
    repetitions, seconds = (2, 1.1) if options.quick else (5, 3)
    output = measure.find_output()

    rows, problems = [], []
    start = time.monotonic()
    for i, case in enumerate(cases):
        try:
            new = measure_case(case, output, repetitions, seconds,
                               f"[{i + 1}/{len(cases)}]")
        except Failure as failure:
            problems.append(f"{case.rows[0]}: {failure}")
            new = [{"name": name, "unit": case.unit, "better": case.better,
                    "plain": None, "rcsock": None, "ratio": None,
                    "plain_p99_us": None, "rcsock_p99_us": None,
                    "plain_cpu_us": None, "rcsock_cpu_us": None,
                    "lane": "none", "lane_share": 0.0} for name in case.rows]
        rows += [row for row in new if row["name"] in wanted]
    measure.progress("")

    for row in rows:
        if row["ratio"] is not None and row["lane_share"] < MINIMUM_SHARE:
            problems.append(f"{row['name']}: only {row['lane_share']:.1%} of "
                            "its bytes went over a lane")
    print(measure.table(
        ["name", "unit", "plain", "rcsock", "ratio", "p99", "CPU", "lane",
         "share"],
        [[r["name"], r["unit"], measure.number(r["plain"]),
          measure.number(r["rcsock"]),
          "-" if r["ratio"] is None else f"{r['ratio']:.2f}",
          both(r, "p99_us"), both(r, "cpu_us"), r["lane"], f"{r['lane_share']:.1%}"] for r in rows]))
    print(f"\nmedians of {repetitions} runs of about {seconds} s each; "
          f"{time.monotonic() - start:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"tools/demo: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
