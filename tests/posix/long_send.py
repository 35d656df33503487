#!/usr/bin/env python3
"""long_send.py ADDRESS: one blocking send of many bytes, at both ends under test.

Prints what both ends saw, which is the same plain and on a lane: all bytes, what a
handler leaves of a call, and what a reset in the middle of one does.
"""

import hashlib
import os
import signal
import socket
import struct
import sys
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


def receive(server, into, pace=0.0):
    while part := server.recv(1 << 20):
        into.append(part)
        if pace:
            time.sleep(pace)


def whole():
    """All bytes come, in order, from one call of each kind."""
    for name, call in (("send", lambda s, b: s.send(b)), ("write", lambda s, b: os.write(s.fileno(), b)),
                       ("send, no signal", lambda s, b: s.send(b, socket.MSG_NOSIGNAL))):
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


def main():
    for test in (whole, handler, limit, reset):
        test()
        sys.stdout.flush()


main()
