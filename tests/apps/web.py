"""nginx, Apache httpd, curl and wget."""

import hashlib
import os
import re
import signal

from harness import Failed, app, digest_file, wait_until

PAGE = "all work and no play\n" * 1000
# What goes over TCP until the lane is there is to be little beside it.
LARGE = 320 << 20
# Enough for many turns of sendfile, and soon done on a slow machine.
MIDDLE = 8 << 20

NGINX = """\
worker_processes 3;
user root;
error_log @DIR@/nginx.log;
pid @DIR@/nginx.pid;
worker_shutdown_timeout 20s;
# It makes the environment of an upgrade's new program of these alone.
env LD_PRELOAD; env RCSOCK_LANES; env RCSOCK_PROMOTE_OPS; env RCSOCK_STATS;
env RCSOCK_KEY_FILE;
events {{ worker_connections 512; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  client_max_body_size 200m;
  client_body_temp_path @DIR@/body;
  proxy_temp_path @DIR@/proxy;
  fastcgi_temp_path @DIR@/fastcgi;
  uwsgi_temp_path @DIR@/uwsgi;
  scgi_temp_path @DIR@/scgi;
  upstream back {{ server {address}:{port}; keepalive 16; }}
  server {{
    listen {address}:{port} reuseport;
    root @DIR@/www;
  }}
  server {{
    listen {address}:{front};
    location / {{
      proxy_pass http://back;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""


def write_large(run, name, size=LARGE):
    """In pieces, as all that is large is read: User-mode Linux needs a mapping
    for each page of a process, and the host has a limit of those."""
    block = hashlib.sha256(b"large").digest() * (8 * 1024)
    with open(run.write(name, b""), "wb") as file:
        for at in range(0, size, len(block)):
            file.write(block[:size - at])


class Nginx:
    """A daemon with workers, and in front of it another server as a proxy."""

    def __init__(self, run):
        self.run = run
        self.port, self.front = run.port(), run.port()
        run.write("www/page.txt", PAGE)
        write_large(run, "www/large")
        write_large(run, "www/middle", MIDDLE)
        text = NGINX.format(address=run.address, port=self.port,
                            front=self.front)
        self.config = run.write(
            "nginx.conf", text.replace("@DIR@", str(run.directory)))
        # `daemon on` is what it does by itself: the process that was started
        # ends when the daemon is ready.
        run.start(*self.words(), port=self.front, daemon=True)
        pid_file = run.directory / "nginx.pid"
        self.pid = int(wait_until(
            lambda: pid_file.exists() and pid_file.read_text().strip(), 20,
            "nginx has no pid file"))

    def words(self, *more):
        return ("nginx", "-e", self.run.directory / "nginx.log", "-c",
                self.config, *more)

    def url(self, front=False):
        return f"http://{self.run.address}:{self.front if front else self.port}"

    def stop(self):
        os.kill(self.pid, signal.SIGQUIT)
        pid_file = self.run.directory / "nginx.pid"
        wait_until(lambda: not pid_file.exists(), 30, "nginx does not end")
        text = (self.run.directory / "nginx.log").read_text()
        if re.search(r"\[(alert|emerg|crit)\]", text):
            raise Failed(f"nginx's log: {text[-500:]}")


def rate(text):
    found = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if (not found or float(found[1]) == 0 or "Non-2xx" in text or
            "Socket errors" in text):
        raise Failed(f"wrk printed: {text}")
    return float(found[1])


def hard_errors(text):
    """A worker that goes closes its idle keep-alive connections, and wrk may
    have just written to one: a read error, as over TCP."""
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), "
                       r"write (\d+), timeout (\d+)", text)
    if not re.search(r"Requests/sec:\s+[\d.]+", text) or "Non-2xx" in text:
        raise Failed(f"wrk printed: {text}")
    return [errors[1], errors[4]] if errors else ["0", "0"]


@app("nginx", "nginx", "wrk", "curl")
def nginx(run):
    """daemon on, 3 workers, sendfile of 320 MiB, proxy with kept connections,
    wrk."""
    server = Nginx(run)
    wrk = ("wrk", "-t", 2, "-c", 30, "--timeout", "10s")
    straight = rate(run.call(*wrk, "-d", run.seconds(2),
                             server.url() + "/page.txt"))
    proxied = rate(run.call(*wrk, "-d", run.seconds(2),
                            server.url(True) + "/page.txt"))
    rate(run.call("wrk", "-t", 1, "-c", 4, "--timeout", "20s", "-d",
                  run.seconds(2), server.url() + "/middle"))
    # Over one connection.
    run.call("curl", "-sS", "--fail", *run.large(1, 4) * [
        "-o", "large.out", server.url() + "/large"], limit=240)
    large = digest_file(run.directory / "large.out")
    if large != digest_file(run.directory / "www/large"):
        raise Failed("/large did not come as it is")
    server.stop()
    return {"large": large}, f"{straight:.0f} requests/s, {proxied:.0f} by proxy"


@app("nginx-reload", "nginx", "wrk")
def nginx_reload(run):
    """Three reloads while wrk runs through the proxy: no failed connection."""
    server = Nginx(run)
    out = (run.directory / "wrk.out").open("wb")
    load = run.start("wrk", "-t", 1, "-c", 20, "-d", run.seconds(5),
                     "--timeout", "10s",
                     server.url(True) + "/page.txt", output=out)

    def workers():
        return {int(pid) for pid in re.findall(
            r"\d+", run.call("ps", "-o", "pid=", "--ppid", server.pid,
                             LD_PRELOAD="", statuses=(0, 1)))}

    changes = 0
    for _ in range(3):
        before = workers()
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda b=before: workers() - b, 10, "no new workers")
        changes += 1
    run.stop(load, how=None, limit=30)
    found = hard_errors((run.directory / "wrk.out").read_text())
    server.stop()
    return {"reloads": changes, "hard errors": found}, "done"


@app("nginx-upgrade", "nginx", "wrk")
def nginx_upgrade(run):
    """Another program takes over while wrk runs (USR2: exec, with the listeners):
    no failed connection."""
    server = Nginx(run)
    pid_file = run.directory / "nginx.pid"
    out = (run.directory / "wrk.out").open("wb")
    load = run.start("wrk", "-t", 1, "-c", 20, "-d", run.seconds(4),
                     "--timeout", "10s",
                     server.url(True) + "/page.txt", output=out)
    os.kill(server.pid, signal.SIGUSR2)

    def new():
        text = pid_file.read_text().strip() if pid_file.exists() else ""
        return int(text) if text and int(text) != server.pid else 0

    pid = wait_until(new, 20, "no new nginx")
    os.kill(server.pid, signal.SIGQUIT)
    run.stop(load, how=None, limit=30)
    found = hard_errors((run.directory / "wrk.out").read_text())
    server.pid = pid
    got = run.call("curl", "-sS", "--fail", server.url() + "/middle",
                   text=False)
    server.stop()
    return {"hard errors": found, "middle": digest(got)}, "done"


STUNNEL = """foreground = yes
pid =
{client}
[one]
accept = {address}:{accept}
connect = {address}:{connect}
{cert}
"""


@app("stunnel", "stunnel4", "openssl", "nginx", "wrk")
def stunnel(run):
    """TLS from one to the other, before nginx: a thread with poll for each
    connection; wrk with 10 of them, 48 MiB over one."""
    server = Nginx(run)
    inner, outer = run.port(), run.port()
    run.call("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
             "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=test",
             LD_PRELOAD="")
    cert = f"cert = {run.directory}/cert.pem\nkey = {run.directory}/key.pem"
    ends = [run.start("stunnel4", run.write(f"{accept}.conf", STUNNEL.format(
        client=client, address=run.address, accept=accept, connect=connect,
        cert=cert)), port=accept) for client, accept, connect in (
            ("", inner, server.port), ("client = yes", outer, inner))]
    url = f"http://{run.address}:{outer}"
    speed = rate(run.call("wrk", "-t", 1, "-c", 10, "-d", run.seconds(2),
                          url + "/page.txt"))
    run.call("sh", "-c", 'exec curl -sS --fail "$@" >middle.out', "sh",
             *[url + "/middle"] * run.large(6, 16), limit=120)
    for end in ends:
        run.stop(end)
    server.stop()
    return ({"middle": digest_file(run.directory / "middle.out")},
            f"{speed:.0f} requests/s")


@app("curl", "nginx", "curl")
def curl(run):
    """Large files, 300 small ones, ranges in parallel."""
    server = Nginx(run)
    run.call("curl", "-sS", "--fail", "-o", "large.out",
             server.url() + "/large", limit=60)
    pages = run.call("curl", "-sS", "--fail",
                     f"{server.url(True)}/page.txt?[1-300]", text=False)
    both = run.call("curl", "-sS", "--fail", "--parallel", "--parallel-max",
                    2, *[w for i in range(2) for w in (
                        "-o", f"{run.directory}/part{i}",
                        "-r", f"{i << 20}-{(i + 300 << 20) - 1}",
                        server.url() + "/large")])
    parts = [digest_file(run.directory / f"part{i}") for i in range(2)]
    server.stop()
    return ({"large": digest_file(run.directory / "large.out"), "pages": digest(pages), "parts": parts,
             "text": both}, "done")


@app("wget", "nginx", "wget")
def wget(run):
    """A large file, 200 small ones, one that goes on."""
    server = Nginx(run)
    run.call("wget", "-q", "-O", "large.out", server.url() + "/large")
    urls = run.write("urls", "".join(f"{server.url()}/page.txt?{i}\n"
                                     for i in range(200)))
    run.call("wget", "-q", "-O", "pages.out", "-i", urls)
    # One that goes on where another stopped.
    write_large(run, "part", 5_000_000)
    os.chmod(run.directory / "part", 0o666)
    run.call("wget", "-q", "-c", "-O", "part", server.url() + "/large")
    files = {name: digest_file(run.directory / name)
             for name in ("large.out", "pages.out", "part")}
    server.stop()
    return files, "done"


APACHE = """\
ServerRoot {dir}
ServerName test
Listen {address}:{port}
PidFile {dir}/httpd.pid
ErrorLog {dir}/error.log
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
DocumentRoot {dir}/www
KeepAlive On
MaxKeepAliveRequests 0
StartServers 3
EnableSendfile On
<Directory />
Require all granted
</Directory>
"""


def apache(run, mpm):
    port = run.port()
    run.write("www/page.txt", PAGE)
    write_large(run, "www/large")
    config = run.write("httpd.conf", APACHE.format(
        dir=run.directory, address=run.address, port=port, mpm=mpm,
        modules="/usr/lib/apache2/modules"))
    server = run.start("apache2", "-f", config, "-DFOREGROUND", port=port)
    url = f"http://{run.address}:{port}"
    requests = 20000
    text = run.call("ab", "-q", "-k", "-c", 20, "-n", requests,
                    url + "/page.txt")
    found = re.search(r"Requests per second:\s+([\d.]+)", text)
    failed = re.search(r"Failed requests:\s+(\d+)", text)
    kept = re.search(r"Keep-Alive requests:\s+(\d+)", text)
    if not found or not failed or not kept:
        raise Failed(f"ab printed: {text}")
    # Where no worker is free, as on a busy machine, a server closes connections
    # that it has kept, over TCP too, and ab calls it a failure.
    failed = max(0, int(failed[1]) - (requests - int(kept[1])))
    large = run.call("curl", "-sS", "--fail", url + "/large", text=False)
    run.stop(server, limit=30)
    return ({"failed": failed, "large": digest(large)},
            f"{found[1]} requests/s")


@app("apache-prefork", "apache2", "ab", "curl", user="www-data")
def apache_prefork(run):
    """ab -k with 20 connections; a large file."""
    return apache(run, "prefork")


@app("apache-event", "apache2", "ab", "curl", user="www-data")
def apache_event(run):
    """ab -k with 20 connections; a large file."""
    return apache(run, "event")


def digest(content):
    return f"{len(content)} {hashlib.sha256(content).hexdigest()[:16]}"
