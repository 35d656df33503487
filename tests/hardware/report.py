"""The report: text for people, then the same as JSON, in one file."""

import json
import socket
import time

MARK = "----- the same as JSON, for programs -----"
STATES = "done", "failed", "skipped"


class Report:
    """The steps of a run, in order.  Written anew after each."""

    def __init__(self, path, options):
        self.path = path
        self.hidden = {}  # what names a host: what is written instead
        self.data = {"report": "rcsock tests/hardware", "version": 1,
                     "options": options, "hosts": {}, "steps": []}
        self.text = []

    def hide(self, word, shown):
        """The report does not have this word."""
        if word:
            self.hidden[str(word)] = shown

    def hide_host_names(self):
        name = socket.gethostname()
        for word in {name, name.split(".")[0]}:
            if len(word) > 3:
                self.hide(word, "HOST")

    def add(self, name, state, seconds, lines, data=None, why=None):
        assert state in STATES
        step = {"step": name, "state": state, "seconds": round(seconds, 1)}
        if why:
            step["why"] = why
        step["text"] = lines
        if data is not None:
            step["data"] = data
        self.data["steps"].append(step)
        self.write()

    def counts(self):
        return {state: sum(1 for step in self.data["steps"]
                           if step["state"] == state) for state in STATES}

    def _words(self):
        counts = self.counts()
        yield "rcsock on hardware: report of tests/hardware/run"
        yield ", ".join(f"{counts[state]} {state}" for state in STATES)
        yield ""
        yield "No host name, IP address or GID is meant to be in here.  Read it"
        yield "before you send it."
        for step in self.data["steps"]:
            yield ""
            yield (f"== {step['step']}: {step['state']} "
                   f"({step['seconds']:.1f} s)")
            if "why" in step:
                yield from ("   why: " + step["why"]).splitlines()
            yield from ("   " + line for line in step["text"])
        yield ""

    def _scrub(self, text):
        for word in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(word, self.hidden[word])
        return text

    def write(self):
        text = "\n".join(self._words())
        whole = (text + "\n" + MARK + "\n"
                 + json.dumps(self.data, indent=1) + "\n")
        with open(self.path, "w") as file:
            file.write(self._scrub(whole))


class Step:
    """For a `with`: times a step, and turns what it raises into its state."""

    def __init__(self, report, name, failed, skipped):
        self.report = report
        self.name = name
        self.failed, self.skipped = failed, skipped
        self.lines = []
        self.data = None
        self.wrong = None

    def __enter__(self):
        print(f"== {self.name} ...", flush=True)
        self.start = time.monotonic()
        return self

    def say(self, line):
        self.lines.append(line)
        print("   " + line, flush=True)

    def __exit__(self, kind, error, _):
        state, why = "done", None
        if kind is None:
            if self.wrong:
                state, why = "failed", self.wrong
        elif issubclass(kind, self.skipped):
            state, why = "skipped", str(error)
        elif issubclass(kind, self.failed):
            state, why = "failed", str(error)
        elif issubclass(kind, KeyboardInterrupt):
            state, why = "skipped", "interrupted"
        else:
            state, why = "failed", f"{kind.__name__}: {error}"
        print(f"   {state}" + (f": {why}" if why else ""), flush=True)
        self.report.add(self.name, state, time.monotonic() - self.start,
                        self.lines, self.data, why)
        return kind is None or not issubclass(
            kind, (KeyboardInterrupt, SystemExit))
