"""What the Python apps do: python_work.py http|asyncio|multiprocessing ADDRESS
PORT.  Prints what was seen."""

import asyncio
import hashlib
import http.client
import http.server
import multiprocessing
import multiprocessing.connection
import multiprocessing.managers
import os
import sys
import threading

BODY = hashlib.sha256(b"body").digest() * 40000


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):  # pylint: disable=invalid-name
        self._answer(BODY if self.path == "/large" else self.path.encode())

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(hashlib.sha256(body).hexdigest().encode())

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def http_server(address, port, ready):
    server = http.server.ThreadingHTTPServer((address, port), Handler)
    # Or it would wait for clients that keep their connections.
    server.daemon_threads = True
    threading.Thread(target=lambda: (ready.get(), server.shutdown())).start()
    ready.put("listens")
    server.serve_forever()


def http_client(address, port, seen, number):
    connection = http.client.HTTPConnection(address, port, timeout=60)
    answers = []
    for i in range(200):
        connection.request("GET", f"/{number}/{i}")
        answers.append(connection.getresponse().read())
    for _ in range(3):
        connection.request("GET", "/large")
        answers.append(connection.getresponse().read())
        connection.request("POST", "/", body=BODY)
        answers.append(connection.getresponse().read())
    connection.close()
    seen[number] = hashlib.sha256(b"".join(answers)).hexdigest()


def work_http(address, port):
    ready, stop = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()

    class Both:
        put, get = ready.put, stop.get

    server = multiprocessing.Process(target=http_server,
                                     args=(address, port, Both))
    server.start()
    ready.get()
    seen = {}
    threads = [threading.Thread(target=http_client,
                                args=(address, port, seen, n))
               for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.put("end")
    server.join()
    print(sorted(seen.items()), server.exitcode)


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def talk(address, port, number):
    reader, writer = await asyncio.open_connection(address, port)
    seen = hashlib.sha256()
    for i in range(200):
        message = BODY[:1 + (number * 7919 + i * 104729) % 20000]
        writer.write(message)
        seen.update(await reader.readexactly(len(message)))
    writer.write_eof()
    rest = await reader.read()
    writer.close()
    await writer.wait_closed()
    return seen.hexdigest(), len(rest)


async def serve_once(address, port, ready, stop):
    server = await asyncio.start_server(echo, address, port)
    ready.put("listens")
    await asyncio.get_running_loop().run_in_executor(None, stop.get)
    server.close()
    await server.wait_closed()


def asyncio_server(address, port, ready, stop):
    asyncio.run(serve_once(address, port, ready, stop))


async def talk_all(address, port):
    return await asyncio.gather(*[talk(address, port, n) for n in range(30)])


def work_asyncio(address, port):
    ready, stop = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
    server = multiprocessing.Process(target=asyncio_server,
                                     args=(address, port, ready, stop))
    server.start()
    ready.get()
    print(asyncio.run(talk_all(address, port)))
    stop.put("end")
    server.join()
    print(server.exitcode)


def answer_connections(address, port, ready):
    with multiprocessing.connection.Listener((address, port),
                                             authkey=b"key") as listener:
        ready.put("listens")
        with listener.accept() as connection:
            while True:
                try:
                    request = connection.recv()
                except EOFError:
                    return
                connection.send({"pid": 0, "got": request})


class Manager(multiprocessing.managers.BaseManager):
    pass


class Counter:
    def __init__(self):
        self.total = 0

    def add(self, data):
        self.total += sum(data)
        return self.total


def work_multiprocessing(address, port):
    ready = multiprocessing.SimpleQueue()
    server = multiprocessing.Process(target=answer_connections,
                                     args=(address, port, ready))
    server.start()
    ready.get()
    seen = hashlib.sha256()
    with multiprocessing.connection.Client((address, port),
                                           authkey=b"key") as client:
        for i in range(300):
            client.send([i, BODY[:i * 1000]])
            seen.update(repr(client.recv()).encode())
    server.join()
    print(seen.hexdigest(), server.exitcode)

    Manager.register("Counter", Counter)
    with Manager(address=(address, 0), authkey=b"key") as manager:
        counter = manager.Counter()
        totals = [counter.add(BODY[:1000 + i]) for i in range(300)]
    print(totals[-1])


if __name__ == "__main__":
    # What is inherited must not be the test's own.
    os.environ.pop("PYTHONPATH", None)
    {"http": work_http, "asyncio": work_asyncio,
     "multiprocessing": work_multiprocessing}[sys.argv[1]](
         sys.argv[2], int(sys.argv[3]))
