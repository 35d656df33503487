"""A server that echoes, and a client that checks every byte of what comes back.

usage: talk.py serve ADDRESS PORT
       talk.py call ADDRESS PORT CONNECTIONS ROUNDS PAUSE WORD [SOURCE_PORT]
"""

import os
import select
import signal
import socket
import sys
import threading
import time


def serve(address, port):
    # The first process of a PID namespace has no default for this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=512,
                                    dualstack_ipv6=family == socket.AF_INET6)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
    finally:
        connection.close()


def exchange(connection, text):
    connection.sendall(text)
    got = b""
    while len(got) < len(text):
        if not select.select([connection], [], [], 20)[0]:
            raise SystemExit("no answer for 20 s")
        part = connection.recv(len(text) - len(got))
        if not part:
            raise SystemExit("the connection ended")
        got += part
    if got != text:
        raise SystemExit(f"sent {text!r}, got {got!r}")


def call(address, port, count, rounds, pause, word, source=0):
    connections = []
    for _ in range(count):
        one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if source:
            one.bind(("", source))
        one.settimeout(20)
        one.connect((address, port))
        if one.getpeername()[:2] != (address, port):
            raise SystemExit(f"called {address}, is with {one.getpeername()}")
        one.settimeout(None)
        connections.append(one)
    for turn in range(rounds):
        for number, one in enumerate(connections):
            exchange(one, f"{word} {number} {turn};".encode() * (1 + turn % 7))
        time.sleep(pause)
    print("right", flush=True)
    if os.environ.get("TALK_STAY"):
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        call(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]),
             float(sys.argv[6]), sys.argv[7],
             int(sys.argv[8]) if len(sys.argv) > 8 else 0)
