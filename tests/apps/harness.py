"""Runs a program's own work, plain and then under rcsock, and compares.

An app is a function that is given a Run, starts servers and clients by it, and
returns what must be the same in both runs, and a line that says how fast it was.
"""

import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
SHARE = 0.95

APPS = {}


class Failed(Exception):
    """A program did not do what it should."""


@dataclasses.dataclass
class App:
    work: object
    programs: list      # that must be installed
    share: float = SHARE  # of the bytes, on a lane; 0: see `why`
    why: str = ""       # not more
    rdma: bool = True   # fits a guest
    share_rdma: float = SHARE  # the same over RDMA
    why_rdma: str = ""
    user: str = ""      # of all its processes, if root runs this
    settings: dict = dataclasses.field(default_factory=dict)


def app(name, *programs, **options):
    def register(work):
        APPS[name] = App(work, list(programs), **options)
        return work
    return register


def digest_file(path):
    """By pieces: a process of a guest can't map 256 MiB at once."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(program):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return shutil.which(program, path=path)


def adopt_orphans():
    """What a daemon leaves behind becomes a child of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hear_interrupts():
    """A shell's background job ignores SIGINT, and so would all that is started
    here: ^C is part of what is tested."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def children():
    try:
        text = pathlib.Path(
            f"/proc/self/task/{os.getpid()}/children").read_text()
    except FileNotFoundError:  # a kernel without it
        text = ""
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[1]) == os.getpid():
                text += f" {stat.parent.name}"
    return [int(word) for word in text.split()]


def listens(port):
    """True if a TCP socket of this network namespace listens there."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = pathlib.Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == "0A" and int(words[1].split(":")[1], 16) == port:
                return True
    return False


def wait_until(condition, limit, what):
    """Polls: for what has no event that could be waited for."""
    limit *= Run.patience
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"after {limit} s: {what}")
        time.sleep(0.02)


class Run:
    """One run of one app."""

    next_port = 24000
    # Times the limits of all that is waited for: on a busy machine each system
    # call of a guest waits for its turn, several times.
    patience = 1
    in_guest = False

    def __init__(self, one, address, lane, shim, settings):
        self.address = address
        self.lane = lane  # None: plain
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="rcsock-app-"))
        self.directory.chmod(0o777)
        self.stats = self.directory / "stats"
        self.stats.mkdir()
        self.stats.chmod(0o777)
        self.user = one.user if os.geteuid() == 0 else ""
        self.env = {**os.environ, "LC_ALL": "C", "HOME": str(self.directory)}
        for name in [n for n in self.env if n.startswith("RCSOCK_")]:
            del self.env[name]
        self.env.pop("LD_PRELOAD", None)
        if lane:
            # A copy: /root, where it is built, is nothing that others may enter.
            library = self.directory / pathlib.Path(shim).name
            shutil.copyfile(shim, library)
            library.chmod(0o755)
            self.env |= {"LD_PRELOAD": str(library), "RCSOCK_LANES": lane,
                         "RCSOCK_PROMOTE_OPS": "1",
                         "RCSOCK_STATS": f"{self.stats}/%p"}
            if lane == "rdma":
                # Without a key an end that only receives stays on TCP.
                key = self.directory / "key"
                key.write_text("a key that both ends have: " + 32 * "k")
                key.chmod(0o644)
                self.env["RCSOCK_KEY_FILE"] = str(key)
            self.env |= one.settings | settings

    def large(self, native, guest):
        """How much a client moves.  In a guest TCP is several times as fast as
        the software device, and all processes share one CPU: what goes over TCP
        within a tenth of a second, before a connection has its lane, takes the
        lane most of one."""
        return guest if self.in_guest else native

    def seconds(self, native):
        """How long a load lasts.  In a guest of a busy machine a second may not be
        enough to connect."""
        return native * self.patience

    # --- Files and ports

    def write(self, name, content):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o777)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
        return str(path)

    def port(self):
        for _ in range(1000):
            Run.next_port = (24000 if Run.next_port >= 24999
                             else Run.next_port + 1)
            with socket.socket() as probe:
                try:
                    probe.bind((self.address, Run.next_port))
                except OSError:
                    continue
            return Run.next_port
        raise Failed("no free port")

    # --- Processes

    def _options(self, settings):
        options = {"cwd": self.directory, "env": {**self.env, **settings}}
        if self.user:
            entry = pwd.getpwnam(self.user)
            options |= {"user": entry.pw_uid, "group": entry.pw_gid,
                        "extra_groups": []}
        return options

    def start(self, *words, port=None, limit=30, daemon=False, output=None,
              stdin=subprocess.DEVNULL, **settings):
        """A server; returns when it listens on `port`."""
        words = [str(w) for w in words]
        words[0] = find(words[0]) or words[0]
        log = (self.directory / f"log.{len(list(self.directory.iterdir()))}")
        with log.open("wb") as file:
            process = subprocess.Popen(
                words, stdin=stdin, stdout=output or file,
                stderr=file, start_new_session=True, **self._options(settings))
        process.log = log

        def ready():
            status = process.poll()
            if status is not None and not (daemon and status == 0):
                raise Failed(f"{words[0]} ended with {status}: {tail(log)}")
            return port is None or listens(port)

        wait_until(ready, limit, f"{words[0]} does not listen")
        return process

    def stop(self, process, how=signal.SIGTERM, limit=20, statuses=(0,)):
        """Ends a server as its user does."""
        if how is not None:
            process.send_signal(how)
        try:
            status = process.wait(timeout=limit * self.patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"{process.args[0]} does not end") from None
        if status not in (*statuses, -int(how or 0)):
            raise Failed(f"{process.args[0]} ended with {status}: "
                         f"{tail(process.log)}")

    def call(self, *words, limit=60, input=None, statuses=(0,), text=True,
             **settings):
        """A client's whole run; returns its output."""
        words = [str(w) for w in words]
        words[0] = find(words[0]) or words[0]
        limit *= self.patience
        stdin = {"input": input} if input is not None else {
            "stdin": subprocess.DEVNULL}
        if isinstance(input, str):
            stdin["input"] = input.encode()
        try:
            done = subprocess.run(words, capture_output=True, timeout=limit,
                                  check=False, **stdin,
                                  **self._options(settings))
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words)} still ran after "
                         f"{limit} s") from None
        if done.returncode not in statuses:
            raise Failed(
                f"{' '.join(words)} ended with {done.returncode}: "
                f"{done.stdout[-800:].decode(errors='replace')} "
                f"{done.stderr[-800:].decode(errors='replace')}")
        return done.stdout.decode(errors="replace") if text else done.stdout

    # --- The end

    def end(self):
        """Kills what is left; returns how many that was."""
        left = 0
        end = time.monotonic() + 10
        while True:
            # First those that are about to end by themselves.
            reap()
            rest = children()
            if not rest:
                return left
            if time.monotonic() > end:
                for pid in rest:
                    left += 1
                    os.kill(pid, signal.SIGKILL)
                end = time.monotonic() + 10
            time.sleep(0.02)

    def counts(self):
        """What went where, by the statistics of all processes."""
        lanes = {"tcp": 0, "shm": 0, "rdma": 0}
        reasons = {}
        processes = 0
        for file in self.stats.iterdir():
            try:
                one = json.loads(file.read_text())
            except ValueError:
                continue  # of a process that was killed as it wrote
            processes += 1
            for lane, bytes_of in one["lanes"].items():
                lanes[lane] += bytes_of["tx_bytes"] + bytes_of["rx_bytes"]
            for reason, count in one["reasons"].items():
                reasons[reason] = reasons.get(reason, 0) + count
        return {"processes": processes, "bytes": lanes, "reasons": reasons}

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def tail(log):
    return log.read_text(errors="replace")[-800:].strip()


def run_once(one, address, lane, shim, settings, keep):
    """Returns {"ok", "same", "says", ...}."""
    run = Run(one, address, lane, shim, settings)
    start = time.monotonic()
    result = {"ok": False}
    try:
        same, says = one.work(run)
        result |= {"ok": True, "same": same, "says": says}
    except Failed as failed:
        result["failed"] = str(failed)
    except Exception as error:  # pylint: disable=broad-exception-caught
        # What a program printed was not what its app looks for, say: the other
        # programs are run all the same.
        result["failed"] = f"{type(error).__name__}: {error}"
    if not result["ok"]:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
    left = run.end()
    if result["ok"] and left:
        result |= {"ok": False, "failed": f"{left} processes did not end"}
    result["seconds"] = round(time.monotonic() - start, 1)
    if lane:
        result |= run.counts()
    if keep:
        result["directory"] = str(run.directory)
    else:
        run.remove()
    return result


def reasons(one, lane):
    return "; ".join(why for why in (
        one.why, one.why_rdma if lane == "rdma" else "") if why)


def compare(name, address, lane, shim, least, settings, keep=False):
    """Runs one app both ways; returns its entry of the report.

    least: of the bytes, on the lane, for those that are to be there at all."""
    one = APPS[name]
    missing = [p for p in one.programs if find(p) is None]
    entry = {"name": name, "lane": lane}
    if missing:
        return entry | {"ok": False, "regression": False,
                        "failed": f"not installed: {', '.join(missing)} "
                                  f"(tools/install_deps --apps)"}
    plain = run_once(one, address, None, shim, settings, keep)
    entry["plain"] = plain
    if not plain["ok"]:
        return entry | {"ok": False, "regression": False,
                        "failed": f"plain: {plain['failed']}"}
    under = run_once(one, address, lane, shim, settings, keep)
    entry["rcsock"] = under
    moved = sum(under["bytes"].values())
    entry["share"] = round(under["bytes"][lane] / moved, 4) if moved else 0
    failed = ""
    if not under["ok"]:
        failed = under["failed"]
    elif under["same"] != plain["same"]:
        failed = f"{plain['same']} over TCP, {under['same']} under rcsock"
    elif under["processes"] == 0:
        failed = "no process under rcsock left statistics"
    elif entry["share"] < min(one.share, least, *(
            [one.share_rdma] if lane == "rdma" else [])):
        failed = (f"only {100 * entry['share']:.1f} % on the lane: "
                  f"{under['bytes']} {under['reasons']}")
    why = reasons(one, lane)
    if why:
        entry["why"] = why
    return entry | {"ok": not failed, "regression": bool(failed)} | (
        {"failed": failed} if failed else {})
