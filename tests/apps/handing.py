"""Connections that change hands: Node's cluster mode and Dante pass them to their
workers by SCM_RIGHTS, and tcpserver, without rcsock, hands them over by exec."""

import shlex
import signal
import sys

import services
from harness import app, digest_file

CLUSTER = """
const cluster = require('cluster');
if (cluster.isPrimary) {
  for (let i = 0; i < 3; ++i) cluster.fork();
  process.on('SIGTERM', () => {
    cluster.disconnect(() => process.exit(0));
    for (const worker of Object.values(cluster.workers)) {
      worker.process.kill('SIGTERM');
    }
  });
} else {
""" + services.NODE_SERVER + "}\n"


@app("node-cluster", "node")
def node_cluster(run):
    """http by a master and 3 workers, which it passes each connection: 1,600
    requests over 8 kept connections, 3 MB answers, a 5 MB body."""
    port = run.port()
    server = run.start("node", run.write("server.js", CLUSTER), port,
                       run.address, port=port)
    said = run.call("node", run.write("client.js", services.NODE_CLIENT), port,
                    run.address)
    run.stop(server)
    return {"said": said}, "1,611 requests"


DANTE = """\
logoutput: stderr
internal: {address} port = {port}
external: {address}
clientmethod: none
socksmethod: none
user.privileged: root
user.unprivileged: root
client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}
socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}
"""


# (A process that passes the connection on must not be amid a look for its peer.)
@app("dante", "danted", "curl", rdma=False,
     settings={"RCSOCK_PROMOTE_OPS": "8"})
def dante(run):
    """A SOCKS server of several processes, which pass connections on: 64 MiB
    through it, 8 times, and 64 MiB by 2 at once."""
    back, port = run.port(), run.port()
    file = run.write("www/big", bytes(range(256)) * (64 << 12))
    server = run.start(sys.executable, "-m", "http.server", back, "--bind",
                       run.address, "-d", run.directory / "www", port=back)
    proxy = run.start("danted", "-f", run.write("danted.conf", DANTE.format(
        address=run.address, port=port)), port=port)
    url = f"http://{run.address}:{back}/big"
    curl = ["curl", "-sS", "--fail", "--socks5", f"{run.address}:{port}"]
    for _ in range(8):
        run.call(*curl, "-o", "one", url)
    run.call(*curl, "--parallel", "-o", "at#1", url + "?[1-2]")
    run.stop(proxy)
    run.stop(server, signal.SIGTERM)
    digests = {digest_file(run.directory / name)
               for name in ["one", "at1", "at2"]}
    return {"same": digests == {digest_file(file)}}, ""


SPEAKER = """
import hashlib, socket, sys
whole = hashlib.sha256()
for n in range(4):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
        for i in range(3000):
            text = b"%08d" % i * (i % 1000 + 1)
            one.sendall(text)
            while text:
                part = one.recv(len(text))
                if not part or not text.startswith(part):
                    sys.exit(f"{len(part)} bytes that were not sent")
                whole.update(part)
                text = text[len(part):]
print(whole.hexdigest())
"""


@app("tcpserver", "tcpserver", "unshare", rdma=False)
def tcpserver(run):
    """cat under rcsock, by a tcpserver without it, in a PID namespace of their
    own: 12,000 messages of up to 8 kB, by 4 connections."""
    port = run.port()
    shim = run.env.get("LD_PRELOAD", "")
    server = shlex.join(["tcpserver", "-H", "-R", run.address, str(port), "env",
                         f"LD_PRELOAD={shim}", "cat"])
    # (The shell stays: the first process of a namespace is everybody's parent.)
    started = run.start("unshare", "--pid", "--fork", "--mount-proc",
                        "--kill-child", "sh", "-c", f"{server}; exit", port=port,
                        LD_PRELOAD="")
    said = run.call(sys.executable, "-c", SPEAKER, run.address, port)
    # (It ignores SIGTERM.)
    run.stop(started, signal.SIGKILL)
    return {"said": said}, "12,000 messages"
