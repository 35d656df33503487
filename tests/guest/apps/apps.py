"""Real programs under `rcsock run`, in a guest or between two.

    apps.py serve                         in the server's guest of a pair
    apps.py drive RCSOCK LANES NAME...    in the only guest, or the client's

Each case runs an unmodified server and its load tool, both under rcsock, checks
what the load tool says of itself, and which lane the bytes took.  LANES is
given to `rcsock run`; with tcp the same cases run, and nothing may leave TCP.

What the programs say must be right each time.  How much of it the lane carried
depends on the machine too: a guest that gets no CPU for seconds begins on TCP.  So
a case with a low share says so and runs again; it fails if none of its runs had at
least half of the bytes on the lane.
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import hosts
from hosts import STATS, Failed, Host, RemoteHost

LIMIT = 60
PORTS = "21000-21999"
GOOD_SHARE = 0.9
ENOUGH = 0.5  # of the best of the runs
TRIES = 3

NGINX = """\
daemon off;
worker_processes 2;
user root;
error_log @DIR@/nginx.log;
pid @DIR@/nginx.pid;
events { worker_connections 256; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  client_body_temp_path @DIR@/body;
  proxy_temp_path @DIR@/proxy;
  fastcgi_temp_path @DIR@/fastcgi;
  uwsgi_temp_path @DIR@/uwsgi;
  scgi_temp_path @DIR@/scgi;
  server {
    listen @ADDRESS@:@PORT@;
    root @DIR@/www;
  }
}
"""


class TcpCounter:
    """What goes over the programs' own TCP connections, whatever they say: the
    packets of this host from and to their ports."""

    def __init__(self, pair):
        self.pair = pair
        chains = ["output"] + (["input"] if pair else [])
        rules = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0;"
            f" tcp sport {PORTS} counter; tcp dport {PORTS} counter; }}\n"
            for hook in chains)
        self._nft("-f", "-", text=f"table inet apps {{\n{rules}}}\n")
        self.start = self._sum()

    @staticmethod
    def _nft(*words, text=None):
        done = subprocess.run(["nft", *words], input=text, text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            raise Failed(f"nft: {done.stderr.strip()}")
        return done.stdout

    def _sum(self):
        text = self._nft("list", "table", "inet", "apps")
        return sum(int(n) for n in re.findall(r"bytes (\d+)", text))

    def bytes(self):
        return self._sum() - self.start

    def close(self):
        self._nft("delete", "table", "inet", "apps")


class Session:
    """One case: its processes, and what they left."""

    def __init__(self, driver):
        self.driver = driver
        self.address = driver.address
        self.port = driver.next_port()
        self.env, self.server_env = dict(driver.env), dict(driver.env)
        self.left = []     # the files of processes under rcsock
        self.servers = []  # (key, signal)

    def under(self, words):
        words = [str(w) for w in words]
        return [self.driver.rcsock, "run", f"--lanes={self.driver.lanes}",
                f"--stats={STATS}/%p.json", "--", *words]

    def use_key(self):
        """Both ends get a key (RCSOCK_KEY_FILE), each in a file of its own."""
        text = "a key that both hosts have: " + 32 * "k"
        self.env["RCSOCK_KEY_FILE"] = self.driver.local.write("key", text)
        self.server_env["RCSOCK_KEY_FILE"] = self.driver.remote.write(
            "key", text)

    def serve(self, *words, how=signal.SIGTERM):
        key = self.driver.next_key()
        self.servers.append((key, None if how is None else int(how)))
        self.driver.remote.start(key, self.under(words), self.server_env,
                                 self.port, 20)

    def load(self, *words):
        out, _, files = self.driver.local.run(self.under(words), self.env,
                                              LIMIT)
        self.left.append(files)
        return out

    def stop(self):
        """Ends the servers as their users do."""
        while self.servers:
            key, how = self.servers.pop()
            end = self.driver.remote.finish(key, how, 15)
            self.left.append(end["files"])
            if end["status"] not in (0, -signal.SIGTERM):
                raise Failed(f"the server's status is {end['status']} (None: "
                             f"it did not end): {end['text']}")

    def abandon(self):
        """After a failure: what the servers wrote."""
        texts = []
        while self.servers:
            key, _ = self.servers.pop()
            texts.append(self.driver.remote.finish(key, None, 0)["text"])
        return " | ".join(t for t in texts if t)


def redis(s):
    s.serve("redis-server", "--port", s.port, "--bind", s.address,
            "--protected-mode", "no", "--save", "", "--appendonly", "no")
    requests = 10000
    text = s.load("redis-benchmark", "-h", s.address, "-p", s.port, "-t",
                  "set,get", "-c", 10, "-d", 500, "-n", requests, "--csv")
    rates = {row[0]: float(row[1]) for row in csv.reader(text.splitlines())
             if row and row[0] in ("SET", "GET")}
    if len(rates) != 2:
        raise Failed(f"redis-benchmark printed: {text}")
    # A value in many pieces comes back as it was.
    value = "".join(f"{i:07d} " for i in range(12500))
    s.load("sh", "-c", f"redis-cli -h {s.address} -p {s.port} -x set big "
           f"<{s.driver.local.write('value', value)}")
    back = s.load("redis-cli", "-h", s.address, "-p", s.port, "get", "big")
    if back.rstrip("\n") != value:
        raise Failed("redis: a value came back changed")
    s.stop()
    return f"SET {rates['SET']:.0f}/s, GET {rates['GET']:.0f}/s"


def memcached(s):
    s.serve("memcached", "-u", "root", "-l", s.address, "-p", s.port, "-U", 0,
            "-t", 2, "-m", 512)
    # It verifies a tenth of what it reads.
    text = s.load("memcaslap", "-s", f"{s.address}:{s.port}", "-T", 1, "-c", 4,
                  "-t", "5s", "-v", "0.1")
    found = re.search(r"TPS: (\d+)", text)
    wrong = re.search(r"(get_misses|verify_misses|verify_failed): [1-9]", text)
    if not found or int(found[1]) == 0 or wrong:
        raise Failed(f"memcaslap printed: {text}")
    s.stop()
    return f"{found[1]} requests/s"


def nginx(s):
    write = s.driver.remote.write
    page = write("www/page.txt", "all work and no play\n" * 1000)
    directory = os.path.dirname(os.path.dirname(page))
    config = NGINX.replace("@DIR@", directory)
    config = config.replace("@ADDRESS@", s.address)
    config = config.replace("@PORT@", str(s.port))
    s.serve("/usr/sbin/nginx", "-e", f"{directory}/nginx.log", "-c",
            write("nginx.conf", config), how=signal.SIGQUIT)
    text = s.load("wrk", "-t", 1, "-c", 8, "-d", "5s", "--timeout", "10s",
                  f"http://{s.address}:{s.port}/page.txt")
    found = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if (not found or float(found[1]) == 0 or "Non-2xx" in text or
            "Socket errors" in text):
        raise Failed(f"wrk printed: {text}")
    s.stop()
    return f"{found[1]} requests/s"


def iperf3(*options, bits, key=False):
    def run(s):
        if key:
            s.use_key()
        # One test, after which the server ends by itself.
        s.serve("iperf3", "-s", "-1", "-B", s.address, "-p", s.port, how=None)
        # Not as fast as TCP can: what goes over it before a stream has its lane
        # is to be little beside the rest.
        text = s.load("iperf3", "-c", s.address, "-p", s.port, "-t", 5, "-b",
                      bits, "-J", *options)
        end = json.loads(text)["end"]
        sent, received = end["sum_sent"], end["sum_received"]
        if received["bytes"] == 0 or received["bytes"] > sent["bytes"]:
            raise Failed(f"iperf3: {sent} {received}")
        s.stop()
        return f"{received['bits_per_second'] / 1e6:.0f} Mbit/s"

    return run


CASES = {
    "redis": redis,
    "memcached": memcached,
    "nginx": nginx,
    "iperf3": iperf3(bits="160M"),
    "iperf3-P4": iperf3("-P", 4, bits="40M"),
    # Without a key the end that connected has to prove itself by the last bytes
    # it has sent, and here it sends none.
    "iperf3-R": iperf3("-R", bits="160M", key=True),
}


class Driver:
    def __init__(self, rcsock, lanes):
        peer = os.environ.get("PEER_IP")
        self.rcsock, self.lanes = rcsock, lanes
        self.pair = bool(peer)
        self.in_guest = bool(os.environ.get("IN_GUEST"))
        self.local = Host()
        self.remote = RemoteHost(peer) if peer else self.local
        self.address = peer or os.environ["RDMA_IP"]
        self.env = {"RCSOCK_PROMOTE_OPS": "1", "RCSOCK_LOG": "1"}
        self.ports = iter(range(21000, 22000))
        self.keys = iter(range(10**9))

    def next_port(self):
        return next(self.ports)

    def next_key(self):
        return next(self.keys)

    def run(self, name):
        """One case; True if it did well."""
        best = 0.0
        for attempt in range(1 if self.lanes == "tcp" else TRIES):
            start = time.monotonic()
            try:
                says, share, moved = self.once(name)
            except Failed as failed:
                print(f"FAILED {name}: {failed}", flush=True)
                return False
            best = max(best, share)
            print(f"{name}: {says}; {share:.1%} of {sum(moved.values())} bytes "
                  f"over {self.lanes}; {time.monotonic() - start:.1f} s",
                  flush=True)
            if share >= (1 if self.lanes == "tcp" else GOOD_SHARE):
                return True
            print(f"NOTE {name}: LOW SHARE in run {attempt + 1}: {moved}",
                  flush=True)
        if best >= ENOUGH and self.lanes != "tcp":
            return True
        print(f"FAILED {name}: {best:.1%} over {self.lanes}", flush=True)
        return False

    def once(self, name):
        """What the programs say, the lane's share, and the bytes by lane."""
        session = Session(self)
        counter = TcpCounter(self.pair) if self.in_guest else None
        try:
            says = CASES[name](session)
            moved = hosts.lane_bytes(session.left)
            share = moved[self.lanes] / sum(moved.values())
            # Both ends count each byte.  Headers and acknowledgements are few
            # beside bulk, and a lane's frames beside what it carries.
            if counter and self.lanes != "tcp" and share > 0:
                in_truth = 1 - 2 * counter.bytes() / sum(moved.values())
                if in_truth <= 0:
                    raise Failed(f"the processes say {moved}, but their TCP "
                                 f"connections carried {counter.bytes()}")
                share = min(share, in_truth)
            return says, share, moved
        except (Failed, OSError, ValueError, KeyError,
                ZeroDivisionError) as error:
            raise Failed(
                f"{error or repr(error)} {session.abandon()}") from error
        finally:
            if counter:
                counter.close()


def main():
    if sys.argv[1:] == ["serve"]:
        hosts.serve()
        return 0
    driver = Driver(*sys.argv[2:4])
    return 0 if all([driver.run(name) for name in sys.argv[4:]]) else 1


if __name__ == "__main__":
    sys.exit(main())
