"""PostgreSQL: a process for each connection, forked by the one that listens."""

import hashlib
import pathlib
import re

from harness import Failed, app


def tools():
    """Debian's wrappers of the same names in /usr/bin want a cluster of its own."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise Failed("PostgreSQL's server is not installed")
    return found[-1].parent


def initdb(run, data):
    """A cluster that trusts everybody at its address, which in a guest is not
    that of the loopback."""
    run.call(tools() / "initdb", "-D", data, "-A", "trust", "-N", "-U",
             "postgres", limit=240, LD_PRELOAD="")
    with (data / "pg_hba.conf").open("a") as file:
        for database in ("all", "replication"):
            file.write(f"host {database} all {run.address}/32 trust\n")


@app("postgresql", "psql", "pgbench", user="postgres")
def postgresql(run):
    """pgbench, a dump and a standby that follows."""
    bin_, port, copy_port = tools(), run.port(), run.port()
    data, copy = run.directory / "data", run.directory / "copy"
    initdb(run, data)

    def serve(where, at):
        return run.start(
            bin_ / "postgres", "-D", where, "-p", at, "-h", run.address, "-c",
            f"unix_socket_directories={run.directory}", "-c", "fsync=off",
            "-c", "max_connections=40", "-c", "shared_buffers=32MB",
            port=at, limit=60)

    def sql(at, text):
        return run.call(bin_ / "psql", "-h", run.address, "-p", at, "-U",
                        "postgres", "-Atq", "-v", "ON_ERROR_STOP=1",
                        input=text, limit=60)

    def bench(*words):
        return run.call(bin_ / "pgbench", "-h", run.address, "-p", port, "-U",
                        "postgres", "-n", *words, limit=120)

    server = serve(data, port)
    # The rows come from the client (g), by COPY.
    bench("-i", "-I", "dtgp", "-s", "3", "-q")
    # What it adds does not depend on the order.
    bench("--random-seed=7", "-c", 8, "-j", 2, "-t", 100)
    text = bench("-S", "-c", 8, "-j", 2, "-T", run.seconds(2))
    rate = re.search(r"tps = ([\d.]+)", text)
    if not rate:
        raise Failed(f"pgbench printed: {text}")
    one = re.search(r"tps = ([\d.]+)",
                    bench("-S", "-c", 1, "-T", run.seconds(1)))
    sums = sql(port, "select sum(abalance), count(*) from pgbench_accounts;"
                     "select sum(tbalance) from pgbench_tellers;")
    text = run.call(bin_ / "pg_dump", "-h", run.address, "-p", port, "-U",
                    "postgres", "-t", "pgbench_tellers", "-t",
                    "pgbench_accounts", "--inserts")
    # Rows lie in the order of their last change; \restrict names a random key.
    rows = sorted(line for line in text.splitlines() if line[:1] != "\\")
    dump = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    run.call(bin_ / "pg_basebackup", "-h", run.address, "-p", port, "-U",
             "postgres", "-D", copy, "-R", "-X", "fetch", "-c", "fast")
    standby = serve(copy, copy_port)
    sql(port, "create table late as select generate_series(1, 100000) as n;")
    lsn = sql(port, "select pg_current_wal_insert_lsn();").strip()
    sql(copy_port, f"""do $$ begin
        while pg_last_wal_replay_lsn() < '{lsn}' loop
          perform pg_sleep(0.01);
        end loop; end $$;""")
    followed = sql(copy_port, "select count(*), sum(n) from late;")
    run.stop(standby, limit=60)
    run.stop(server, limit=60)
    return ({"sums": sums, "dump": dump, "followed": followed},
            f"{float(rate[1]):.0f} transactions/s, "
            f"{float(one[1]):.0f} by one client")
