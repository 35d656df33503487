"""iperf3 and 2, socat, the netcats, stress-ng and git."""

import hashlib
import json
import re
import signal
import subprocess

from harness import Failed, app, digest_file

# What goes over TCP until the lane is there is to be little beside it.
SIZE = 384 << 20


def fill(run, name, size=SIZE):
    """A file, by pieces as well (digest_file)."""
    piece = hashlib.sha256(b"nc").digest() * (1 << 15)
    with (run.directory / name).open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)


@app("iperf3", "iperf3")
def iperf3(run):
    """One stream, 4, -R, --bidir, 200-byte writes."""
    speeds, same = [], {}
    for name, options in {"one": [], "four": ["-P", 4], "back": ["-R"],
                          "both": ["--bidir"], "small": ["-l", 200]}.items():
        port = run.port()
        # One test, after which the server ends by itself.
        server = run.start("iperf3", "-s", "-1", "-B", run.address, "-p", port,
                           port=port)
        amount = run.large(["-t", 1], ["-n", "1000M"])
        if name == "small":
            amount = ["-t", 1]
        text = run.call("iperf3", "-c", run.address, "-p", port, "-J", *amount,
                        *options, limit=240)
        report = json.loads(text)
        end = report["end"]
        sent, received = end["sum_sent"], end["sum_received"]
        if received["bytes"] == 0 or received["bytes"] > sent["bytes"]:
            raise Failed(f"iperf3: {sent} {received}")
        run.stop(server, how=None)
        speeds.append(f"{name} {received['bits_per_second'] / 1e9:.1f}")
        same[name] = "error" in report
    return same, ", ".join(speeds) + " Gbit/s"


@app("iperf2", "iperf")
def iperf2(run):
    """One stream, 4, -R, --full-duplex, 200-byte writes (SO_TIMESTAMP)."""
    speeds = []
    for options in [], ["-P", 4], ["-R"], ["--full-duplex"], ["-l", 200]:
        port = run.port()
        server = run.start("iperf", "-s", "-B", run.address, "-p", port,
                           port=port)
        text = run.call("iperf", "-c", run.address, "-p", port,
                        "-t", run.large(1, 12), "-f", "m", *options, limit=60)
        run.stop(server, signal.SIGINT)
        found = re.findall(r"([0-9.]+) Mbits/sec", text)
        if not found or "error" in text:
            raise Failed(text)
        speeds.append(f"{float(found[-1]) / 1000:.1f}")
    return {"runs": len(speeds)}, ", ".join(speeds) + " Gbit/s"


def netcat(run, server_words, client_words):
    """A file from the client to the server."""
    port = run.port()
    fill(run, "in")
    out = run.directory / "out"
    with out.open("wb") as file:
        # An end of its input would shut the connection before it is used.
        server = run.start(*server_words(port), port=port, output=file,
                           stdin=subprocess.PIPE)
    run.call("sh", "-c", f"exec {client_words(port)} <in", limit=60)
    run.stop(server, how=None, limit=30)
    return {"file": digest_file(out)}, f"{SIZE >> 20} MiB"


@app("nc-openbsd", "nc.openbsd")
def nc_openbsd(run):
    """384 MiB one way."""
    return netcat(run, lambda p: ("nc.openbsd", "-l", run.address, p),
                  lambda p: f"nc.openbsd -N {run.address} {p}")


@app("nc-traditional", "nc.traditional")
def nc_traditional(run):
    """384 MiB one way."""
    return netcat(
        run, lambda p: ("nc.traditional", "-l", "-s", run.address, "-p", p),
        lambda p: f"nc.traditional -q 0 {run.address} {p}")


@app("ncat", "ncat")
def ncat(run):
    """384 MiB one way."""
    return netcat(
        run, lambda p: ("ncat", "-l", "--recv-only", run.address, p),
        lambda p: f"ncat --send-only {run.address} {p}")


@app("socat", "socat")
def socat(run):
    """384 MiB one way."""
    return netcat(
        run, lambda p: ("socat", "-u",
                        f"TCP-LISTEN:{p},bind={run.address},reuseaddr", "-"),
        lambda p: f"socat -u - TCP:{run.address}:{p}")


@app("socat-relay", "socat", share_rdma=0.3,
     why_rdma="four connections at a time, which have sent half by TCP before "
              "they have lanes")
def socat_relay(run):
    """A relay that forks, before a server that is cat by fork and exec; 96
    MiB there and back."""
    port, front = run.port(), run.port()
    back = run.start("socat",
                     f"TCP-LISTEN:{port},bind={run.address},reuseaddr,fork",
                     "EXEC:cat,nofork", port=port)
    # (It drops what is on its way half a second after one end, unless told.)
    relay = run.start("socat", "-t", "20",
                      f"TCP-LISTEN:{front},bind={run.address},reuseaddr,fork",
                      f"TCP:{run.address}:{port}", port=front)
    fill(run, "in", 96 << 20)
    answers = []
    for _ in range(2):
        run.call("sh", "-c",
                 f"exec socat -t 20 - TCP:{run.address}:{front} <in >out",
                 limit=120)
        answers.append(digest_file(run.directory / "out"))
    for server in (relay, back):
        run.stop(server, statuses=(0, 143))
    return {"answers": answers}, "2 times 96 MiB"


STRESSORS = ["sock", "sockmany", "sockabuse", "sockfd", "sockpair", "sendfile",
             "epoll", "poll", "splice", "udp", "fork", "vfork", "clone"]


@app("stress-ng", "stress-ng", share=0.3,
     why="connections of 2 ms: `short_lived`")
def stress_ng(run):
    """Each socket stressor, and some that fork, for 2 seconds with --verify."""
    same = {}
    for name in STRESSORS:
        port = run.port()
        more = [f"--{name}-port", port] if name in (
            "sock", "sockmany", "sockabuse", "epoll") else []
        status = run.call(
            "sh", "-c", '"$@" >stress.log 2>&1; echo $?', "sh", "stress-ng",
            f"--{name}", 2, "-t", 2, "--verify", "--temp-path", run.directory,
            *more, limit=60)
        if int(status) != 0:
            raise Failed(f"--{name} ended with {status.strip()}: "
                         f"{run.call('tail', '-n', 5, 'stress.log')}")
        same[name] = 0
    return same, "done"


@app("git", "git", share=0,
     why="two processes hold the connection while data flows: `pinned_fork`")
def git(run):
    """clone, push and ls-remote over git://."""
    work, port = run.directory, run.port()
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a",
           "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a",
           "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
           "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z"}
    plain = {"LD_PRELOAD": "", **who}
    run.call("git", "init", "-q", "-b", "main", "origin", **plain)
    for i in range(3):
        for j in range(20):
            run.write(f"origin/d{j}/f{i}", hashlib.sha256(
                f"{i} {j}".encode()).digest() * 4000)
        run.call("git", "-C", "origin", "add", ".", **plain)
        run.call("git", "-C", "origin", "commit", "-q", "-m", f"{i}", **plain)
    server = run.start("git", "daemon", "--reuseaddr", f"--port={port}",
                       f"--listen={run.address}", "--export-all",
                       "--enable=receive-pack", f"--base-path={work}", port=port)
    url = f"git://{run.address}:{port}/origin"
    run.call("git", "clone", "-q", url, "copy", **who)
    run.call("git", "-C", "copy", "fsck", "--full", **plain)
    fill(run, "copy/new", 8 << 20)
    run.call("git", "-C", "copy", "add", ".", **plain)
    run.call("git", "-C", "copy", "commit", "-q", "-m", "new", **plain)
    run.call("git", "-C", "copy", "push", "-q", "origin", "HEAD:refs/heads/b",
             **who)
    heads = run.call("git", "ls-remote", url, **who)
    run.call("git", "-C", "origin", "fsck", "--full", **plain)
    run.stop(server, how=signal.SIGTERM, statuses=(0, 143))
    return {"heads": re.sub(r"\s+", " ", heads)}, "clone, push, ls-remote"
