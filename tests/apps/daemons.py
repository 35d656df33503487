"""Servers whose own event loops or runtimes none of the others has: Tarantool
(libev, fibers of Lua), pgpool-II (processes that wait for each other), SWI-Prolog
(threads), BitTorrent by Transmission (libevent) and aria2."""

import hashlib
import os
import re
import signal

import postgres
from harness import Failed, app, wait_until

TARANTOOL_SERVER = """
box.cfg{listen='%s:%d', work_dir='%s', log_level=4, wal_mode='none'}
local s = box.schema.space.create('s')
s:create_index('primary', {parts = {1, 'unsigned'}})
box.schema.user.grant('guest', 'read,write,execute', 'universe')
function double(x) return x * 2 end
"""

TARANTOOL_CLIENT = """
local net, fiber, digest = require('net.box'), require('fiber'), require('digest')
local done = 0
local function client(n)
  local c = net.connect(arg[1])
  for i = 1, 500 do
    c.space.s:replace{n * 10000 + i, string.rep('x', i * 7)}
    assert(c:call('double', {i}) == 2 * i)
  end
  for i = 1, 5 do c.space.s:replace{n * 10000 + 5000 + i, string.rep('y', 900000)} end
  local answers = {}
  for i = 1, 500 do answers[i] = c.space.s:get(n * 10000 + i, {is_async = true}) end
  for i = 1, 500 do assert(#answers[i]:wait_result(30)[2] == i * 7) end
  c:close()
  done = done + 1
end
for n = 1, 8 do fiber.create(client, n) end
while done < 8 do fiber.sleep(0.01) end
local c = net.connect(arg[1])
for i = 1, 100 do assert(c:call('double', {i}) == 2 * i) end
local all = {}
for n = 1, 8 do
  for _, t in ipairs(c.space.s:select({n * 10000}, {iterator = 'GE', limit = 505})) do
    table.insert(all, t[1] .. t[2])
  end
end
print(#all, digest.sha256_hex(table.concat(all)))
os.exit(0)
"""


@app("tarantool", "tarantool", rdma=False)
def tarantool(run):
    """8 fibers of a client: 4,000 tuples and calls, 40 tuples of 900 kB, 500
    requests under way at once."""
    port = run.port()
    server = run.start("tarantool", run.write(
        "server.lua", TARANTOOL_SERVER % (run.address, port, run.directory)),
                       port=port)
    said = run.call("tarantool", run.write("client.lua", TARANTOOL_CLIENT),
                    f"{run.address}:{port}")
    run.stop(server)
    return {"said": said}, f"{said.split()[0]} tuples"


POOL = """\
listen_addresses = '{address}'
port = {port}
pcp_listen_addresses = '{address}'
pcp_port = {pcp}
unix_socket_directories = '{dir}'
pcp_socket_dir = '{dir}'
wd_ipc_socket_dir = '{dir}'
pid_file_name = '{dir}/pool.pid'
logdir = '{dir}'
work_dir = '{dir}'
backend_clustering_mode = 'raw'
backend_hostname0 = '{address}'
backend_port0 = {back}
num_init_children = 6
"""


@app("pgpool", "pgpool", "pgbench", "psql", user="postgres", rdma=False)
def pgpool(run):
    """6 processes that were forked before, each with a connection to the server:
    pgbench with 4 clients, 200,000 rows by one question."""
    bin_, back, port = postgres.tools(), run.port(), run.port()
    data = run.directory / "data"
    postgres.initdb(run, data)
    server = run.start(
        bin_ / "postgres", "-D", data, "-p", back, "-h", run.address, "-c",
        f"unix_socket_directories={run.directory}", "-c", "fsync=off", "-c",
        "max_connections=40", "-c", "shared_buffers=32MB", port=back, limit=60)
    pool = run.start("pgpool", "-n", "-f", run.write("pgpool.conf", POOL.format(
        address=run.address, port=port, pcp=run.port(), back=back,
        dir=run.directory)), "-a", run.write("hba.conf", ""), "-F",
                     run.write("pcp.conf", ""), port=port)
    there = ["-h", run.address, "-p", port, "-U", "postgres"]

    def bench(*words):
        return run.call(bin_ / "pgbench", *there, *words, "postgres", limit=120)

    bench("-i", "-I", "dtgp", "-s", 2, "-q")
    # What it adds does not depend on the order.
    bench("-n", "--random-seed=7", "-c", 4, "-t", 100)
    rate = re.search(r"tps = ([\d.]+)",
                     bench("-n", "-S", "-c", 4, "-t", 400))
    rows = run.call(bin_ / "psql", *there, "-Atq", "-c",
                    "select aid, bid, abalance from pgbench_accounts order by 1",
                    "postgres")
    run.stop(pool, signal.SIGINT)
    run.stop(server, signal.SIGINT, limit=40)
    return ({"rows": hashlib.sha256(rows.encode()).hexdigest()},
            f"{rate[1]} transactions/s")


PROLOG = """
:- use_module(library(http/thread_httpd)).
:- use_module(library(http/http_dispatch)).
:- http_handler(root(hello), hello, []).
:- http_handler(root(big), big, []).
:- http_handler(root(quit), quit, []).
hello(_) :- format('Content-type: text/plain~n~nHello~n').
big(_) :- format('Content-type: text/plain~n~n'),
  forall(between(1, 300000, X), format('~d~n', [X])).
quit(_) :- format('Content-type: text/plain~n~n'), thread_send_message(main, quit).
main :- http_server(http_dispatch, [port('{address}':{port}), workers(4)]),
  thread_get_message(_), halt.
:- initialization(main).
"""


@app("swi-prolog", "swipl", "curl", "wrk", rdma=False)
def prolog(run):
    """Its HTTP server, 4 threads: 5 times 2 MB, 500 small answers over one
    connection, wrk with 4."""
    port = run.port()
    server = run.start("swipl", run.write("server.pl", PROLOG.format(
        address=run.address, port=port)), port=port)
    url = f"http://{run.address}:{port}"
    big = run.call("curl", "-sf", *[url + "/big"] * 5)
    small = run.call("curl", "-sf", *[url + "/hello"] * 500)
    text = run.call("wrk", "-t", 1, "-c", 4, "-d", run.seconds(2),
                    url + "/hello")
    if "Non-2xx" in text or "Socket errors" in text:
        raise Failed(text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    run.call("curl", "-sf", url + "/quit")
    run.stop(server, None)
    return ({"big": hashlib.sha256(big.encode()).hexdigest(),
             "small": hashlib.sha256(small.encode()).hexdigest()},
            f"{rate[1]} requests/s")


# Whoever asks is told of the one that has the file.
TRACKER = r"""
import http.server, socket, struct, sys
host, port, seeder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
class Tracker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        peer = socket.inet_aton(host) + struct.pack(">H", seeder)
        body = b"d8:intervali60e5:peers%d:%se" % (len(peer), peer)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer((host, port), Tracker).serve_forever()
"""


@app("bittorrent", "aria2c", "transmission-create", "transmission-daemon",
     "transmission-remote", rdma=False)
def bittorrent(run):
    """64 MiB from Transmission to aria2, and from one aria2 to another."""
    here = run.directory
    for name in ("there", "conf"):
        os.mkdir(here / name)
    block = b"".join(hashlib.sha256(b"%d" % i).digest() * (1 << 15)
                     for i in range(64))
    (here / "there/file").write_bytes(block)
    tracker_port, port, rpc = run.port(), run.port(), run.port()
    # (Without rcsock: not what is tested.)
    tracker = run.start("python3", run.write("tracker.py", TRACKER), run.address,
                        tracker_port, port, port=tracker_port, LD_PRELOAD="")
    torrent = here / "file.torrent"
    run.call("transmission-create", "-o", torrent, "-t",
             f"http://{run.address}:{tracker_port}/announce",
             here / "there/file")

    def aria2(folder, at, *words):
        return ["aria2c", f"--listen-port={at}", "--enable-dht=false",
                "--bt-enable-lpd=false", "--dir", here / folder, *words,
                torrent]

    got = {}
    for seeder in ("transmission", "aria2"):
        if seeder == "aria2":
            server = run.start(*aria2("there", port, "--seed-ratio=0.0", "-V"),
                               port=port)
        else:
            server = run.start(
                "transmission-daemon", "-f", "-g", here / "conf", "-w",
                here / "there", "-P", port, "-O", "-M", "-i", run.address, "-p",
                rpc, port=rpc)
            ask = ["transmission-remote", f"{run.address}:{rpc}"]
            run.call(*ask, "-a", torrent, LD_PRELOAD="")
            # It looks at what it has first.
            wait_until(lambda: re.search("State: (Seeding|Idle)", run.call(
                *ask, "-t", 1, "-i", LD_PRELOAD="")), 30,
                "Transmission does not seed")
        run.call(*aria2(f"from-{seeder}", run.port(), "--seed-time=0"),
                 limit=120)
        run.stop(server, signal.SIGINT, statuses=(0, 7))
        got[seeder] = (here / f"from-{seeder}/file").read_bytes() == block
    run.stop(tracker)
    return got, "64 MiB twice"
