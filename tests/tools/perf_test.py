"""usage: perf_test.py RCSOCK PRELOAD

`rcsock perf` natively: each kind of measurement over tcp and shm, wrong options,
peers that are not what they should be, and ends that go away.  Speed is not
looked at.
"""

import contextlib
import glob
import html.parser
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid

TOOL, PRELOAD = sys.argv[1:]
MARK = uuid.uuid4().hex
ENV = {k: v for k, v in os.environ.items() if not k.startswith("RCSOCK_")}
ENV.update(RCSOCK_PRELOAD=PRELOAD, PERF_TEST=MARK)
ENV.pop("LD_PRELOAD", None)
MAGIC = b"RCSKPERF"
VERSION = 3
LIMIT = 60


def check(good, *what):
    if not good:
        raise AssertionError(" ".join(str(w) for w in what))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def perf(*args):
    return subprocess.run([TOOL, "perf", *map(str, args)], env=ENV, text=True,
                          capture_output=True, timeout=LIMIT)


def ours():
    """Every process that this test has brought about, but itself."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if MARK.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
    return found


def eventually(condition, what):
    end = time.monotonic() + 20
    while not condition():
        check(time.monotonic() < end, what)
        time.sleep(0.02)


class Server:
    def __init__(self, *args):
        self.port = free_port()
        self.process = subprocess.Popen(
            [TOOL, "perf", "-s", "-p", str(self.port), *args], env=ENV,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.process.stdout.readline()
        check(str(self.port) in line, line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            check(self.process.wait(LIMIT) == 0, "the server's status")
        self.process.communicate()
        eventually(lambda: not ours(), "left running after the server")

    def client(self, *args):
        return perf("-c", "127.0.0.1", "-p", self.port, *args)

    def json(self, *args, status=0):
        result = self.client("-J", *args)
        check(result.returncode == status, args, result)
        return json.loads(result.stdout)

    def connect(self, hello=MAGIC + struct.pack(">II", VERSION, 0)):
        s = socket.create_connection(("127.0.0.1", self.port), LIMIT)
        s.sendall(hello)
        return s


def failed(result, status, *words):
    """One line on stderr, and this exit status."""
    check(result.returncode == status, result)
    check(result.stderr.startswith("rcsock: "), result)
    check(result.stderr.count("\n") == 1, result)
    for word in words:
        check(word in result.stderr, word, result)


def on(run, lane):
    check(run["lane"] == lane, run["lane"], run["lane_share"], run["reasons"])
    if lane == "tcp":
        check(run["lane_share"] == 0, run["lane_share"])
    else:
        check(run["lane_share"] > 0.95, run["lane_share"], run["reasons"])
    check(run["messages_per_second"] > 0 and run["bytes_per_second"] > 0, run)
    for end in "client", "server":
        check(run[end]["seconds"] > 0, run[end])


def quantiles(times):
    values = [times[k] for k in ("min", "p50", "p90", "p99", "p99.9", "p99.99",
                                 "max")]
    check(values == sorted(values) and values[0] > 0, times)
    check(times["min"] <= times["mean"] <= times["max"], times)


def test_streams():
    with Server() as server:
        for transport, lane in ("tcp", "tcp"), ("shm", "shm"), ("auto", "shm"):
            run = server.json("--transport", transport, "-t", 0.3, "-i", 0.1)
            on(run, lane)
            check(run["client"]["tx_bytes"] == run["server"]["rx_bytes"] > 0,
                  run)
            check(run["server"]["tx_bytes"] == 0, run)
            check(len(run["intervals"]) >= 2, run["intervals"])
            check(sum(i["tx_bytes"] for i in run["intervals"]) <=
                  run["client"]["tx_bytes"], run["intervals"])
            check(run["client"]["cpu_us_per_message"] > 0, run)
            run = server.json("--transport", transport, "-t", 0.3, "-R", "-P",
                              3, "-l", "4K")
            on(run, lane)
            check(run["client"]["rx_bytes"] == run["server"]["tx_bytes"] > 0,
                  run)
            check(run["client"]["tx_bytes"] == 0, run)
            run = server.json("--transport", transport, "-t", 0.3, "--bidir",
                              "-P", 2)
            on(run, lane)
            for a, b in ("client", "server"), ("server", "client"):
                check(run[a]["tx_bytes"] == run[b]["rx_bytes"] > 0, run)
            run = server.json("--transport", transport, "-n", "3M", "-l", 1000)
            check(run["server"]["rx_bytes"] == 3 << 20, run)


def test_round_trips():
    with Server() as server:
        for transport, lane in ("tcp", "tcp"), ("shm", "shm"):
            run = server.json("--transport", transport, "-t", 0.3, "--latency")
            on(run, lane)
            quantiles(run["latency_us"])
            run = server.json("--transport", transport, "-t", 0.3, "--latency",
                              "-P", 3, "-l", "100K")
            on(run, lane)
            run = server.json("--transport", transport, "-t", 0.5,
                              "--connections", 200, "--active", 16)
            on(run, lane)
            quantiles(run["latency_us"])
            quantiles(run["connect_us"])
            check(run["connect_us"]["count"] == 200, run["connect_us"])
            check(run["client"]["tx_bytes"] == run["client"]["rx_bytes"] ==
                  64 * run["latency_us"]["count"], run)


def test_short_connections():
    with Server() as server:
        run = server.json("--short", "-t", 0.3, "-P", 2, "-l", 100)
        quantiles(run["connect_us"])
        check(run["latency_us"]["count"] == run["connect_us"]["count"] > 0, run)
        # Over what the client's connections went, by rcsock's own count.
        moved = run["lanes_bytes"]
        check(sum(moved.values()) ==
              run["client"]["tx_bytes"] + run["client"]["rx_bytes"], run)
        share = 1 - moved["tcp"] / sum(moved.values())
        check(abs(run["lane_share"] - share) < 1e-6, run["lane_share"], moved)
        check((run["lane"] == "tcp") == (share < 0.01), run["lane"], share)
        # They end before a lane would pay, so one that is named is not used.
        run = server.json("--short", "-t", 0.3, "--transport", "shm", status=3)
        check(not run["lane_used"] and run["lane_share"] < 0.95, run)


def test_system_calls():
    with Server() as server:
        result = server.client("-J", "--transport", "tcp", "--latency", "-t",
                               0.3, "--syscalls")
        check(result.returncode == 0, result)
        run = json.loads(result.stdout)
        on(run, "tcp")
        if "ptrace" in run.get("syscalls_failed", ""):
            return  # not allowed here, and said so
        for end in "client", "server":
            # A send and a receive for each.
            check(1.9 < run[end]["syscalls_per_message"] < 3, run[end])
            check("recvfrom" in run[end]["syscalls"], run[end])


def test_affinity():
    cpu = max(os.sched_getaffinity(0))
    with Server() as server:
        client = started(server, "--transport", "shm", "-A", f"{cpu},{cpu}")
        workers = [pid for pid, line in ours().items() if b"perf-worker" in line]
        check(len(workers) == 2, workers)
        for pid in workers:
            check(os.sched_getaffinity(pid) == {cpu}, pid)
        shown = subprocess.run([TOOL, "stat", "--json"], env=ENV, text=True,
                               capture_output=True, timeout=LIMIT)
        names = {p["pid"]: p["program"]
                 for p in json.loads(shown.stdout)["processes"]}
        check({names[pid] for pid in workers} == {"rcsock"}, names)
        client.kill()
        client.communicate()
        eventually(lambda: list(ours()) == [server.process.pid], "the client")
        run = server.json("--transport", "tcp", "-t", 0.1)
        check(run["spec"]["client_cpu"] is None, run["spec"])
        failed(server.client("-A", 8000), 1, "no CPU 8000")
        failed(server.client("-A", f"{cpu},8000"), 1, "no CPU 8000", "port")
        on(server.json("--transport", "tcp", "-t", 0.1), "tcp")
    with Server("-A", str(cpu)) as server:
        client = started(server, "--transport", "tcp")
        check(sorted(os.sched_getaffinity(pid) == {cpu} for pid, line in
                     ours().items() if b"perf-worker" in line)[-1], "the server")
        client.kill()
        client.communicate()


def test_fallback_is_no_success():
    if glob.glob("/sys/class/infiniband/*"):
        print("NOT TESTED here, where RDMA devices are: "
              "test_fallback_is_no_success", flush=True)
        return
    with Server() as server:
        result = server.client("--transport", "rdma", "-t", 0.1, "--settle", 0)
        failed(result, 3, "0.0% of the bytes", "rdma")
        failed(server.client("--transport", "verbs", "-t", 0.1), 1, "RDMA")
        result = server.client("--compare", "-J", "--rounds", 2, "-t", 0.2,
                               "--settle", 1, "--latency")
        check(result.returncode == 0, result)
        rows = {r["transport"]: r for r in json.loads(result.stdout)["compare"]}
        check(list(rows) == ["tcp", "shm", "rdma", "verbs"], rows)
        check(rows["tcp"]["vs_tcp"] == 1, rows["tcp"])
        on(rows["shm"]["median"], "shm")
        middle = {}
        for name in "tcp", "shm":
            check(len(rows[name]["figures"]) == 2, rows[name])
            middle[name] = sum(rows[name]["figures"]) / 2
            check(abs(rows[name]["median_figure"] / middle[name] - 1) < 1e-9,
                  rows[name])
        check(abs(rows["shm"]["vs_tcp"] * middle["shm"] / middle["tcp"] - 1)
              < 1e-9, rows)
        check("NOT USED" in rows["rdma"]["failed"], rows["rdma"])
        check("vs_tcp" not in rows["rdma"], rows["rdma"])
        check("RDMA" in rows["verbs"]["failed"], rows["verbs"])
        # What is asked for by name must work.
        result = server.client("--compare", "--transport", "tcp,rdma", "-t", 0.1,
                               "--rounds", 1, "--settle", 0)
        check(result.returncode == 3, result)
        check("NOT USED" in result.stdout, result)
        # So must short connections.
        short = "--short", "-t", 0.1
        result = server.client("--transport", "rdma", *short)
        failed(result, 3, "0.0% of the bytes", "rdma")
        result = server.client("--compare", "-J", "--transport", "tcp,rdma",
                               "--rounds", 1, *short)
        check(result.returncode == 3, result)
        rows = {r["transport"]: r for r in json.loads(result.stdout)["compare"]}
        check("NOT USED" in rows["rdma"]["failed"], rows["rdma"])
        check("vs_tcp" not in rows["rdma"], rows["rdma"])
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "out.html")
            report = server.client("--report", path, "-t", 0.05, "--settle", 0,
                                   "--transport", "tcp,verbs")
            check(report.returncode == 3, report)
            text = path.read_text()
            check("raw verbs is not shown: " in text and "RDMA" in text, text)
            check("NOT USED" not in text and "no_device" not in text, text)
        check("\x1b" not in result.stdout + result.stderr, result)


def test_report():
    class Page(html.parser.HTMLParser):
        tags, stack = [], []

        def handle_starttag(self, tag, attributes):
            self.tags.append(tag)
            for name, value in attributes:
                check(name not in ("src", "href"), tag, name, value)
            if tag not in ("meta", "br"):
                self.stack.append(tag)

        def handle_endtag(self, tag):
            check(self.stack.pop() == tag, "unbalanced", tag)

    with Server() as server, tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "out.html")
        result = server.client("--report", path, "-t", 0.05, "--settle", 0.5,
                               "--transport", "tcp,shm", "--rounds", 2)
        # 3: on a busy machine a point may have been too short for its lane.
        text = path.read_text()
        missed = re.search("its bytes (stayed|were)", text) is not None
        check(result.returncode == (3 if missed else 0), result)
        page = Page()
        page.feed(text)
        check(not page.stack, page.stack)
        check(page.tags.count("section") == 6, page.tags)
        check("CPU at a rate" in text and "Latency at a rate" in text)
        check("http" not in text and "@import" not in text, "not self-contained")
        check("prefers-color-scheme" in text and "viewport" in text)
        release = pathlib.Path("VERSION").read_text(encoding="ascii").strip()
        name = html.escape(os.uname().nodename)
        check(text.count(f"{name}: ") == 2, "both hosts")
        check(text.count(f"rcsock {release}.") == 2, "the version")
        check("median of 2 runs" in text and 'class="spread tcp"' in text)
        check(not re.search(r"\de[+-]\d", text), "a figure that is for no people")
        check("nan" not in text and "inf" not in text.replace("info", ""), "nan")
        failed(server.client("--report", "/nonexistent/x.html"), 1,
               "/nonexistent/x.html")
        # A report that comes to nothing leaves the one before it alone.
        failed(perf("-c", "127.0.0.1", "-p", free_port(), "--report", path), 1)
        check(path.read_text() == text, "the report before")
        check(os.listdir(directory) == ["out.html"], os.listdir(directory))


def test_once_says_how_it_went():
    for wrong, status in (False, 0), (True, 1):
        with Server("-1") as server:
            if wrong:
                with server.connect() as s:
                    s.sendall(struct.pack(">I", 4) + b"text")
                    while s.recv(4096):
                        pass
            else:
                check(server.client("--transport", "tcp", "-t", 0.05)
                      .returncode == 0, "the client")
            check(server.process.wait(LIMIT) == status, wrong)


def test_a_name_with_several_addresses():
    families = {at[0] for at in socket.getaddrinfo(
        "localhost", None, type=socket.SOCK_STREAM)}
    if len(families) < 2:
        print("NOT TESTED here, where localhost has one address: "
              "test_a_name_with_several_addresses", flush=True)
        return
    for address in "127.0.0.1", "::1":
        with Server("-B", address) as server:
            result = perf("-c", "localhost", "-p", server.port, "--transport",
                          "tcp", "-t", 0.05)
            check(result.returncode == 0, address, result)


def test_wrong_options():
    client = ["-c", "127.0.0.1"]
    for bad in (
        [], ["-s", *client], [*client, "-p", 0], [*client, "-p", 65536],
        [*client, "-t", 0], [*client, "-t", -1], [*client, "-t", "x"],
        [*client, "-t", 1e9], [*client, "-n", 0], [*client, "-n", "1Q"],
        [*client, "-n", "99999999999999999999"], [*client, "-P", 0],
        [*client, "-P", 1000], [*client, "-l", 0], [*client, "-l", "17M"],
        [*client, "-l", ""], [*client, "-i", 0.01], [*client, "-i", 99999],
        [*client, "--connections", 0], [*client, "--connections", 1000000],
        [*client, "--connections", 4, "--active", 5], [*client, "--active", 5],
        [*client, "--connections", 4, "--active", 0],
        [*client, "--latency", "--short"], [*client, "-R", "--bidir"],
        [*client, "--latency", "-R"], [*client, "-n", "1M", "-t", 1],
        [*client, "--connections", 4, "-P", 2], [*client, "--settle", 1000],
        [*client, "--transport", "ib"], [*client, "--transport", "tcp,shm"],
        [*client, "--rounds", 0], [*client, "--rounds", 1000],
        [*client, "--report", "x", "--latency"], [*client, "--nonsense"],
        [*client, "--report", "x", "-i", 1],
        [*client, "-A", "x"], [*client, "-A", "-1"], [*client, "-A", "1,"],
        [*client, "-A", 8192], ["-s", "-A", "0,1"],
        [*client, "--transport", "verbs", "--connections", 257],
        ["-s", "-t", 5], ["-s", "-R"], ["-s", "--latency"], ["-s", "-l", "1K"],
        ["-s", "--transport", "shm"], ["-s", "--compare"], ["-s", "-P", 2],
        [*client, "-B", "127.0.0.1"], [*client, "-1"],
        [*client, "--rounds", 2], [*client, "--rate", 100],
        [*client, "--latency", "--rate", 0], [*client, "--latency", "--rate", "x"],
        [*client, "--connections", 4, "--active", 2, "--rate", 100],
        [*client, "--latency", "--transport", "verbs", "--rate", 100],
        ["-s", "--rate", 100],
    ):
        result = perf(*bad)
        failed(result, 2, "perf --help")
        check(result.stdout == "", bad, result)
    result = perf("--help")
    check(result.returncode == 0 and "--compare" in result.stdout, result)
    result = subprocess.run([TOOL, "perf-worker"], env=ENV, text=True, input="",
                            capture_output=True, timeout=LIMIT)
    check(result.returncode == 1, result)


def test_nobody_there():
    failed(perf("-c", "no.such.host.invalid"), 1, "no.such.host.invalid")
    failed(perf("-c", "127.0.0.1", "-p", free_port()), 1, "rcsock perf -s")
    with Server() as server:
        failed(perf("-s", "-p", server.port), 1, "in use")
    failed(perf("-s", "-p", free_port(), "-B", "192.0.2.1"), 1, "192.0.2.1")


def test_other_servers():
    def frame(body, length=None):
        return struct.pack(">I", len(body) if length is None else length) + body

    hello = MAGIC + struct.pack(">II", VERSION, 0)
    for answer, words in (
        (MAGIC + struct.pack(">II", VERSION + 1, 0),
         [f"version {VERSION + 1}", f"version {VERSION}"]),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ["protocol"]),
        (b"RCSK", ["protocol"]),
        (b"", ["protocol"]),
        (hello, ["gone away"]),
        (hello + frame(b"{}", 0xffffffff), ["makes no sense"]),
        (hello + frame(b"{}", 0), ["makes no sense"]),
        (hello + frame(b"[1, 2]"), ["makes no sense"]),
        (hello + frame(b"{" * 5000), ["makes no sense"]),
        (hello + frame(b'{"type": "ready", "port": 0}'), ["makes no sense"]),
        (hello + frame(b'{"type": "ready", "port": "x"}'), ["makes no sense"]),
        (hello + frame(b'{"type": "result", "side": {}}'), ["makes no sense"]),
        (hello + frame(b'{"type": "nonsense"}'), ["makes no sense"]),
        (hello + frame(b'{"type": "error", "message": "no\\u001b[2J\\nway"}'),
         ["no?[2J?way"]),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = subprocess.Popen(
                [TOOL, "perf", "-c", "127.0.0.1", "-p",
                 str(listener.getsockname()[1])], env=ENV, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(LIMIT)
                receive(peer, 16)
                if answer.startswith(hello):
                    peer.sendall(hello)
                    peer.recv(1)
                    peer.sendall(answer[len(hello):])
                else:
                    peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                out, err = process.communicate(timeout=LIMIT)
            failed(subprocess.CompletedProcess([], process.returncode, out, err),
                   1, *words)
    check(not ours(), ours())


def receive(s, size):
    """All of it: MSG_WAITALL does not wait in a socket with a time-out."""
    got = b""
    while len(got) < size:
        piece = s.recv(size - len(got))
        check(piece, "the connection ended after", len(got), "bytes")
        got += piece
    return got


def message(s, body):
    text = json.dumps(body).encode()
    s.sendall(struct.pack(">I", len(text)) + text)


def answer(s):
    size, = struct.unpack(">I", receive(s, 4))
    return json.loads(receive(s, size))


SPEC = {"mode": "messages", "transport": "tcp", "direction": "forward",
        "seconds": 1, "bytes": 0, "size": 64, "connections": 1, "active": 1, "rate": 0,
        "settle": 0, "traced": False, "client_cpu": None, "server_cpu": None,
        "gpu": None}


def test_other_clients():
    hello = MAGIC + struct.pack(">II", VERSION, 0)
    deep = b"[" * 900_000
    with Server() as server:
        for sent in (
            b"GET / HTTP/1.0\r\n\r\n", MAGIC + struct.pack(">II", 77, 0),
            hello + struct.pack(">I", 0xfffffff0) + b"x" * 70000,
            hello + struct.pack(">I", 1), hello + struct.pack(">I", 2) + b"[]",
            hello + struct.pack(">I", len(deep)) + deep,
        ):
            with server.connect(sent) as s:
                with contextlib.suppress(ConnectionResetError):
                    while s.recv(65536):
                        pass
        for spoilt in (
            {"size": 1 << 60}, {"connections": 10 ** 9}, {"transport": "../x"},
            {"rate": -1}, {"rate": 1e300}, {"seconds": "1"}, {"seconds": 1e300}, {"mode": None},
            {"server_cpu": -1}, {"server_cpu": 1 << 40}, {"client_cpu": "0"},
            {"transport": "verbs", "connections": 257, "active": 1},
        ):
            with server.connect() as s:
                receive(s, 16)
                message(s, {"type": "test", "token": "0" * 16,
                            "spec": {**SPEC, **spoilt}})
                check(answer(s)["type"] == "error", spoilt)
        # A data connection must know the token.
        with server.connect() as s:
            receive(s, 16)
            message(s, {"type": "test", "spec": SPEC, "token": "0" * 16})
            port = answer(s)["port"]
            with socket.create_connection(("127.0.0.1", port), LIMIT) as wrong:
                wrong.sendall(b"0" * 15 + b"1")
                check(wrong.recv(1) == b"", "a stranger was let in")
            with socket.create_connection(("127.0.0.1", port), LIMIT) as right:
                right.sendall(b"0" * 16 + b"g" + bytes(7) + b"y" * 64)
                got = receive(right, 72)
                check(got[8:] == b"y" * 64, got)
                right.shutdown(socket.SHUT_WR)
                check(right.recv(1) == b"")
            last = answer(s)
            check(last["type"] == "result", last)
        # One at a time.
        with server.connect() as s:
            receive(s, 16)
            failed(server.client("-t", 0.1), 1, "busy")
        on(server.json("--transport", "tcp", "-t", 0.1), "tcp")


def test_compare_with_intervals():
    compare = ("--compare", "--transport", "tcp,shm", "--rounds", 2, "-t", 0.5)
    with Server() as server:
        result = server.client(*compare, "-i", 0.1)
        check(result.returncode == 0, result)
        # Each run, with its lines behind it; then the table.
        runs, at = {}, None
        for line in result.stdout.splitlines():
            if line.startswith("round "):
                at = runs.setdefault(line, [])
            elif "   sent " in line:
                at.append(line)
            else:
                break
        check(list(runs) == [f"round {n} of 2: {name}"
                             for n in (1, 2) for name in ("tcp", "shm")], result)
        for lines in runs.values():
            check(len(lines) >= 2, result)
        check("vs tcp" in result.stdout, result)
        # Nothing asked, none; and none between the braces of JSON.
        result = server.client(*compare)
        check("round " not in result.stdout, result)
        result = server.client(*compare, "-J", "-i", 0.1)
        for row in json.loads(result.stdout)["compare"]:
            check(len(row["median"]["intervals"]) >= 2, row)
        result = server.client(*compare, "-J")
        for row in json.loads(result.stdout)["compare"]:
            check(row["median"]["intervals"] == [], row)


def started(server, *args):
    """A client that is in the middle of its measurement."""
    process = subprocess.Popen(
        [TOOL, "perf", "-c", "127.0.0.1", "-p", str(server.port), "-t", "50",
         "-i", "0.1", *args], env=ENV, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
    process.stdout.readline()
    check(" s " in process.stdout.readline(), "no interval")
    return process


def test_ends_that_go_away():
    def ended(process):
        out, err = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    for transport in "tcp", "shm":
        with Server() as server:
            client = started(server, "--transport", transport)
            server.process.kill()
            failed(ended(client), 1)
            server.process.wait(LIMIT)
        with Server() as server:
            client = started(server, "--transport", transport)
            workers = [pid for pid, line in ours().items()
                       if b"perf-worker" in line and
                       f"PPid:\t{server.process.pid}\n" in
                       pathlib.Path(f"/proc/{pid}/status").read_text()]
            check(len(workers) == 1, workers)
            os.kill(workers[0], signal.SIGKILL)
            failed(ended(client), 1, "killed")
            # The server goes on.
            client = started(server, "--transport", transport, "-R")
            client.kill()
            client.communicate()
            eventually(lambda: list(ours()) == [server.process.pid],
                       "left running after the client")
            client = started(server, "--transport", transport, "--latency")
            client.send_signal(signal.SIGINT)
            failed(ended(client), 130, "interrupted")
            eventually(lambda: list(ours()) == [server.process.pid],
                       "left running after Ctrl-C")
            on(server.json("--transport", transport, "-t", 0.1), transport)


def test_once():
    server = Server("-1", "-J")
    on(server.json("--transport", "tcp", "-t", 0.1), "tcp")
    check(server.process.wait(LIMIT) == 0)
    lines = [json.loads(line) for line in server.process.stdout]
    check(len(lines) == 1 and lines[0]["server"]["rx_bytes"] > 0, lines)
    server.process.communicate()


def main():
    bad = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        start = time.monotonic()
        try:
            test()
            print(f"ok {name} {time.monotonic() - start:.1f} s", flush=True)
        except (AssertionError, OSError, ValueError, KeyError,
                subprocess.TimeoutExpired) as error:
            bad += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
            for pid in ours():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
