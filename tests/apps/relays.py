"""Programs between two others, with connections to both: Squid and PgBouncer."""

import re
import signal

import postgres
import web
from harness import Failed, app

SQUID = """\
http_port {address}:{port}
pid_filename {dir}/squid.pid
cache_log {dir}/cache.log
coredump_dir {dir}
access_log none
cache_store_log none
netdb_filename none
cache_mem 16 MB
cache deny all
http_access allow all
pinger_enable off
shutdown_lifetime 1 seconds
"""


@app("squid", "squid", "nginx", "curl", "ab", user="www-data", rdma=False)
def squid(run):
    """Before nginx: 6 times 8 MiB, 700 small answers (8 at a time), ab -k with 8
    connections, 48 MiB by CONNECT."""
    server = web.Nginx(run)
    port = run.port()
    # A name of its own: its shared memory is called after the service.
    proxy = run.start("squid", "-N", "-n", f"rcsock{port}", "-f", run.write(
        "squid.conf", SQUID.format(address=run.address, port=port,
                                   dir=run.directory)), port=port)
    there = {"http_proxy": f"http://{run.address}:{port}"}
    middle = [server.url() + "/middle"] * 6
    page = server.url() + "/page.txt"
    curl = ["curl", "-sS", "--fail"]
    big = run.call(*curl, *middle, text=False, **there)
    pages = run.call(*curl, page + "?[1-300]", text=False, **there)
    run.call(*curl, "--parallel", "--parallel-max", 8, "-o", "page#1",
             page + "?[1-400]", **there)
    tunnel = run.call(*curl, "-p", *middle, text=False, **there)
    text = run.call("ab", "-q", "-k", "-c", 8, "-n", 4000, "-X",
                    f"{run.address}:{port}", page)
    rate = re.search(r"Requests per second:\s+([\d.]+)", text)
    failed = re.search(r"Failed requests:\s+(\d+)", text)
    if not rate or not failed:
        raise Failed(f"ab printed: {text}")
    run.stop(proxy, limit=30)
    server.stop()
    same = {web.digest((run.directory / f"page{i}").read_bytes())
            for i in range(1, 401)}
    return {"big": web.digest(big), "pages": web.digest(pages),
            "parallel": sorted(same), "tunnel": web.digest(tunnel),
            "failed": failed[1]}, f"{rate[1]} requests/s"


BOUNCER = """\
[databases]
* = host={address} port={back} user=postgres
[pgbouncer]
listen_addr = {address}
listen_port = {port}
auth_type = any
pool_mode = transaction
max_client_conn = 100
default_pool_size = 4
unix_socket_dir =
logfile = {dir}/bouncer.log
pidfile = {dir}/bouncer.pid
"""


@app("pgbouncer", "pgbouncer", "pgbench", "psql", user="postgres", rdma=False)
def pgbouncer(run):
    """Transactions of 8 clients over 4 connections, and a new connection for
    each of 100."""
    bin_, back, port = postgres.tools(), run.port(), run.port()
    data = run.directory / "data"
    postgres.initdb(run, data)
    server = run.start(
        bin_ / "postgres", "-D", data, "-p", back, "-h", run.address, "-c",
        f"unix_socket_directories={run.directory}", "-c", "fsync=off", "-c",
        "max_connections=40", "-c", "shared_buffers=32MB", port=back, limit=60)
    relay = run.start("pgbouncer", run.write("bouncer.ini", BOUNCER.format(
        address=run.address, back=back, port=port, dir=run.directory)),
                      port=port)
    there = ["-h", run.address, "-p", port, "-U", "postgres"]

    def bench(*words):
        return run.call(bin_ / "pgbench", *there, "-n", *words, limit=120)

    bench("-i", "-I", "dtgp", "-s", 1, "-q")
    # What it adds does not depend on the order.
    bench("--random-seed=7", "-c", 8, "-j", 2, "-t", 100)
    rate = re.search(r"tps = ([\d.]+)", bench("-S", "-c", 8, "-j", 2, "-T",
                                              run.seconds(2)))
    bench("-S", "-C", "-c", 4, "-t", 25)
    sums = run.call(bin_ / "psql", *there, "-Atq", "-v", "ON_ERROR_STOP=1",
                    input="select sum(abalance), count(*) from pgbench_accounts;"
                          "select sum(tbalance) from pgbench_tellers;"
                          "select sum(delta), count(*) from pgbench_history;")
    run.stop(relay, signal.SIGINT)
    run.stop(server, signal.SIGINT, limit=40)
    return {"sums": sums}, f"{rate[1]} transactions/s"
