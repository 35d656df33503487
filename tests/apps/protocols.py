"""Servers whose protocols none of the others has, each with its own client:
Traffic Server, Firebird, Net-SNMP, RPyC and Racket."""

import hashlib
import os
import pathlib
import re
import signal

import web
from harness import Failed, app

TRAFFIC = """\
CONFIG proxy.config.http.server_ports STRING {port}:ip-in={address}
CONFIG proxy.config.admin.user_id STRING www-data
CONFIG proxy.config.exec_thread.autoconfig.enabled INT 0
CONFIG proxy.config.exec_thread.limit INT 3
CONFIG proxy.config.log.logging_enabled INT 0
CONFIG proxy.config.http.cache.http INT 0
CONFIG proxy.config.diags.output.error STRING E
CONFIG proxy.config.udp.threads INT 0
"""
ALLOW = """\
ip_allow:
  - apply: in
    ip_addrs: 0/0
    action: allow
    methods: ALL
"""
ROOT = """\
prefix: {dir}
exec_prefix: {dir}
bindir: {dir}/bin
sbindir: {dir}/bin
sysconfdir: {dir}/etc
datadir: {dir}/data
includedir: {dir}/data
libdir: {dir}/lib
libexecdir: {dir}/lib
localstatedir: {dir}/run
runtimedir: {dir}/run
logdir: {dir}/log
cachedir: {dir}/cache
"""


@app("trafficserver", "traffic_server", "nginx", "curl", "ab",
     user="www-data", rdma=False)
def trafficserver(run):
    """Before nginx, 3 threads: 6 times 8 MiB, 300 small
    answers, ab -k with 8 connections."""
    server = web.Nginx(run)
    port, here = run.port(), run.directory / "ts"
    folders = ("bin", "etc", "data", "run", "log", "cache", "lib")
    for name in folders:
        os.makedirs(here / name)
        os.chmod(here / name, 0o777)
    run.write("ts/runroot.yaml", ROOT.format(dir=here))
    run.write("ts/etc/records.config", TRAFFIC.format(
        port=port, address=run.address))
    run.write("ts/etc/remap.config",
              f"map http://{run.address}:{port}/ {server.url()}/\n")
    run.write("ts/etc/ip_allow.yaml", ALLOW)
    run.write("ts/etc/storage.config", f"{here}/cache 16M\n")
    proxy = run.start("traffic_server", f"--run-root={here}", port=port, limit=60)
    url = f"http://{run.address}:{port}"
    curl = ["curl", "-sS", "--fail"]
    big = run.call(*curl, *[url + "/middle"] * 6, text=False)
    pages = run.call(*curl, url + "/page.txt?[1-300]", text=False)
    text = run.call("ab", "-q", "-k", "-c", 8, "-n", 4000, url + "/page.txt")
    rate = re.search(r"Requests per second:\s+([\d.]+)", text)
    failed = re.search(r"Failed requests:\s+(\d+)", text)
    if not rate or not failed:
        raise Failed(f"ab printed: {text}")
    run.stop(proxy, limit=40)
    server.stop()
    return {"big": web.digest(big), "pages": web.digest(pages),
            "failed": failed[1]}, f"{rate[1]} requests/s"


FIREBIRD = """\
RemoteBindAddress = {address}
RemoteServicePort = {port}
SecurityDatabase = {dir}/security.fdb
WireCrypt = Enabled
ServerMode = Super
"""
FIREBIRD_WORK = """\
create database '{there}' user sysdba password 'secret';
create table t (id int primary key, v varchar(2000));
set term ^;
create procedure fill(n int) as declare i int = 0; begin
  while (i < n) do begin
    insert into t values (:i, rpad('', mod(:i * 7, 1900), 'x' || :i));
    i = i + 1;
  end
end^
set term ;^
commit;
execute procedure fill(2000);
commit;
select count(*), sum(char_length(v)) from t;
"""


@app("firebird", "/usr/sbin/firebird", "isql-fb", rdma=False)
def firebird(run):
    """isql: a database made, 2,000 rows of up to 2 kB read twice, 1,000
    statements."""
    here, port = run.directory, run.port()
    run.write("root/firebird.conf", FIREBIRD.format(
        address=run.address, port=port, dir=here))
    run.write("root/databases.conf", "")
    for name in ("plugins.conf", "fbintl.conf"):
        run.write("root/" + name,
                  pathlib.Path("/etc/firebird/3.0", name).read_text())
    there = {"FIREBIRD": str(here / "root"), "FIREBIRD_LOCK": str(here / "root"),
             "FIREBIRD_TMP": str(here / "root")}
    run.call("isql-fb", "-q", input=(
        f"create database '{here}/security.fdb' user sysdba;\n"
        "create user sysdba password 'secret';\ncommit;\n"), LD_PRELOAD="", **there)
    server = run.start("/usr/sbin/firebird", "-p", port, port=port, **there)
    base = f"{run.address}/{port}:{here}/t.fdb"

    def isql(text, *words):
        return run.call("isql-fb", "-q", "-bail", "-user", "sysdba", "-password",
                        "secret", *words, input=text, limit=120, **there)

    made = isql(FIREBIRD_WORK.format(there=base))
    rows = isql("set heading off;\n" + "select * from t order by id;\n" * 2, base)
    many = isql("set heading off;\n" + "".join(
        f"insert into t values ({i}, 'a');\nselect max(id) from t;\n"
        for i in range(10000, 10500)), base)
    # (Plain, too, it often does not end by SIGTERM.)
    run.stop(server, signal.SIGKILL)
    return ({"made": made.split(), "rows": hashlib.sha256(
        rows.encode()).hexdigest(), "many": many.split()}, "1,000 statements")


@app("net-snmp", "snmpd", "snmpbulkwalk", "snmpwalk", rdma=False)
def snmp(run):
    """snmpd over TCP: a tree of 3,000 values walked in bulk and one by one."""
    port = run.port()
    lines = [f"override .1.3.6.1.4.1.9999.{i // 100 + 1}.{i % 100 + 1} octet_str "
             f'"value {i} {"x" * (i % 100)}"' for i in range(3000)]
    conf = run.write("snmpd.conf", "rocommunity public\n" + "\n".join(lines) + "\n")
    there = f"tcp:{run.address}:{port}"
    server = run.start("snmpd", "-f", "-Lo", "-C", "-c", conf, "-I",
                       "override", there, port=port, SNMP_PERSISTENT_DIR=str(
                           run.directory / "persistent"), MIBS="")
    ask = ["-v2c", "-cpublic", "-t", 30, "-OqvQ"]
    bulk = run.call("snmpbulkwalk", *ask, "-Cr50", there, ".1.3.6.1.4.1.9999",
                    MIBS="")
    walk = run.call("snmpwalk", *ask, there, ".1.3.6.1.4.1.9999", MIBS="")
    run.stop(server)
    return ({"same": bulk == walk, "bulk": web.digest(bulk.encode())},
            f"{len(bulk.splitlines())} values")


RPYC_SERVER = r"""
import rpyc, sys
from rpyc.utils.server import ThreadedServer
class Work(rpyc.Service):
    def exposed_double(self, x): return x * 2
    def exposed_each(self, call, n): return [call(i) for i in range(n)]
ThreadedServer(Work, hostname=sys.argv[1], port=int(sys.argv[2]),
               protocol_config={"allow_public_attrs": True}).start()
"""
RPYC_CLIENT = r"""
import rpyc, sys, threading
said = {}
def client(n):
    c = rpyc.connect(sys.argv[1], int(sys.argv[2]))
    rpyc.BgServingThread(c) if n % 2 else None
    total = sum(len(c.root.double(b"x" * (i * 37))) for i in range(400))
    total += len(c.root.double(b"y" * 3_000_000))
    total += sum(c.root.each(lambda x: x + n, 200))
    later = [rpyc.async_(c.root.double)(i) for i in range(300)]
    for one in later: one.wait()
    said[n] = total + sum(one.value for one in later)
threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(said.items()))
sys.stdout.flush()
import os; os._exit(0)
"""


@app("rpyc", "/usr/bin/python3", rdma=False)
def rpyc(run):
    """Python's RPyC: 4 threads, 400 calls each, one of 3 MB, calls back, 300 under
    way at once."""
    port = run.port()
    server = run.start("/usr/bin/python3", run.write("server.py", RPYC_SERVER),
                       run.address, port, port=port)
    said = run.call("/usr/bin/python3", run.write("client.py", RPYC_CLIENT),
                    run.address, port, limit=120)
    run.stop(server, signal.SIGINT, statuses=(0, 1))
    return {"said": said}, "4 clients"


# Each end is a green thread; the ports of all are in one epoll set, which
# Racket's scheduler polls.
RACKET = """\
#lang racket/base
(require racket/tcp)
(define args (current-command-line-arguments))
(define host (vector-ref args 0))
(define port (string->number (vector-ref args 1)))
(define streams 12)
(define listener (tcp-listen port 64 #t host))
(define (answer in out)
  (let loop ()
    (define line (read-line in))
    (unless (eof-object? line)
      (write-string line out)
      (newline out)
      (flush-output out)
      (loop)))
  (close-input-port in)
  (close-output-port out))
(void (thread (lambda ()
  (for ([_ streams])
    (define-values (in out) (tcp-accept listener))
    (thread (lambda () (answer in out)))))))
(define (ask k)
  (define-values (in out) (tcp-connect host port))
  (define sum
    (for/fold ([sum 0]) ([i 400])
      (define text
        (if (= i 200) (make-string 300000 #\\z) (format "~a:~a" k i)))
      (write-string text out)
      (newline out)
      (flush-output out)
      (unless (equal? (read-line in) text) (error "not what was sent"))
      (+ sum (string-length text))))
  (close-output-port out)
  (close-input-port in)
  sum)
(define sums (make-vector streams 0))
(for-each thread-wait
  (for/list ([k streams]) (thread (lambda () (vector-set! sums k (ask k))))))
(displayln sums)
"""


@app("racket", "racket", rdma=False)
def racket(run):
    """12 streams between green threads of one process: 400 lines there and back,
    one of 300 kB; its epoll set is polled."""
    said = run.call("racket", run.write("work.rkt", RACKET), run.address,
                    run.port(), limit=120)
    return {"said": said}, "12 streams"
