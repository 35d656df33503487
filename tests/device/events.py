#!/usr/bin/env python3
"""usage: with_device ... events.py SHIM SOAK EVENT...

Checked traffic under SHIM on eight connections, in two processes, while the
device of one of them fails in the ways that EVENTs say, one after another:
first each at the client, then each at the server.  After each, the traffic must
go on, over TCP or on new lanes, and all must have lanes again.  No byte may be
lost."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

CONNECTIONS = 8
# A safety net, for a machine that does much else.
PATIENCE = 120
# What each one's device does, and whether its lanes end.
EVENTS = {
    "qp_fatal": (["qp_fatal"], True),
    "qp_err": (["qp_err"], True),
    "port": (["port_err", "port_active"], True),
    "gid_change": (["gid_change"], False),
    "addr_change": (["addr_change"], True),
    "device_fatal": (["device_fatal"], True),
    "removal": (["removal", "back"], True),
    "unreachable": (["unreachable", "qp_err", "reachable"], True),
    "lose_event": (["lose_event"], True),
}


class Failed(Exception):
    pass


class End:
    def __init__(self, work, name, shim, words):
        self.log = os.path.join(work, name + ".log")
        key = os.path.join(work, "key")
        with open(key, "w") as file:
            file.write("a key that both ends have: " + "0" * 32)
        os.chmod(key, 0o600)
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, env=dict(
                os.environ, LD_PRELOAD=shim, RCSOCK_LANES="rdma",
                RCSOCK_KEY_FILE=key, RCSOCK_PROMOTE_OPS="1",
                RCSOCK_LOG="1", RCSOCK_LOG_FILE=self.log))

    def count(self, words):
        with contextlib.suppress(OSError), open(self.log) as file:
            return len(re.findall(words, file.read()))
        return 0

    def left(self):
        return self.count("left its lane")

    def on_lanes(self):
        return self.count("promoted to rdma") - self.left()

    def tell(self, word):
        name = (f"\0rcsock-fake/{os.environ['FAKE_DEVICE_SPACE']}/control/"
                f"{self.process.pid}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto(word.encode(), name)


class Run:
    def __init__(self, work, shim, soak):
        self.report = os.path.join(work, "report")
        self.stop = os.path.join(work, "stop")
        self.server = End(work, "server", shim, [
            soak, "server", "7700", "--connections", str(CONNECTIONS)])
        address = os.environ["RDMA_IP"]
        self.until("the server listens", lambda: can_connect(address, 7700))
        # (That was one of the server's connections.)
        self.client = End(work, "client", shim, [
            soak, "client", address, "7700", "--connections",
            str(CONNECTIONS), "--message", "20000", "--bytes", "400000",
            "--report", self.report, "--stop", self.stop])

    def bytes(self):
        with contextlib.suppress(OSError, ValueError, IndexError), \
                open(self.report) as file:
            return int(file.read().split()[1])
        return 0

    def until(self, what, true):
        start = time.monotonic()
        while not true():
            if time.monotonic() - start > PATIENCE:
                raise Failed(f"never: {what}")
            if self.server.process.poll() is not None:
                raise Failed(f"the server has ended before {what}")
            time.sleep(0.05)

    def moves(self, what, least=2_000_000):
        start = self.bytes()
        self.until(f"traffic {what}", lambda: self.bytes() > start + least)

    def lanes(self, what):
        self.until(f"all on lanes {what}",
                   lambda: self.client.on_lanes() >= CONNECTIONS)

    def event(self, end, name):
        words, ends = EVENTS[name]
        self.lanes(f"before {name}")
        self.moves(f"before {name}")
        left = self.client.left()
        for word in words:
            end.tell(word)
            if word == "removal":
                self.moves("without a device")
        if ends:
            self.until(f"the lanes end at {name}",
                       lambda: self.client.left() > left)
        self.moves(f"after {name}")
        if not ends and self.client.left() != left:
            raise Failed(f"a lane has ended at {name}")

    def end(self):
        self.lanes("in the end")
        with open(self.stop, "w"):
            pass
        try:
            status = self.client.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed("the client hangs") from None
        if status != 0:
            raise Failed(f"the client's status: {status}")


def can_connect(address, port):
    with contextlib.suppress(OSError), \
            socket.create_connection((address, port), 1):
        return True
    return False


def main():
    shim, soak = map(os.path.abspath, sys.argv[1:3])
    work = tempfile.mkdtemp()
    run = None
    try:
        run = Run(work, shim, soak)
        for end in run.client, run.server:
            for name in sys.argv[3:]:
                start = time.monotonic()
                run.event(end, name)
                print(f"{name} at the {'client' if end is run.client else 'server'}: "
                      f"{time.monotonic() - start:.1f} s", flush=True)
        run.end()
        print(f"{run.bytes()} bytes, {run.client.left()} lanes have ended")
        return 0
    except Failed as error:
        print(f"FAILED: {error}")
        if run is not None:
            for end in run.client, run.server:
                with contextlib.suppress(OSError), open(end.log) as file:
                    print(end.log, *file.readlines()[-30:], sep="\n  ")
        return 1
    finally:
        for end in (run.client, run.server) if run is not None else ():
            if end.process.poll() is None:
                end.process.kill()
            end.process.wait()
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
