"""Servers of many kinds, each with a client of its own kind: OpenSSH, telnet,
HAProxy, Node, Erlang, ZeroMQ, rsync, lighttpd, Puma and Knot."""

import hashlib
import pathlib
import re
import signal

from harness import Failed, app, find, wait_until

BIG = hashlib.sha256(b"services").digest() * (1 << 20)  # 32 MiB


def digest(data):
    return hashlib.sha256(data).hexdigest()


@app("openssh", "sshd", "ssh", "ssh-keygen", "rsync", rdma=False)
def openssh(run):
    """A command's status, 32 MiB through cat, rsync, a forwarded port, as root;
    the child that is not logged in yet is in a sandbox."""
    port, through = run.port(), run.port()
    here = run.directory
    for name in ("host", "user"):
        run.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                 here / name)
    (here / "allowed").write_text((here / "user.pub").read_text())
    conf = run.write("sshd_config", f"""
Port {port}
ListenAddress {run.address}
HostKey {here}/host
AuthorizedKeysFile {here}/allowed
StrictModes no
UsePAM no
PidFile none
""")
    run.call("mkdir", "-p", "/run/sshd")
    run.write("in", BIG)
    server = run.start(find("sshd"), "-D", "-e", "-f", conf, port=port)
    options = ["-F", "none", "-i", here / "user", "-o", "LogLevel=ERROR", "-o",
               "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    user = "root@" + run.address
    ssh = ["ssh", *options, "-p", port, user]
    run.call(*ssh, "exit 7", statuses=(7,))
    got = run.call(*ssh, "cat", input=BIG, text=False)
    words = " ".join(str(w) for w in ssh[:-1])
    run.call("rsync", "-e", words, here / "in", f"{user}:{here}/copy")
    forward = run.start("ssh", *options, "-p", port, "-N", "-L",
                        f"{through}:{run.address}:{port}", user, port=through)
    said = run.call("ssh", *options, "-p", through, user.replace(
        run.address, "localhost"), "echo through")
    run.stop(forward, statuses=(0, 255))
    run.stop(server, statuses=(0, 255))
    return {"cat": digest(got), "copy": digest((here / "copy").read_bytes()),
            "through": said}, "32 MiB twice"


TELNET = r"""
import os, pty, select, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("telnet", ["telnet", "-E", *sys.argv[1:]])
seen = b""
def until(what):
    global seen
    while what not in seen:
        if not select.select([terminal], [], [], 30)[0]:
            sys.exit(f"waits for {what} after {seen[-200:]}")
        seen += os.read(terminal, 65536)
    before, _, seen = seen.partition(what)
    return before
def say(words):
    os.write(terminal, words.encode())
until(b"ready>")
for i in range(30):
    say(f"echo $(({i} * 7))x\r")
    until(b"%dx" % (i * 7))
    until(b"ready>")
say("head -c 2000000 /dev/zero | tr '\\0' a; echo; echo e''nd\r")
print(until(b"end\r\n").count(b"a" * 80), "lines")
until(b"ready>")
for command in ("sleep 1000", "yes", "yes | head -c 2000000000"):
    # The shell has begun to run it when its output comes.
    say(f"echo be''gun; {command}; echo not''me\r")
    until(b"begun")
    say("\x03")
    if b"notme" in until(b"ready>"):
        sys.exit(f"{command} ended by itself")
say("exit\r")
try:
    while os.read(terminal, 65536):
        pass
except OSError:
    pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@app("telnet", "telnet", "telnetd", "inetutils-inetd", share=0.6, rdma=False,
     why="all but what follows the first ^C, which is urgent data: "
         "`pinned_option`")
def telnet(run):
    """A shell by inetd: commands, 2 MB of output, ^C in a sleep and in endless
    output."""
    port = run.port()
    shell = run.write("shell", "#!/bin/sh\nexport PS1='ready>'\n"
                               "exec /bin/sh -i\n")
    pathlib.Path(shell).chmod(0o755)
    conf = run.write("inetd.conf", f"{run.address}:{port} stream tcp nowait "
                     f"root {find('telnetd')} telnetd -E {shell}\n")
    server = run.start("inetutils-inetd", "-d", conf, port=port)
    said = run.call("python3", run.write("telnet.py", TELNET), run.address,
                    port, TERM="dumb")
    run.stop(server, statuses=(0, 1))
    return {"said": said}, "33 commands"


NODE_SERVER = """
const http = require('http');
const [port, host] = process.argv.slice(2);
const big = Buffer.alloc(3000000, 'x');
http.createServer((request, answer) => {
  if (request.url === '/big') return answer.end(big);
  let bytes = 0;
  request.on('data', data => { bytes += data.length; });
  request.on('end', () => answer.end('ok ' + bytes));
}).listen(+port, host);
process.on('SIGTERM', () => process.exit(0));
"""
NODE_CLIENT = """
const http = require('http');
const [port, host] = process.argv.slice(2);
const agent = new http.Agent({keepAlive: true, maxSockets: 8});
const get = (path, body) => new Promise((done, failed) => {
  const request = http.request(
      {port, host, path, agent, method: body ? 'POST' : 'GET'}, answer => {
        let text = '';
        answer.on('data', data => { text += data; });
        answer.on('end', () => done(text));
      });
  request.on('error', failed);
  if (body) request.write(body);
  request.end();
});
(async () => {
  let bytes = 0;
  const start = Date.now();
  for (let i = 0; i < 200; ++i) {
    const all = await Promise.all([...Array(8).keys()].map(k => get('/' + k)));
    bytes += all.join('').length;
  }
  for (let i = 0; i < 10; ++i) bytes += (await get('/big')).length;
  const posted = await get('/', Buffer.alloc(5000000, 'y'));
  console.log(bytes, posted);
  console.error(Date.now() - start, 'ms');
  process.exit(0);
})();
"""


def node_server(run, port):
    return run.start("node", run.write("server.js", NODE_SERVER), port,
                     run.address, port=port)


@app("node", "node")
def node(run):
    """http: 1,600 requests over 8 kept connections, 3 MB answers, a 5 MB
    body."""
    port = run.port()
    server = node_server(run, port)
    said = run.call("node", run.write("client.js", NODE_CLIENT), port,
                    run.address)
    run.stop(server)
    return {"said": said}, "1,611 requests"


@app("haproxy", "haproxy", "node")
def haproxy(run):
    """Before the same, by HTTP with kept connections and as a TCP proxy, 2
    threads."""
    back, front, raw = run.port(), run.port(), run.port()
    server = node_server(run, back)
    proxy = run.start("haproxy", "-db", "-f", run.write("haproxy.cfg", f"""
global
  nbthread 2
defaults
  timeout connect 5s
  timeout client 20s
  timeout server 20s
listen web
  mode http
  bind {run.address}:{front}
  server one {run.address}:{back}
listen raw
  mode tcp
  bind {run.address}:{raw}
  server one {run.address}:{back}
"""), port=raw)
    script = run.write("client.js", NODE_CLIENT)
    said = [run.call("node", script, port, run.address)
            for port in (front, raw)]
    run.stop(proxy, signal.SIGKILL)
    run.stop(server)
    return {"said": said}, "2 times 1,611 requests"


ERLANG = """
-module(echo).
-export([serve/1, ask/1]).
at(P, H) ->
  {ok, A} = inet:parse_address(atom_to_list(H)),
  {list_to_integer(atom_to_list(P)), A}.
serve([P, H]) ->
  {Port, Host} = at(P, H),
  {ok, L} = gen_tcp:listen(Port, [binary, {packet, 4}, {active, once},
                                  {reuseaddr, true}, {ip, Host}]),
  accept(L).
accept(L) ->
  {ok, S} = gen_tcp:accept(L),
  Pid = spawn(fun() -> receive go -> loop(S) end end),
  gen_tcp:controlling_process(S, Pid),
  Pid ! go,
  accept(L).
loop(S) ->
  receive
    {tcp, S, D} ->
      ok = gen_tcp:send(S, D), inet:setopts(S, [{active, once}]), loop(S);
    {tcp_closed, S} -> ok
  end.
ask([P, H]) ->
  {Port, Host} = at(P, H),
  Me = self(),
  [spawn_link(fun() ->
     {ok, S} = gen_tcp:connect(Host, Port,
                               [binary, {packet, 4}, {active, false}]),
     lists:foreach(fun(I) ->
       B = binary:copy(<<K>>, (I * 37) rem 20000),
       ok = gen_tcp:send(S, B),
       {ok, B} = gen_tcp:recv(S, 0, 20000)
     end, lists:seq(1, 500)),
     gen_tcp:close(S),
     Me ! done
   end) || K <- lists:seq(1, 8)],
  [receive done -> ok end || _ <- lists:seq(1, 8)],
  io:format("4000 right~n"),
  init:stop().
"""


@app("erlang", "erl", "erlc")
def erlang(run):
    """gen_tcp, {active, once} (EPOLLONESHOT): 8 processes, 500 messages of up
    to 20 kB each."""
    port = run.port()
    run.write("echo.erl", ERLANG)
    run.call("erlc", "echo.erl")
    server = run.start("erl", "-noinput", "-eval",
                       f"echo:serve(['{port}','{run.address}']).", port=port)
    said = run.call("erl", "-noinput", "-eval",
                    f"echo:ask(['{port}','{run.address}']).")
    run.stop(server, signal.SIGKILL)
    if "4000 right" not in said:
        raise Failed(said)
    return {"said": said}, "4,000 messages"


DISTRIBUTION = """
-module(nodes).
-export([serve/0, ask/1]).
serve() -> register(echo, self()), loop().
loop() -> receive {From, B} -> From ! {self(), B}, loop() end.
ask([Node]) ->
  pong = net_adm:ping(Node),
  lists:foreach(fun(I) ->
    B = binary:copy(<<I>>, (I * 37) rem 20000),
    {echo, Node} ! {self(), B},
    receive {_, B} -> ok end
  end, lists:seq(1, 3000)),
  L = lists:seq(1, 1000000),
  L = lists:reverse(rpc:call(Node, lists, reverse, [L])),
  io:format("3001 right~n"),
  init:stop().
"""


@app("erlang-nodes", "erl", "erlc")
def erlang_nodes(run):
    """Two nodes: 3,000 messages there and back, one of 5 MB by rpc."""
    port = run.port()
    run.write("nodes.erl", DISTRIBUTION)
    run.call("erlc", "nodes.erl")
    words = ["erl", "-noinput", "-setcookie", "c", "-start_epmd", "false",
             "-erl_epmd_port", port]
    server = run.start(*words, "-name", f"one@{run.address}", "-eval",
                       "nodes:serve().", port=port)
    said = run.call(*words, "-name", f"two@{run.address}", "-dist_listen",
                    "false", "-eval", f"nodes:ask(['one@{run.address}']).")
    run.stop(server, signal.SIGKILL)
    if "3001 right" not in said:
        raise Failed(said)
    return {"said": said}, "3,001 messages"


ZEROMQ = """
import sys, zmq
role, host, port = sys.argv[1:]
context = zmq.Context()
if role == "serve":
    end = context.socket(zmq.REP)
    end.bind(f"tcp://{host}:{port}")
    while (message := end.recv()) != b"end":
        end.send(message)
    end.send(b"end")
    end.close(linger=5000)
else:
    end = context.socket(zmq.REQ)
    end.connect(f"tcp://{host}:{port}")
    for i in range(3000):
        text = bytes([i % 256]) * (i * 7 % 5000)
        end.send(text)
        assert end.recv() == text
    end.send(b"y" * 5000000)
    print(len(end.recv()))
    end.send(b"end")
    end.recv()
"""


@app("zeromq", "/usr/bin/python3")
def zeromq(run):
    """REQ and REP: 3,000 messages and one of 5 MB."""
    port = run.port()
    script = run.write("messages.py", ZEROMQ)
    server = run.start("/usr/bin/python3", script, "serve", run.address, port,
                       port=port)
    said = run.call("/usr/bin/python3", script, "ask", run.address, port)
    run.stop(server, how=None)
    return {"said": said}, "3,001 messages"


@app("rsync", "rsync", share=0,
     why="the receiver is two processes: `pinned_fork`")
def rsync(run):
    """A daemon; 32 MiB there and back."""
    port = run.port()
    here = run.directory
    (here / "store").mkdir()
    (here / "store").chmod(0o777)
    run.write("in", BIG)
    conf = run.write("rsyncd.conf", f"use chroot = no\n[store]\npath = {here}"
                     "/store\nread only = no\nuid = root\ngid = root\n")
    server = run.start("rsync", "--daemon", "--no-detach", f"--config={conf}",
                       f"--port={port}", f"--address={run.address}", port=port)
    url = f"rsync://{run.address}:{port}/store/copy"
    run.call("rsync", here / "in", url)
    run.call("rsync", url, here / "out")
    run.stop(server, statuses=(0, 20))
    return {"out": digest((here / "out").read_bytes())}, "2 times 32 MiB"


@app("lighttpd", "lighttpd", "curl", "wrk")
def lighttpd(run):
    """wrk over 10 kept connections, 10 times 32 MiB over another."""
    port = run.port()
    run.write("www/big", BIG)
    run.write("www/small", "hello\n")
    server = run.start("lighttpd", "-D", "-f", run.write("lighttpd.conf", f"""
server.document-root = "{run.directory}/www"
server.bind = "{run.address}"
server.port = {port}
"""), port=port)
    url = f"http://{run.address}:{port}"
    text = run.call("wrk", "-t", 1, "-c", 10, "-d", run.seconds(1),
                    f"{url}/small")
    if "Non-2xx" in text or "Socket errors" in text:
        raise Failed(text)
    run.call("curl", "-sS", *[word for i in range(10) for word in (
        "-o", f"{run.directory}/big{i}", f"{url}/big")])
    big = {digest((run.directory / f"big{i}").read_bytes()) for i in range(10)}
    run.stop(server)
    speed = next(l for l in text.splitlines() if "Requests/sec" in l)
    return {"big": sorted(big)}, " ".join(speed.split())


@app("puma", "puma", "wrk")
def puma(run):
    """Ruby: 2 worker processes with 4 threads each, wrk over 8 connections."""
    port = run.port()
    rack = run.write("config.ru", "run lambda { |_| [200, {'Content-Type' => "
                     "'text/plain'}, ['hello']] }\n")
    server = run.start("puma", "-b", f"tcp://{run.address}:{port}", "-t", "4:4",
                       "-w", 2, rack, port=port)
    url = f"http://{run.address}:{port}/"
    said = run.call("curl", "-sS", "--retry", 10, "--retry-connrefused", url)
    text = run.call("wrk", "-t", 1, "-c", 8, "-d", run.seconds(1), url)
    if "Non-2xx" in text or "Socket errors" in text:
        raise Failed(text)
    run.stop(server, statuses=(0, 1))
    speed = next(l for l in text.splitlines() if "Requests/sec" in l)
    return {"said": said}, " ".join(speed.split())


@app("knot", "knotd", "kdig", "dnsperf")
def knot(run):
    """DNS over TCP, 3 threads: a zone of 20,000 names, 300 questions of one
    client, dnsperf with 4 and with 32 connections."""
    port = run.port()
    names = "".join(f"h{i} A 10.{i >> 16}.{i >> 8 & 255}.{i & 255}\n"
                    for i in range(20000))
    run.write("zone", "$ORIGIN test.\n$TTL 60\n@ SOA ns a 1 5 2 600 60\n"
                      "@ NS ns\nns A 127.0.0.1\n" + names)
    script = run.write("knot.conf", f"""\
server:
    rundir: "{run.directory}"
    listen: {run.address}@{port}
    tcp-workers: 3
    tcp-reuseport: on
database:
    storage: "{run.directory}"
acl:
  - id: all
    address: 0.0.0.0/0
    action: transfer
zone:
  - domain: test
    storage: "{run.directory}"
    file: zone
    acl: all
    journal-content: none
    zonefile-sync: -1
""")
    server = run.start("knotd", "-c", script, port=port)
    ask = ["kdig", f"@{run.address}", "-p", port, "+tcp"]
    wait_until(lambda: "10.0.0.5" in run.call(*ask, "+short", "h5.test",
                                              statuses=(0, 1)),
               20, "the zone is not loaded")
    zone = digest(run.call(*ask, "test", "AXFR", "+noall", "+answer",
                           text=False))
    said = run.call(*ask, "+keepopen", "+short",
                    *[f"h{i}.test" for i in range(300)])
    questions = run.write("questions", "".join(f"h{i}.test A\n"
                                               for i in range(20000)))
    rates = []
    for count in (4, 32):
        text = run.call("dnsperf", "-m", "tcp", "-s", run.address, "-p", port,
                        "-d", questions, "-c", count, "-n", 5)
        done = re.search(r"Queries completed:\s+(\d+)", text)
        if not done or done.group(1) != "100000":
            raise Failed(f"dnsperf printed: {text}")
        rates.append(re.search(r"Queries per second:\s+(\d+)", text).group(1))
    run.stop(server)
    return {"zone": zone, "said": digest(said.encode())}, (
        f"{' and '.join(rates)} questions/s")
