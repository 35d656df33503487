#!/usr/bin/env python3
"""long_send.py ADDRESS: one blocking send of many bytes, at both ends under test.

Prints what both ends saw, which is the same plain and on a lane: all bytes, what a
handler leaves of a call, and what a reset in the middle of one does.
"""

import ctypes
import fcntl
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

MANY = 48 << 20


def pair():
    listener = socket.create_server((sys.argv[1], 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    return client, server


def content(size, seed):
    return hashlib.shake_128(seed).digest(1 << 20) * (size >> 20)


def pieces(data, count):
    """Pieces of unlike lengths, of which the first and a later one are empty."""
    data = memoryview(data)
    ends = [len(data) * i * i // (count * count) for i in range(count + 1)]
    cut = [data[a:b] for a, b in zip(ends, ends[1:])]
    return [data[:0]] + cut[:3] + [data[:0]] + cut[3:]


def receive(server, into, pace=0.0):
    while part := server.recv(1 << 20):
        into.append(part)
        if pace:
            time.sleep(pace)


def whole():
    """All bytes come, in order, from one call of each kind."""
    for name, call in (("send", lambda s, b: s.send(b)), ("write", lambda s, b: os.write(s.fileno(), b)),
                       ("send, no signal", lambda s, b: s.send(b, socket.MSG_NOSIGNAL)),
                       ("writev", lambda s, b: os.writev(s.fileno(), pieces(b, 7))),
                       ("sendmsg", lambda s, b: s.sendmsg(pieces(b, 40))),
                       ("sendmsg of many pieces", lambda s, b: s.sendmsg(pieces(b, 300)))):
        client, server = pair()
        data = content(MANY, name.encode())
        got = []
        reader = threading.Thread(target=receive, args=(server, got, 0.001))
        reader.start()
        sent = call(client, data)
        client.close()
        reader.join()
        server.close()
        print(name, sent == MANY, hashlib.sha256(b"".join(got)).digest() == hashlib.sha256(data).digest())


def handler():
    """A handler ends a call that has sent a part, whatever its flags."""
    client, server = pair()
    ran = []
    signal.signal(signal.SIGALRM, lambda *_: ran.append(1))
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    sent = os.write(client.fileno(), content(MANY, b"handler"))
    print("handler", len(ran), 0 < sent < MANY)
    got = []
    reader = threading.Thread(target=receive, args=(server, got))
    client.close()
    reader.start()
    reader.join()
    print("as many came", len(b"".join(got)) == sent)


def limit():
    """So does the socket's time."""
    client, _server = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300_000))
    begin = time.monotonic()
    sent = os.write(client.fileno(), content(MANY, b"limit"))
    print("limit", 0 < sent < MANY, time.monotonic() - begin < 10)


def reset():
    """A reset in the middle leaves its error to the next call, and is no SIGPIPE."""
    client, server = pair()
    signal.signal(signal.SIGPIPE, lambda *_: print("SIGPIPE"))

    def end():
        server.recv(1 << 16)
        time.sleep(0.3)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()

    ender = threading.Thread(target=end)
    ender.start()
    sent = os.write(client.fileno(), content(MANY, b"reset"))
    ender.join()
    print("reset", 0 < sent < MANY)
    try:
        os.write(client.fileno(), b"more")
    except OSError as error:
        print("then", type(error).__name__)


def plain_peer(pace):
    """A connection with a process that is not under test, and reads 1 MiB each `pace`
    seconds."""
    environment = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    process = subprocess.Popen([sys.executable, "-c", READS, sys.argv[1], str(pace)],
                               env=environment, stdout=subprocess.PIPE, text=True)
    client = socket.create_connection((sys.argv[1], int(process.stdout.readline())))
    return client, process


READS = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
while peer.recv(1 << 20, socket.MSG_WAITALL):
    time.sleep(float(sys.argv[2]))
"""


def end(client, process):
    client.close()
    process.wait()
    process.stdout.close()


def bad_piece():
    """What the kernel refuses before it takes a byte: nothing is sent."""
    client, server = pair()
    libc = ctypes.CDLL(None, use_errno=True)
    good = ctypes.create_string_buffer(1 << 20)
    vector = (ctypes.c_void_p * 4)(ctypes.addressof(good), len(good), 0xffff800000000000, len(good))
    sent = libc.writev(client.fileno(), vector, 2)
    print("bad piece", sent, os.strerror(ctypes.get_errno()))
    client.close()
    print("nothing came", server.recv(1) == b"")
    server.close()


def child_changes_the_flag():
    """O_NONBLOCK that another process has set, where no call tells of it."""
    client, server = pair()
    child = os.fork()
    if child == 0:
        os.set_blocking(client.fileno(), False)
        os._exit(0)
    os.waitpid(child, 0)
    begin, cpu = time.monotonic(), time.process_time()
    sent = os.write(client.fileno(), content(MANY, b"flag"))
    print("nonblocking by a child", 0 < sent < MANY, time.monotonic() - begin < 20,
          time.process_time() - cpu < 10)
    server.close()


def handlers_with_room():
    """Handlers do not cut a call for which there is room."""
    client, process = plain_peer(0)
    try:
        client.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 16 << 20)
    except PermissionError:
        print("SKIPPED: handlers with room: no large buffer may be had")
        return end(client, process)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    data = content(2 << 20, b"room")
    short = 0
    for _ in range(100):
        while struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, b"    "))[0] != 0:
            time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        short += os.write(client.fileno(), data) != len(data)
        signal.setitimer(signal.ITIMER_REAL, 0)
    print("handlers with room", short)
    return end(client, process)


def zero_copy_before():
    """A report of MSG_ZEROCOPY that nobody reads keeps no later call awake."""
    client, process = plain_peer(0.02)
    client.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    client.send(bytes(60000), MSG_ZEROCOPY)
    time.sleep(0.3)
    data = content(MANY, b"zerocopy")
    begin, cpu = time.monotonic(), time.process_time()
    sent = os.write(client.fileno(), data)
    used = (time.process_time() - cpu) / (time.monotonic() - begin)
    print("zero copy before", sent == MANY, used < 0.6)
    end(client, process)


SO_SNDBUFFORCE, SO_ZEROCOPY, MSG_ZEROCOPY = 32, 60, 0x4000000


def main():
    for test in (whole, handler, limit, reset, bad_piece, child_changes_the_flag,
                 zero_copy_before, handlers_with_room):
        test()
        sys.stdout.flush()


main()
