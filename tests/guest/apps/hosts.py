"""Processes on the hosts of a test in guests, driven from one of them.

With one guest there is only Host; in a pair the server's guest runs serve(),
and the client's drives it by a RemoteHost.  Only for tests: whoever can connect
to the port can start programs.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

CONTROL_PORT = 19999
STATS = "@STATS@"  # in words and variables: the process's own new directory


class Failed(Exception):
    """A program did not do what it should."""


class Host:
    """Starts and ends programs on this host."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="host-"))
        self.directory.chmod(0o755)
        self.runs = {}

    def _launch(self, words, env, output, errors):
        stats = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        stats.chmod(0o777)
        words = [w.replace(STATS, str(stats)) for w in words]
        env = {k: v.replace(STATS, str(stats)) for k, v in env.items()}
        return stats, subprocess.Popen(
            words, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=errors, start_new_session=True,
            cwd=self.directory)

    def write(self, name, text):
        """Writes a file; returns its path."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    def start(self, key, words, env, until, limit):
        """Starts a server, and returns when it can be connected to: when it has
        written the text `until`, or listens on the port `until`."""
        log = (self.directory / f"log-{key}").open("w+b")
        stats, process = self._launch(words, env, log, log)
        self.runs[key] = (process, log, stats)
        end = time.monotonic() + limit
        while not self._listens(until, log):
            if process.poll() is not None:
                raise Failed(f"the server ended: {self._tail(log)}")
            if time.monotonic() > end:
                raise Failed("the server does not listen")
            time.sleep(0.01)

    @staticmethod
    def _listens(until, log):
        if isinstance(until, int):
            return subprocess.run(["guestctl", "listening", str(until), "0"],
                                  capture_output=True,
                                  check=False).returncode == 0
        return until in pathlib.Path(log.name).read_text(errors="replace")

    @staticmethod
    def _tail(log):
        text = pathlib.Path(log.name).read_text(errors="replace")
        return text.strip()[-500:]

    def finish(self, key, how, limit):
        """Sends a server a signal, if `how` is one; it then has `limit` s.
        Returns its status, None if it had to be killed, and what it left."""
        process, log, stats = self.runs.pop(key)
        if how is not None and process.poll() is None:
            process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=limit)
        status = process.poll()
        end_group(process)
        text = self._tail(log)
        log.close()
        return {"status": status, "files": files_of(stats), "text": text}

    def run(self, words, env, limit):
        """Runs a program to its end; returns its output, errors and files."""
        stats, process = self._launch(words, env, subprocess.PIPE,
                                      subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{words[0]} still ran after {limit:.0f} s") from None
        finally:
            end_group(process)
        out, err = (b.decode(errors="replace") for b in (out, err))
        if process.returncode != 0:
            raise Failed(f"the status of {words[0]} is {process.returncode}: "
                         f"{out.strip()[-300:]} {err.strip()[-500:]}")
        return out, err, files_of(stats)


def end_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def files_of(directory):
    return {f.name: f.read_text() for f in directory.iterdir()}


class RemoteHost:
    """Host's servers, by the process that serves on the other host."""

    def __init__(self, address):
        end = time.monotonic() + 20
        while True:
            try:
                self.socket = socket.create_connection((address, CONTROL_PORT))
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        self.file = self.socket.makefile("rw")

    def _call(self, *request):
        self.file.write(json.dumps(request) + "\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer["value"]

    def start(self, *arguments):
        return self._call("start", *arguments)

    def finish(self, *arguments):
        return self._call("finish", *arguments)

    def write(self, *arguments):
        return self._call("write", *arguments)


def serve():
    """Does what a RemoteHost asks for, until it goes."""
    host = Host()
    with socket.create_server(("", CONTROL_PORT)) as listener:
        connection, _ = listener.accept()
    with connection, connection.makefile("rw") as file:
        for line in file:
            what, *arguments = json.loads(line)
            try:
                answer = {"value": getattr(host, what)(*arguments)}
            except Failed as failed:
                answer = {"failed": str(failed)}
            file.write(json.dumps(answer) + "\n")
            file.flush()


def lane_bytes(all_files):
    """{lane: bytes in and out} of processes under rcsock, by their stats."""
    total = {"tcp": 0, "shm": 0, "rdma": 0}
    for files in all_files:
        stats = [text for name, text in files.items() if name.endswith(".json")]
        if not stats:
            raise Failed("a process under rcsock left no stats")
        for text in stats:
            for lane, counts in json.loads(text)["lanes"].items():
                total[lane] += counts["tx_bytes"] + counts["rx_bytes"]
    return total
