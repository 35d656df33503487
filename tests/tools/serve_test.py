#!/usr/bin/env python3
"""serve_test.py RCSOCK PRELOAD CHAT

`rcsock stat --serve`: the totals of programs, which do not change their labels when
processes come and go, and clients that want to harm it.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TOOL, PRELOAD, CHAT = (os.path.realpath(path) for path in sys.argv[1:4])
LINE = re.compile(r'^[a-z_]+\{([a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*)\} \d+$')


def check(good, *what):
    if not good:
        raise AssertionError(what)


class Server:
    """The tool, serving at a port that the kernel has chosen."""

    def __init__(self, *options):
        self.process = subprocess.Popen([TOOL, "stat", "--serve", "127.0.0.1:0", *options],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.search(r"http://127.0.0.1:(\d+)/metrics", line).group(1))

    def get(self, path="/metrics"):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30)

    def page(self):
        time.sleep(1.1)  # a page may be a second old
        answer = self.get()
        check("version=0.0.4" in answer.headers["Content-Type"], answer.headers)
        return answer.read().decode()

    def raw(self, request):
        """Returns what comes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as peer:
            peer.sendall(request)
            answer = b""
            try:
                while part := peer.recv(4096):
                    answer += part
            except ConnectionResetError:
                pass
            return answer

    def end(self):
        self.process.kill()
        self.process.wait()


class Chat:
    """A server and a client under rcsock."""

    def __init__(self):
        self.server = subprocess.Popen([TOOL, "run", "--", CHAT, "serve"], stdout=subprocess.PIPE, text=True)
        port = self.server.stdout.readline().strip()
        self.client = subprocess.Popen([TOOL, "run", "--", CHAT, "connect", port, "2"], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def rounds(self, count):
        self.client.stdin.write(f"{count}\n")
        self.client.stdin.flush()
        check(self.client.stdout.readline().strip() == "done")

    def end(self):
        self.client.stdin.close()
        self.client.wait()
        self.server.kill()
        self.server.wait()


def value(page, name, **labels):
    total = 0
    for line in page.splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += int(line.rsplit(" ", 1)[1])
    return total


def labels_of(page):
    return {line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")}


def test_totals():
    server = Server("--program", "chat")
    chat = Chat()
    chat.rounds(500)
    chat.rounds(500)
    first = server.page()
    for line in first.splitlines():
        check(line.startswith("#") or LINE.match(line), line)
    check("pid=" not in first, first)
    check(value(first, "rcsock_processes", program="chat", answer="yes") == 2, first)
    sent = value(first, "rcsock_sent_bytes_total", program="chat")
    check(sent == 4 * 100 * 1000, sent)  # 100 bytes each way, over two connections
    # Processes end, and others come: what was counted stays, and so do the labels.
    chat.end()
    second = server.page()
    check(value(second, "rcsock_processes", program="chat") == 0, second)
    check(value(second, "rcsock_sent_bytes_total", program="chat") == sent, second)
    chat = Chat()
    chat.rounds(500)
    third = server.page()
    check(value(third, "rcsock_sent_bytes_total", program="chat") == sent + 4 * 100 * 500, third)
    counters = [one for one in labels_of(first) if "_total{" in one]
    check(set(counters) <= labels_of(second) and set(counters) <= labels_of(third))
    chat.end()
    server.end()


def test_answers():
    server = Server()
    for path in ("/", "/metricsx", "/metrics/x"):
        try:
            server.get(path)
            check(False, path)
        except urllib.error.HTTPError as error:
            check(error.code == 404, path, error.code)
    check(server.get("/metrics?x=1").status == 200)
    check(server.raw(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
          .startswith(b"HTTP/1.1 405 "))
    check(server.raw(b"GET /metrics HTTP/1.0\r\n\r\n").count(b"HTTP/1.1 200") == 1)
    # What a proxy sends.
    for uri, status in ((b"http://a:1/metrics", b"200"), (b"http://a/metrics?x", b"200"),
                        (b"http://a/x", b"404"), (b"http://a", b"404"), (b"http:///metrics", b"200"),
                        (b"ftp://a/metrics", b"404"), (b"/http://a/metrics", b"404")):
        check(server.raw(b"GET " + uri + b" HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 " + status), uri)
    server.end()


def test_hostile():
    server = Server()
    for request in (b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50,
                    b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 1_000_000,
                    b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 100_000):
        try:
            answer = server.raw(request)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        check(b"200 OK" not in answer, request[:40])
        check(server.get().status == 200, request[:40])
    # Clients that say nothing, or never end, more than it serves at a time.
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    for peer in silent[::2]:
        peer.sendall(b"GET /met")
    check(server.get().status == 200)
    check(len(os.listdir(f"/proc/{server.process.pid}/fd")) < 60, "it holds them all")
    for peer in silent:
        peer.close()
    # A flood costs no look at the processes for each request.
    begin = cpu(server.process.pid)
    threads = [threading.Thread(target=lambda: [server.get().read() for _ in range(25)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(server.process.poll() is None, "it has ended")
    print("200 requests took", cpu(server.process.pid) - begin, "s of CPU time")
    server.end()


def cpu(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")


def test_patience():
    server = Server()
    begin = time.monotonic()
    check(server.raw(b"GET /metrics HTTP/1.1\r\n") == b"", "a request that does not end")
    check(5 < time.monotonic() - begin < 25, time.monotonic() - begin)
    server.end()


def test_wrong():
    for address, status in (("nonsense", 2), ("127.0.0.1:99999", 2), ("127.0.0.1:-1", 2), ("1:2:", 2), ("192.0.2.1:9", 1)):
        result = subprocess.run([TOOL, "stat", "--serve", address], capture_output=True, text=True, timeout=60,
                                check=False)
        check(result.returncode == status and result.stderr.count("\n") == 1, address, result)
    result = subprocess.run([TOOL, "stat", "--serve", "0", "--json"], capture_output=True, text=True, timeout=60,
                            check=False)
    check(result.returncode == 2, result)


def main():
    os.environ.update(RCSOCK_PRELOAD=PRELOAD, RCSOCK_PROMOTE_OPS="1", XDG_CONFIG_HOME=tempfile.mkdtemp())
    os.environ.pop("LD_PRELOAD", None)
    for test in (test_totals, test_answers, test_hostile, test_patience, test_wrong):
        test()
        print(test.__name__, "ok")


main()
