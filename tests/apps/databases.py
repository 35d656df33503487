"""redis, its sentinels, memcached, MariaDB and its clusters."""

import csv
import pathlib
import re
import time

from harness import Failed, app, wait_until

VALUE = "".join(f"{i:07d} " for i in range(12500))


def cli(run, port, *words, **options):
    return run.call("redis-cli", "-h", run.address, "-p", port, *words,
                    **options).strip()


def info(run, port, section):
    return dict(line.split(":", 1)
                for line in cli(run, port, "info", section).splitlines()
                if ":" in line)


def pipe_commands(count):
    """What redis-cli --pipe wants: the protocol's own form."""
    out = []
    for i in range(count):
        words = ["SET", f"key:{i}", f"{i * 7919:09d}" * 20]
        out.append(f"*{len(words)}\r\n" + "".join(
            f"${len(w)}\r\n{w}\r\n" for w in words))
    return "".join(out)


@app("redis", "redis-server", "redis-cli", "redis-benchmark")
def redis(run):
    """Append-only file rewritten by fork, a replica, redis-cli --pipe,
    redis-benchmark; both data sets compared, and what is loaded again."""
    port, copy_port = run.port(), run.port()
    common = ["--bind", run.address, "--protected-mode", "no",
              "--enable-debug-command", "yes"]
    run.write("master/empty", "")
    run.write("copy/empty", "")
    master = run.start("redis-server", "--port", port, *common, "--appendonly",
                       "yes", "--dir", run.directory / "master", port=port)
    commands = pipe_commands(20000)
    said = cli(run, port, "--pipe", input=commands)
    if "errors: 0, replies: 20000" not in said:
        raise Failed(f"redis-cli --pipe: {said}")
    cli(run, port, "-x", "set", "big", input=VALUE)
    copy = run.start("redis-server", "--port", copy_port, *common,
                     "--replicaof", f"{run.address} {port}", "--dir",
                     run.directory / "copy", port=copy_port)
    wait_until(lambda: info(run, copy_port, "replication").get(
        "master_link_status") == "up", 30, "the replica is not in step")
    # Traffic while the file is rewritten by a child.
    cli(run, port, "bgrewriteaof")
    text = run.call("redis-benchmark", "-h", run.address, "-p", port, "-t",
                    "set,get,lpush,mset", "-c", 20, "-d", 200, "-n", 20000,
                    "--csv", limit=120)
    rates = {row[0]: float(row[1]) for row in csv.reader(text.splitlines())
             if row and row[0] in ("SET", "GET")}
    if len(rates) != 2:
        raise Failed(f"redis-benchmark printed: {text}")
    wait_until(lambda: info(run, port, "persistence")
               ["aof_rewrite_in_progress"] == "0", 30, "the rewrite goes on")
    rewritten = info(run, port, "persistence")["aof_last_bgrewrite_status"]

    def in_step():
        return (info(run, copy_port, "replication").get("slave_repl_offset") ==
                info(run, port, "replication").get("master_repl_offset"))

    wait_until(in_step, 30, "the replica stays behind")
    digests = [cli(run, p, "debug", "digest") for p in (port, copy_port)]
    if digests[0] != digests[1]:
        raise Failed("the replica has other data")
    if cli(run, port, "get", "big") != VALUE.strip():
        raise Failed("a value came back changed")
    size = cli(run, copy_port, "dbsize")
    run.stop(copy)
    run.stop(master)
    # What was appended is what there was.
    again = run.start("redis-server", "--port", port, *common, "--appendonly",
                      "yes", "--dir", run.directory / "master", port=port)
    wait_until(lambda: info(run, port, "persistence").get("loading") == "0", 30,
               "still loading")
    reloaded = cli(run, port, "debug", "digest") == digests[0]
    run.stop(again)
    return ({"rewritten": rewritten, "keys": size, "reloaded": reloaded,
             "digest": digests[0]},
            f"SET {rates['SET']:.0f}/s, GET {rates['GET']:.0f}/s")


@app("sentinel", "redis-server", "redis-cli", "redis-benchmark")
def sentinel(run):
    """Redis with 2 replicas, and 3 sentinels that make one of them the master
    after a kill -9 of it: no key is lost."""
    ports = [run.port() for _ in range(3)]
    servers = []
    for port in ports:
        directory = run.directory / f"data.{port}"
        run.write(f"{directory.name}/empty", "")
        follow = (["--replicaof", f"{run.address} {ports[0]}"]
                  if servers else [])
        servers.append(run.start(
            "redis-server", "--port", port, "--bind", run.address,
            "--protected-mode", "no", "--enable-debug-command", "yes",
            "--save", "", "--dir", directory, "--repl-diskless-sync-delay", 0,
            *follow, port=port))
    wait_until(lambda: [line for key, line in info(
        run, ports[0], "replication").items() if "state=online" in line][1:],
               30, "two replicas are not in step")
    watch = [run.port() for _ in range(3)]
    watchers = []
    for port in watch:
        script = run.write(f"watch.{port}/sentinel.conf", f"""\
port {port}
bind {run.address}
protected-mode no
dir {run.directory}/watch.{port}
sentinel monitor it {run.address} {ports[0]} 2
sentinel down-after-milliseconds it 1000
sentinel failover-timeout it 10000
""")
        pathlib.Path(script).chmod(0o666)
        watchers.append(run.start("redis-server", script, "--sentinel",
                                  port=port))

    def all_known(port):
        words = cli(run, port, "sentinel", "master", "it").split()
        state = dict(zip(words[::2], words[1::2]))
        return (state["num-other-sentinels"] == "2"
                and state["num-slaves"] == "2")
    wait_until(lambda: all(map(all_known, watch)), 30,
               "the sentinels do not know each other")
    cli(run, ports[0], "--pipe", input=pipe_commands(1000))
    text = run.call("redis-benchmark", "-h", run.address, "-p", ports[0], "-t",
                    "set", "-c", 4, "-d", 1000, "-r", 1000, "-n", 60000, "--csv")
    # All that the master has written has come when each has answered.
    if cli(run, ports[0], "wait", 2, 20000) != "2":
        raise Failed("the replicas do not follow")
    digests = {cli(run, port, "debug", "digest") for port in ports}
    servers[0].kill()
    servers[0].wait()

    def elected():
        new = cli(run, watch[1], "sentinel", "get-master-addr-by-name",
                  "it").split()[1]
        return int(new) if int(new) != ports[0] else None
    new = wait_until(elected, 30, "no new master")
    other = next(port for port in ports[1:] if port != new)
    wait_until(lambda: info(run, other, "replication").get("master_port") ==
               str(new) and info(run, other, "replication").get(
                   "master_link_status") == "up", 30,
               "the other replica does not follow the new master")
    after = {cli(run, port, "debug", "digest") for port in (new, other)}
    wait_until(lambda: info(run, new, "replication").get("role") == "master",
               10, "the new master is a replica still")
    cli(run, new, "set", "late", "1")
    wait_until(lambda: cli(run, other, "get", "late") == "1", 20,
               "what the new master is told does not come")
    for process in watchers + servers[1:]:
        run.stop(process)
    rate = float(list(csv.reader(text.splitlines()))[-1][1])
    return {"in step": len(digests) == 1, "kept": after == digests}, (
        f"set {rate:.0f}/s")


@app("memcached", "memcached", "memcaslap")
def memcached(run):
    """4 threads, memcaslap with 32 connections, values verified."""
    port = run.port()
    server = run.start("memcached", "-u", "root", "-l", run.address, "-p", port,
                       "-U", 0, "-t", 4, "-m", 512, "-c", 4096, port=port)
    # It verifies a tenth of what it reads.  In a guest the handshakes of 32
    # lanes alone take some seconds.
    text = run.call("memcaslap", "-s", f"{run.address}:{port}", "-T", 2, "-c",
                    32, "-t", "40s" if run.lane == "rdma" else "2s", "-v", "0.1")
    found = re.search(r"TPS: (\d+)", text)
    wrong = re.search(r"(get_misses|verify_misses|verify_failed): [1-9]", text)
    if not found or int(found[1]) == 0 or wrong:
        raise Failed(f"memcaslap printed: {text}")
    run.stop(server)
    return {}, f"{found[1]} requests/s"


SQL = """\
create database if not exists t; use t;
create table n (i int primary key, s varchar(200), b longtext);
{inserts}
select count(*), sum(i), sum(length(s)), md5(group_concat(s order by i)) from n;
update n set b = repeat(s, 1000);
select i, length(b), b from n where i % 10 = 0 order by i;
"""


# Of what it may grow to (8 TB) it takes the addresses; a guest has 512 GB.
POOL = "--loose-innodb-buffer-pool-size-max=1G"


@app("mariadb", "mariadbd", "mariadb-install-db", "mariadb-slap", "mariadb")
def mariadb(run):
    """mariadb, and mariadb-slap with 8 clients."""
    port = run.port()
    data = run.directory / "data"
    run.call("mariadb-install-db", "--no-defaults", f"--datadir={data}",
             "--auth-root-authentication-method=normal", "--skip-test-db",
             "--user=root", POOL, limit=120, LD_PRELOAD="")
    server = run.start(
        "mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", POOL,
        f"--port={port}", f"--bind-address={run.address}",
        f"--socket={run.directory}/socket", "--skip-name-resolve",
        "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-size=64M", port=port, limit=60)
    there = ["--no-defaults", "--protocol=tcp", f"--host={run.address}",
             f"--port={port}", "--user=root"]
    inserts = "".join(f"insert into n values ({i}, '{str(i) * 30}', '');\n"
                      for i in range(300))
    answer = run.call("mariadb", *there, "--batch",
                      input="set group_concat_max_len=1000000;"
                      + SQL.format(inserts=inserts))
    # (Each iteration begins with eight connections that have no lanes yet.)
    queries = run.large(4000, 10000)
    text = run.call(
        "mariadb-slap", *there, "--auto-generate-sql",
        "--auto-generate-sql-load-type=mixed",
        "--auto-generate-sql-guid-primary", "--concurrency=8", "--iterations=2",
        f"--number-of-queries={queries}", "--number-char-cols=4",
        limit=120)
    found = re.search(r"Average number of seconds.*?: ([\d.]+)", text)
    if not found:
        raise Failed(f"mariadb-slap printed: {text}")
    run.stop(server, limit=60)
    return {"answer": hash_of(answer)}, f"{found[1]} s for {queries} queries"


@app("galera", "mariadbd", "mariadb-install-db", "mariadb", "rsync",
     "lsof", user="mysql", share=0.2, rdma=False,
     why="the second node takes over the first one's state by rsync: "
         "`pinned_fork`")
def galera(run):
    """Two nodes of a MariaDB cluster: 2,000 transactions, 500 to either in turn,
    and one of 6,000 rows; both data sets compared."""
    library = next(pathlib.Path("/usr/lib/galera").glob("libgalera_smm.so"))
    ports = [run.port() for _ in range(2)]
    groups = [run.port() for _ in range(2)]

    def sql(node, text):
        return run.call("mariadb", "--no-defaults", "-h", run.address, "-P",
                        ports[node], "-u", "root", "-N", input=text, limit=60)

    def start(node, *words, at=""):
        data = run.directory / f"data{node}"
        run.call("mariadb-install-db", "--no-defaults", f"--datadir={data}",
                 "--auth-root-authentication-method=normal", "--skip-test-db",
                 limit=120, LD_PRELOAD="")
        options = ";".join([
            f"gmcast.listen_addr=tcp://{run.address}:{groups[node]}",
            f"ist.recv_addr={run.address}:{run.port()}", "gcache.size=32M"])
        server = run.start(
            "mariadbd", "--no-defaults", f"--datadir={data}",
            f"--socket={data}/socket", f"--port={ports[node]}",
            f"--bind-address={run.address}",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M",
            "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON", f"--wsrep-provider={library}",
            "--wsrep-cluster-name=it", f"--wsrep-cluster-address=gcomm://{at}",
            f"--wsrep-node-address={run.address}:{groups[node]}",
            f"--wsrep-provider-options={options}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={run.address}:{run.port()}", *words,
            port=ports[node], limit=120)

        def synced():
            return "Synced" in run.call(
                "mariadb", "--no-defaults", "-h", run.address, "-P",
                ports[node], "-u", "root", "-N", statuses=(0, 1),
                input="show status like 'wsrep_local_state_comment';")
        wait_until(synced, 60, f"node {node} is not in step")
        return server

    first = start(0, "--wsrep-new-cluster")
    sql(0, "create database d; create table d.t (a int primary key "
           "auto_increment, b varchar(4000));")
    second = start(1, at=f"{run.address}:{groups[0]}")
    for node in (0, 1, 0, 1):
        sql(node, "".join(f"insert into d.t (b) values (repeat('{i % 10}', "
                          f"{i * 8}));\n" for i in range(500)))
    begin = time.monotonic()
    sql(0, "insert into d.t (b) select b from d.t union all select b from d.t "
           "union all select b from d.t;")
    ask = ("set session wsrep_sync_wait=15; "
           "select count(*), sum(length(b)), sum(crc32(b)) from d.t;")
    sums = [sql(node, ask) for node in (0, 1)]
    seconds = time.monotonic() - begin
    if sums[0] != sums[1]:
        raise Failed(f"the nodes differ: {sums}")
    for server in (second, first):
        run.stop(server, limit=60)
    return {"sums": sums[0]}, f"{seconds:.2f} s for 6,000 rows"


def hash_of(text):
    import hashlib  # pylint: disable=import-outside-toplevel
    return hashlib.sha256(text.encode()).hexdigest()
