"""The two ends of a run: what either starts, and how the driver asks the peer.

The peer connects to the driver and shows a token that the driver has made.  Then
requests and answers, a line of JSON each, go over that connection.  A request
names a server of the table below and gives it numbers; it cannot name a program.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import facts

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
# Where `bazel build` leaves them.
PROGRAMS = {
    "rcsock": "tools/rcsock/rcsock",
    "librcsock_preload.so": "preload/librcsock_preload.so",
    "rdma_lane_test": "tests/lane/rdma_lane_test",
    "rdma_test": "tests/rendezvous/rdma_test",
    "teardown": "tests/hardware/teardown",
    "soak": "tests/guest/soak",
}
PERFTEST = "ib_write_lat", "ib_write_bw", "ib_send_lat", "ib_send_bw"


class Failed(Exception):
    """A step did not come to its end; the text says why."""


class Skipped(Exception):
    """A step cannot be done here; the text says why."""


class Programs:
    """Finds the programs: in one folder, or as built in the tree."""

    def __init__(self, folder):
        self.folder = folder

    def find(self, name):
        if self.folder:
            path = os.path.join(self.folder, name)
        else:
            path = os.path.join(ROOT, "bazel-bin", PROGRAMS[name])
        path = os.path.realpath(path)
        if not os.path.exists(path):
            raise Skipped(f"{name} is not there; build it first, see "
                          "tests/hardware/README.md")
        return path

    def bundle(self, folder):
        """Copies all that the other host needs."""
        os.makedirs(folder, exist_ok=True)
        here = os.path.dirname(os.path.abspath(__file__))
        for name in "run", "ends.py", "facts.py", "report.py", "steps.py":
            shutil.copy(os.path.join(here, name), folder)
        for name in PROGRAMS:
            shutil.copy(self.find(name), os.path.join(folder, name))


def tail(text, lines=6):
    return "\n".join(text.strip().splitlines()[-lines:])


class Host:
    """This host's end: its device, and what it runs."""

    def __init__(self, device, address, programs):
        self.device = device
        self.address = address
        self.programs = programs
        self.scratch = tempfile.mkdtemp(prefix="rcsock-hardware.")
        self._running = {}
        self._next = 0

    def close(self):
        for key in list(self._running):
            self.stop(key, 0)
        shutil.rmtree(self.scratch, ignore_errors=True)

    # --- Commands

    def environment(self, more=None):
        # (IN_GUEST: a test may do what it likes with the device.)
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("RCSOCK_", "GTEST_"))
               and k not in ("LD_PRELOAD", "IN_GUEST")}
        env.update(more or {})
        return env

    def under_rcsock(self, stats, spin):
        """Variables of a program that must look for RDMA lanes soon."""
        env = {"LD_PRELOAD": self.programs.find("librcsock_preload.so"),
               "RCSOCK_LANES": "rdma", "RCSOCK_PROMOTE_OPS": "4"}
        if stats:
            env["RCSOCK_STATS"] = stats
        if not spin:
            env["RCSOCK_SPIN_US"] = "0"
        return env

    def run(self, words, limit, env=None, good=(0,)):
        """Runs a command to its end; returns its standard output."""
        try:
            done = subprocess.run(
                [str(w) for w in words], env=self.environment(env),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, timeout=limit, cwd=self.scratch,
                universal_newlines=True, errors="replace", check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"{os.path.basename(words[0])} still ran after "
                         f"{limit} s") from None
        except OSError as error:
            raise Failed(f"{words[0]}: {error.strerror}") from None
        if done.returncode not in good:
            raise Failed(f"{os.path.basename(words[0])} ended with "
                         f"{done.returncode}: "
                         f"{tail(done.stderr) or tail(done.stdout)}")
        return done.stdout

    # --- Servers

    def start(self, what, numbers):
        """Starts a server of the table; returns its key."""
        words, env, port = getattr(self, "_serve_" + what)(numbers)
        self._next += 1
        log = os.path.join(self.scratch, f"{what}.{self._next}")
        with open(log + ".out", "w") as out, open(log + ".err", "w") as err:
            try:
                process = subprocess.Popen(
                    [str(w) for w in words], env=self.environment(env),
                    stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    cwd=self.scratch, start_new_session=True)
            except OSError as error:
                raise Failed(f"{words[0]}: {error.strerror}") from None
        self._running[self._next] = process, log, env.get("RCSOCK_STATS")
        self._listens(self._next, process, port)
        return self._next

    def _listens(self, key, process, port):
        limit = time.monotonic() + 20
        # (Who is not root may not see rdma_cm's listeners.)
        blind = time.monotonic() + 3 if os.geteuid() != 0 else limit
        while not listens(port):
            if process.poll() is None and time.monotonic() > blind:
                return
            if process.poll() is not None or time.monotonic() > limit:
                said = self.stop(key, 0)
                raise Failed("a server does not listen: "
                             + tail(said["err"] or said["out"]))
            time.sleep(0.05)

    def stop(self, key, patience):
        """Waits for a server's end, or ends it; returns what it has left."""
        process, log, stats = self._running.pop(key)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        for number in signal.SIGTERM, signal.SIGKILL:
            if process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        left = {"status": process.returncode}
        for name in "out", "err":
            with open(f"{log}.{name}", errors="replace") as file:
                left[name] = file.read()[-4000:]
        left["stats"] = read_json(stats)
        return left

    def _serve_perf(self, numbers):
        env = {"RCSOCK_PRELOAD": self.programs.find("librcsock_preload.so")}
        if not numbers["spin"]:
            env["RCSOCK_SPIN_US"] = "0"
        port = int(numbers["port"])
        return [self.programs.find("rcsock"), "perf", "-s", "-p", port], env, \
            port

    def _serve_doctor(self, numbers):
        env = {"RCSOCK_PRELOAD": self.programs.find("librcsock_preload.so")}
        port = int(numbers["port"])
        return [self.programs.find("rcsock"), "doctor", "--listen", "-p",
                port], env, port

    def _serve_teardown(self, numbers):
        port = int(numbers["port"])
        stats = os.path.join(self.scratch, "teardown.stats")
        return [self.programs.find("teardown"), "server", port, "--threads",
                int(numbers["threads"])], self.under_rcsock(stats, True), port

    def _serve_soak(self, numbers):
        port = int(numbers["port"])
        stats = os.path.join(self.scratch, "soak.stats")
        return [self.programs.find("soak"), "server", port, "--connections",
                int(numbers["connections"])], \
            self.under_rcsock(stats, True), port

    def _serve_perftest(self, numbers):
        port = int(numbers["port"])
        return self.perftest(numbers), {}, port

    def _serve_rping(self, numbers):
        if shutil.which("rping") is None:
            raise Skipped("rping is not installed (package rdmacm-utils)")
        port = int(numbers["port"])
        return ["rping", "-s", "-p", port], {}, port

    def perftest(self, numbers):
        """The same words at both ends, but for the server's address."""
        program = PERFTEST[int(numbers["program"])]
        if shutil.which(program) is None:
            raise Skipped(f"{program} is not installed (package perftest)")
        words = [program, "-R", "-F", "-d", self.device.name, "-i",
                 self.device.port, "-p", int(numbers["port"]), "-s",
                 int(numbers["size"]), "-n", int(numbers["count"])]
        return words + ["-e"] if numbers["sleep"] else words


def listens(port):
    """Something here listens on the port: of TCP, or of rdma_cm."""
    wanted = f":{port:04X}"
    for path in "/proc/net/tcp", "/proc/net/tcp6":
        with contextlib.suppress(OSError), open(path) as file:
            for line in file:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return True
    text = facts.output("rdma", "resource", "show", "cm_id") or ""
    return any("state LISTEN" in line and f":{port} " in line + " "
               for line in text.splitlines())


def read_json(path):
    try:
        with open(path) as file:
            return json.loads(file.read())
    except (OSError, TypeError, ValueError):
        return None


# --- Between the two


def say(stream, what):
    stream.write(json.dumps(what) + "\n")
    stream.flush()


def hear(stream):
    line = stream.readline()
    if not line:
        raise Failed("the other host's end has gone")
    return json.loads(line)


class Peer:
    """The other host, as the driver sees it."""

    def __init__(self, connection):
        self.stream = connection.makefile("rw")
        self.address = None

    def ask(self, op, **numbers):
        say(self.stream, dict(numbers, op=op))
        answer = hear(self.stream)
        if "failed" in answer:
            raise Failed("there: " + answer["failed"])
        if "skipped" in answer:
            raise Skipped("on the other host " + answer["skipped"])
        return answer["answer"]

    @contextlib.contextmanager
    def serving(self, what, patience=3, **numbers):
        """A server there for the time of a `with`; .left is what it left."""
        class Left:
            left = None
        key = self.ask("start", what=what, numbers=numbers)
        result = Left()
        try:
            yield result
        except BaseException:
            with contextlib.suppress(Failed):
                self.ask("stop", key=key, patience=0)
            raise
        result.left = self.ask("stop", key=key, patience=patience)


def wait_for_peer(port, token, limit, alive):
    """The driver's: a connection that shows the token."""
    family = socket.AF_INET6 if os.path.exists("/proc/net/if_inet6") else \
        socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
        listener.listen(5)
        listener.settimeout(1)
        end = time.monotonic() + limit
        while time.monotonic() < end and alive():
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                continue
            connection.settimeout(10)
            try:
                peer = Peer(connection)
                hello = hear(peer.stream)
            except (OSError, ValueError, Failed):
                connection.close()
                continue
            if not secrets.compare_digest(str(hello.get("token")), token):
                connection.close()
                continue
            connection.settimeout(None)
            peer.address = hello["address"]
            say(peer.stream, {"answer": "welcome"})
            return peer
    raise Failed("the other host's end did not come")


def serve(device, driver, port, token, programs, limit=300):
    """The peer: connects to the driver and does what it asks."""
    end = time.monotonic() + limit
    while True:
        try:
            connection = socket.create_connection((driver, port), 5)
            break
        except OSError as error:
            if time.monotonic() > end:
                raise Failed(f"{driver} port {port}: {error}") from None
            time.sleep(0.5)
    connection.settimeout(None)
    host = Host(device, device.address(driver), programs)
    stream = connection.makefile("rw")
    try:
        say(stream, {"token": token, "address": host.address})
        hear(stream)
        while True:
            request = hear(stream)
            op = request.pop("op")
            if op == "quit":
                return
            try:
                answer = {"answer": answer_to(host, op, request)}
            except Failed as error:
                answer = {"failed": str(error)}
            except Skipped as error:
                answer = {"skipped": str(error)}
            say(stream, answer)
    finally:
        host.close()


def answer_to(host, op, request):
    if op == "facts":
        return facts.of_host(host.device)
    if op == "counters":
        return host.device.counters()
    if op == "start":
        what = request["what"]
        if what not in ("perf", "doctor", "teardown", "soak", "rping",
                        "perftest"):
            raise Failed(f"no such server: {what}")
        return host.start(what, request["numbers"])
    if op == "stop":
        return host.stop(request["key"], min(60, request["patience"]))
    raise Failed(f"no such request: {op}")
