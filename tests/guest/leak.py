"""usage: leak.py SHIM SECONDS, in a guest

A server and a client live through connections that end in every way, many
times, and have at the end what they had at the beginning: queue pairs,
completion queues, memory regions, ids and the rest as the kernel counts them for
each process, descriptors, and memory.  Their peers are each other, and ends that
are killed, have another key or no rcsock, or ask for what makes no sense.
Prints what came of it.
"""

import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

KINDS = "qp", "cm_id", "mr", "cq", "pd", "srq", "ctx"
BATCH = 12  # connections at one time
SETTLES = 60  # seconds: a safety net
# Of receives, one region each: what the 16 lanes that share a queue need.
PAGES = 14 if os.environ.get("RDMA_DEV", "").startswith("siw") else 0
MORE = 2048  # KiB of memory: what one round leaves for the next differs so
RESET = struct.pack("ii", 1, 0)
ASKS = {"half": b"s", "theirs": b"c", "their_reset": b"r"}


# --- The ends


def talk(connection, size, times=1):
    """A message there and back; false at the end of it."""
    message = bytes(size)
    for _ in range(times):
        connection.sendall(message)
        left = size
        while left > 0:
            got = connection.recv(left)
            if not got:
                return False
            left -= len(got)
    return True


def segments(connection):
    """What the kernel's TCP has sent."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return struct.unpack_from("I", info, 136)[0]


def warm(connection):
    """True once TCP is silent."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        before = segments(connection)
        if not talk(connection, 32):
            return False
        if segments(connection) == before:
            return True
    return False


def serve(port):
    """Echoes, and closes (c), resets (r) or shuts down for writing (s) where a
    message begins so."""
    listener = socket.create_server(("", port), backlog=512)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    ends = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                end, _ = listener.accept()
                ends[end.fileno()] = end
                poll.register(end, select.EPOLLIN)
                continue
            end = ends[number]
            try:
                data = end.recv(65536)
                how = data[:1]
                if how == b"r":
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                elif how == b"s":
                    end.shutdown(socket.SHUT_WR)
                    continue
                elif how != b"c" and data:
                    end.sendall(data)
                    continue
            except OSError:
                pass
            poll.unregister(number)
            ends.pop(number).close()


def drain(connection):
    while connection.recv(65536):
        pass


def finish(connection, how, size):
    if how in ("unread", "reset"):
        connection.sendall(bytes(size))
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    elif how in ASKS:
        connection.sendall(ASKS[how] + bytes(31))
        if how == "half":
            connection.shutdown(socket.SHUT_WR)
        drain(connection)
    connection.close()


def client(address):
    """Does what stdin says, a line for each: PORT HOW STAGE SIZE; says how many
    were on a lane."""
    for line in sys.stdin:
        port, how, stage, size = line.split()
        size = int(size)
        lanes = 0
        all_ends = [socket.create_connection((address, int(port)))
                    for _ in range(BATCH)]
        for i, end in enumerate(all_ends):
            try:
                if stage == "lane":
                    lanes += warm(end)
                elif stage == "never":  # it looks, and is refused
                    talk(end, 32, 300)
                else:  # somewhere on its way there
                    talk(end, 32, (i + int(stage)) % 24)
                if how == "waits":
                    talk(end, size)
            except OSError:
                pass
        if how == "waits":
            print(lanes, flush=True)
            sys.stdin.readline()  # until the peer has been killed
        for end in all_ends:
            try:
                if how == "waits":
                    drain(end)
                    end.close()
                else:
                    finish(end, how, size)
            except OSError:
                end.close()
        all_ends.clear()
        print(lanes, flush=True)


# --- What is counted


def resources(process):
    """Of this process, as the kernel counts them: by the thread that made them."""
    found = {}
    threads = {int(one) for one in os.listdir(f"/proc/{process.pid}/task")}
    for kind in KINDS:
        out = subprocess.run(["rdma", "-j", "res", "show", kind],
                             capture_output=True, text=True, check=True).stdout
        found[kind] = sum(one.get("pid") in threads
                          for one in json.loads(out or "[]"))
    return found


def descriptors(process):
    names = []
    for number in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            name = os.readlink(f"/proc/{process.pid}/fd/{number}")
        except OSError:
            continue
        names.append(name.split(":[")[0])
    return {name: names.count(name) for name in sorted(set(names))}


def memory(process):
    """KiB"""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon"):
                return int(line.split()[1])
    return 0


# --- What is no peer of rcsock's: REQs that say nothing, or anything


class Parameters(ctypes.Structure):  # rdma_conn_param
    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_uint8),
                ("resources", ctypes.c_uint8), ("depth", ctypes.c_uint8),
                ("flow", ctypes.c_uint8), ("retries", ctypes.c_uint8),
                ("rnr", ctypes.c_uint8), ("srq", ctypes.c_uint8),
                ("qp", ctypes.c_uint32)]


def forge(address, port, count):
    """REQs to PORT at ADDRESS with private data of no meaning; says how many
    were refused."""
    cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    to = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + \
        socket.inet_aton(address) + bytes(8)
    # ibv_qp_init_attr: context, CQs, SRQ; 1 and 1 requests of 1 piece; RC
    queues = struct.pack("=4Q5I2i4x", 0, 0, 0, 0, 1, 1, 1, 1, 0, 2, 0)
    refused = 0
    for i in range(count):
        end = ctypes.c_void_p()
        attributes = ctypes.create_string_buffer(queues)  # it writes there
        length = i * 7 % 57  # what rdma_cm leaves of a REQ's
        data = os.urandom(length) if i % 3 else (b"rcsk\1" * 20)[:length]
        parameters = Parameters(data=data, length=length, resources=1, depth=1,
                                retries=6, rnr=7)
        # (No channel: each waits for its event.)
        for call, *arguments in (
                (cm.rdma_create_id, None, ctypes.byref(end), None, 0x106),
                (cm.rdma_resolve_addr, end, None, to, 5000),
                (cm.rdma_resolve_route, end, 5000),
                (cm.rdma_create_qp, end, None, attributes)):
            if call(*arguments) != 0:
                sys.exit(f"{call.__name__}: "
                         f"{os.strerror(ctypes.get_errno())}")
        refused += cm.rdma_connect(end, ctypes.byref(parameters)) != 0
        cm.rdma_destroy_qp(end)
        cm.rdma_destroy_id(end)
    print(refused, flush=True)


# --- All of it


class Run:
    def __init__(self, shim, directory):
        self.address = os.environ["RDMA_IP"]
        self.iwarp = os.environ["RDMA_DEV"].startswith("siw")
        self.environment = dict(os.environ, RCSOCK_LANES="rdma",
                                RCSOCK_PROMOTE_OPS="1", RCSOCK_LOG="1")
        self.shim = shim
        self.directory = directory
        for name in "key", "other":
            with open(f"{directory}/{name}", "w", encoding="ascii") as key:
                key.write(f"{name}: a key that is long enough for that")
        self.server = self.start("key", "serve", "7001")
        self.other = self.start("other", "serve", "7002")
        self.plain = self.start(None, "serve", "7003")
        self.client = self.start("key", "client", self.address)
        self.connections = 0
        self.lanes = 0
        self.ways = {}

    def start(self, key, *words, **more):
        environment = dict(self.environment)
        if key is not None:
            environment |= {"LD_PRELOAD": self.shim,
                            "RCSOCK_KEY_FILE": f"{self.directory}/{key}"}
        with open(f"{self.directory}/log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, "--as", *words],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, **more)
        if words[0] == "serve":
            subprocess.run(["guestctl", "listening", words[1]], check=True)
        return process

    def count(self, name, lanes):
        self.connections += BATCH
        self.lanes += lanes
        way = self.ways.setdefault(name, [0, 0])
        way[0] += BATCH
        way[1] += lanes

    def say(self, process, *words):
        process.stdin.write(" ".join(map(str, words)) + "\n")
        process.stdin.flush()

    def hear(self, process):
        line = process.stdout.readline()
        assert line, f"{process.args} has ended: {process.wait()}"
        return int(line)

    def batch(self, port, how, stage, size):
        self.say(self.client, port, how, stage, size)
        self.count(f"{how} {stage if stage.isalpha() else 'on its way'}"
                   f" {'' if port == 7001 else port}".strip(),
                   self.hear(self.client))

    def killed_client(self, size):
        """kill -9 of a client, of which the server hears."""
        one = self.start("key", "client", self.address)
        self.say(one, 7001, "waits", "lane", size)
        self.count("kill -9 of the client", self.hear(one))
        one.kill()
        one.communicate()

    def killed_server(self, size):
        """... and of a server."""
        one = self.start("key", "serve", "7004")
        self.say(self.client, 7004, "waits", "lane", size)
        self.count("kill -9 of the server", self.hear(self.client))
        one.kill()
        one.communicate()
        self.say(self.client, "")
        self.hear(self.client)

    def forged(self):
        port = 18591 if self.iwarp else 7001
        done = subprocess.run(
            [sys.executable, __file__, "--as", "forge", self.address,
             str(port), "8"], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and int(done.stdout) == 8, done
        self.ways.setdefault("forged", [0, 0])[0] += 8

    def round(self, i):
        size = 32, 3000, 60000
        for at, how in enumerate(("close", "unread", "reset", "half",
                                  "theirs", "their_reset")):
            self.batch(7001, how, "lane", size[(i + at) % 3])
            self.batch(7001, how, str((3 * i + at) % 24), size[(i + at) % 3])
        self.forged()
        self.killed_client(size[i % 3])
        self.killed_server(size[i % 3])
        if i % 4 == 0:
            self.batch(7002, "close", "never", 32)
            self.batch(7003, "close", "never", 32)

    def lives(self):
        return {"server": self.server, "another key's": self.other,
                "client": self.client}

    def state(self):
        return {name: {"rdma": resources(one), "fds": descriptors(one)}
                for name, one in self.lives().items()}

    def settled(self, wanted=None):
        """Once nothing has changed for a while, or it is as wanted."""
        last = self.state()
        since = time.monotonic()
        end = since + SETTLES
        while last != wanted and time.monotonic() < end:
            if time.monotonic() > since + (12 if wanted is None else 20):
                break
            time.sleep(0.5)
            now = self.state()
            if now != last:
                since, last = time.monotonic(), now
        return last


def more(now, before):
    """Whether it has more, but for what it keeps: a completion queue and what
    belongs to it (a channel and an epoll set) are made where a bell of the
    process first needs them, and on iWARP a queue's receives where it first has
    so many lanes."""
    def most(kind, name, allowed):
        had = before[kind].get(name, 0) + allowed
        queues = now["rdma"]["cq"] if name == "mr" else 0
        return max(had, PAGES * queues)

    return any(count > most(kind, name, allowed)
               for kind, allowed in (("rdma", 2), ("fds", 4))
               for name, count in now[kind].items())


def test(run, seconds):
    """How much is left."""
    for i in range(2):
        run.round(4 * i)
    first = run.settled()
    run.ways.clear()
    run.connections = run.lanes = 0
    kib = {name: [] for name in run.lives()}
    rounds = 0
    end = time.monotonic() + seconds
    while rounds < 2 or time.monotonic() < end:
        run.round(rounds)
        rounds += 1
        for name, one in run.lives().items():
            kib[name].append(memory(one))
    last = run.settled(first)
    print(f"{rounds} rounds, {run.connections} connections; {run.lanes} were "
          "on a lane when they ended")
    for name, (count, lanes) in run.ways.items():
        print(f"  {name}: {count}, {lanes} on a lane")
    failed = 0
    for name, had in first.items():
        print(f"{name}: {had['rdma']}, {sum(had['fds'].values())} descriptors; "
              f"KiB after each round: {kib[name]}")
        if more(last[name], had):
            print(f"LEFT: {last[name]}\nnot   {had}")
            failed += 1
        half = rounds // 2
        if min(kib[name][half:]) > min(kib[name][:half]) + MORE:
            print("LEFT: memory")
            failed += 1
    return failed


def main():
    with tempfile.TemporaryDirectory() as directory:
        run = Run(sys.argv[1], directory)
        try:
            failed = test(run, float(sys.argv[2]))
            for one in *run.lives().values(), run.plain:
                assert one.poll() is None, one.args
        except (AssertionError, OSError, ValueError):
            with open(f"{directory}/log", encoding="ascii") as log:
                print("".join(log.readlines()[-40:]))
            raise
        for one in *run.lives().values(), run.plain:
            one.kill()
            one.communicate()
    sys.exit(failed != 0)


if __name__ == "__main__":
    if sys.argv[1] != "--as":
        main()
    elif sys.argv[2] == "serve":
        serve(int(sys.argv[3]))
    elif sys.argv[2] == "client":
        client(sys.argv[3])
    else:
        forge(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
