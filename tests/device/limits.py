#!/usr/bin/env python3
"""usage: with_device ... limits.py SHIM SOAK LANES REASON

Checked traffic under SHIM between two processes on a device that has objects
for LANES lanes in each of them, and for no more: on twice as many connections.
No byte may be lost, LANES of them must have lanes, and the others must say
REASON.  Once these connections have ended, new ones must have the lanes.

LANES may be `some`: of eight connections one has a lane or more, as where lanes
take objects from each other later.  Either end may be out of objects first, and
the other end says then that its peer refused.  So one end must say REASON."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

# A safety net, for a machine that does much else.
PATIENCE = 120
PORT = "7700"


class Failed(Exception):
    pass


def start(work, name, shim, words):
    key = os.path.join(work, "key")
    if not os.path.exists(key):
        with open(key, "w") as file:
            file.write("a key that both ends have: " + "0" * 32)
        os.chmod(key, 0o600)
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, env=dict(
        os.environ, LD_PRELOAD=shim, RCSOCK_LANES="rdma", RCSOCK_KEY_FILE=key,
        RCSOCK_PROMOTE_OPS="1", RCSOCK_STATS=os.path.join(work, name),
        RCSOCK_LOG="1", RCSOCK_LOG_FILE=os.path.join(work, name + ".log")))


def can_connect(address):
    with contextlib.suppress(OSError), \
            socket.create_connection((address, int(PORT)), 1):
        return True
    return False


def read_bytes(report):
    with contextlib.suppress(OSError, ValueError, IndexError), \
            open(report) as file:
        return int(file.read().split()[1])
    return 0


def count_lanes(log):
    """How many descriptors are on lanes.  A lane may end before its stream
    goes over to it."""
    on = set()
    with contextlib.suppress(OSError), open(log) as file:
        for fd, what in re.findall(
                r"fd (\d+): (promoted to rdma|left its lane)", file.read()):
            if what == "promoted to rdma":
                on.add(fd)
            else:
                on.discard(fd)
    return len(on)


def run_client(work, name, shim, soak, lanes, good, some):
    """Traffic until `lanes` of twice so many connections have theirs, or
    `some`.  The others must say one of `good`.  Returns what they say."""
    enough = range(1, 2 * lanes) if some else [lanes]
    path = os.path.join(work, name)
    client = start(work, name, shim, [
        soak, "client", os.environ["RDMA_IP"], PORT, "--connections",
        str(2 * lanes), "--message", "20000", "--bytes", "400000", "--report",
        path + ".report", "--stop", path + ".stop"])
    try:
        until = time.monotonic() + PATIENCE
        so_far = 0
        for what in "lanes", "bytes behind that":
            while (count_lanes(path + ".log") not in enough
                   if what == "lanes" else
                   read_bytes(path + ".report") < so_far + 10_000_000):
                if client.poll() is not None:
                    raise Failed(f"{name}: status {client.returncode}")
                if time.monotonic() > until:
                    raise Failed(f"{name}: {count_lanes(path + '.log')} lanes, "
                                 f"no {what}")
                time.sleep(0.05)
            so_far = read_bytes(path + ".report")
        with open(path + ".stop", "w"):
            pass
        if client.wait(PATIENCE) != 0:
            raise Failed(f"{name}: status {client.returncode}")
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    with open(path) as file:
        said = json.load(file)
    print(f"{name}: {said['promoted']} of {2 * lanes} promoted, "
          f"{said['reasons']}", flush=True)
    if said["promoted"] not in enough:
        raise Failed(f"{name}: not {lanes} lanes")
    if said["failovers"] != 0 or said["lost_bytes"] != 0:
        raise Failed(f"{name}: a lane has failed: {said}")
    told = set(said["reasons"])
    if not some and not told <= set(good):
        raise Failed(f"{name}: not all of the others say {good}")
    return told


def main():
    shim, soak = map(os.path.abspath, sys.argv[1:3])
    some, reason = sys.argv[3] == "some", sys.argv[4]
    lanes = 4 if some else int(sys.argv[3])
    work = tempfile.mkdtemp()
    server = None
    try:
        # One connection of the server's is the look whether it listens.
        server = start(work, "server", shim, [
            soak, "server", PORT, "--connections", str(1 + 4 * lanes)])
        until = time.monotonic() + PATIENCE
        while not can_connect(os.environ["RDMA_IP"]):
            if time.monotonic() > until:
                raise Failed("nobody listens")
            time.sleep(0.05)
        told = run_client(work, "first", shim, soak, lanes, [reason], some)
        # The server's lanes of the first are about to end, so it may refuse.
        told |= run_client(work, "second", shim, soak, lanes,
                           [reason, "peer_refused"], some)
        if server.wait(PATIENCE) != 0:
            raise Failed(f"the server's status: {server.returncode}")
        with open(os.path.join(work, "server")) as file:
            told |= set(json.load(file)["reasons"])
        if reason not in told:
            raise Failed(f"no end says {reason}: {told}")
        return 0
    except Failed as error:
        print(f"FAILED: {error}")
        return 1
    finally:
        if server is not None and server.poll() is None:
            server.kill()
            server.wait()
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
