"""The steps of a run, in order.  Each is given `Run` and a report.Step."""

import collections
import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time

from ends import Failed, Skipped, PERFTEST
import facts

# TCP ports, and those of rdma_cm, from --port on: control, then these.
PERF, DOCTOR, TEARDOWN, SOAK, RPING, PERFTESTS = 1, 2, 3, 4, 5, 6

LATENCY_SIZES = [8, 64, 1 << 10, 64 << 10]
STREAM_SIZES = [64, 64 << 10, 1 << 20]
QUICK_LATENCY_SIZES = [64]
QUICK_STREAM_SIZES = [64 << 10]
QUICK_CONFORMANCE = {
    "rdma_lane_test": "Rdma/*",
    "rdma_test": "*.TwoProcesses:*.OneProcessWithItself:*.PeerIsKilled:"
                 "*.NothingLeaks:*.SameKey:*.DifferentKeys",
}
# What a port's counters are looked at for, whatever the driver calls it.
TROUBLE = re.compile(
    r"err(?!ed)|retry|retrans|timeout|nak|out_of_|discard|drop|cnp|ecn|rnr|dup|"
    r"adp_|slow_restart|symbol|link_down|pause")


def size_name(size):
    for shift, unit in (20, " MiB"), (10, " KiB"):
        if size >= 1 << shift:
            return f"{size >> shift}{unit}"
    return f"{size} B"


class Run:
    """What the steps share."""

    def __init__(self, options, host, peer):
        self.options = options
        self.host = host
        self.peer = peer
        self._perftests = 0

    @property
    def quick(self):
        return self.options.quick

    @property
    def one_cpu(self):
        return os.cpu_count() == 1

    def port(self, which):
        return self.options.port + which

    def rcsock(self):
        return self.host.programs.find("rcsock")

    def tool_environment(self, spin=True):
        env = {"RCSOCK_PRELOAD":
               self.host.programs.find("librcsock_preload.so")}
        if not spin:
            env["RCSOCK_SPIN_US"] = "0"
        return env


# --- What the hosts are


def hosts(run, step):
    ends = {"here": facts.of_host(run.host.device),
            "there": run.peer.ask("facts")}
    step.data = ends
    for name, end in ends.items():
        device, port, pci = end["device"], end["port"], end["device"]["pci"]
        step.say(f"{name}: {device['name']} ({device['driver'] or 'software'}),"
                 f" firmware {device['firmware'] or '?'}, "
                 f"board {device['board'] or '?'}")
        step.say(f"  port {port['state']}, {port['link_layer']}, "
                 f"{port['rate']}, MTU {port['active_mtu'] or '?'} of "
                 f"{port['netdev_mtu']}, {len(port['gids'])} GIDs"
                 + (", bonded" if port["bonded"] else ""))
        if pci:
            step.say(f"  PCI {pci['vendor']}:{pci['device']}, "
                     f"{pci['current_link_speed']} "
                     f"x{pci['current_link_width']}, NUMA node "
                     f"{pci['numa_node']}")
        step.say(f"  {end['distribution']}, Linux {end['kernel']}, "
                 f"{end['rdma_core'] or 'rdma-core ?'}, "
                 f"{end['cpus']} CPUs ({end['cpu']})")
        qos = end["qos"]
        unread = sorted(name for name, value in qos.items() if value is None)
        step.say("  PFC, ECN and the like: "
                 + (f"not readable: {', '.join(unread)}" if unread
                    else "all read"))


def doctor(run, step):
    words = [run.rcsock(), "doctor", "--json"]
    if run.options.one_host:
        out = run.host.run(words, 120, run.tool_environment(), good=(0, 1))
    else:
        with run.peer.serving("doctor", port=run.port(DOCTOR)):
            words.append(f"{bracketed(run.peer.address)}:{run.port(DOCTOR)}")
            out = run.host.run(words, 120, run.tool_environment(),
                               good=(0, 1))
    step.data = json.loads(out)
    for finding in step.data["findings"]:
        if finding["verdict"] != "good":
            step.say(f"{finding['verdict']}: {finding['about']}: "
                     f"{finding['words']}")
    if not step.data["healthy"]:
        step.wrong = "rcsock doctor found something bad"


def bracketed(address):
    return f"[{address}]" if ":" in address else address


# --- Lane conformance


def conformance(run, step, name):
    """Both ends of each lane are in one process, the bytes go by the port."""
    device = run.host.device
    env = {"RDMA_DEV": device.name, "RDMA_NETDEV": device.netdev,
           "RDMA_IP": run.host.address, "RDMA_IP6": ""}
    for address in device.addresses():
        if address.version == 6:
            env["RDMA_IP6"] = str(address.ip)
        elif ":" in env["RDMA_IP"]:
            env["RDMA_IP"] = str(address.ip)
    if ":" in env["RDMA_IP"]:
        raise Skipped(f"{device.netdev} has no IPv4 address")
    tests = tests_of(run, name, env,
                     QUICK_CONFORMANCE[name] if run.quick else "*")
    failed = [test for test, found in tests.items() if found["failures"]]
    skipped = [test for test, found in tests.items() if found["skipped"]]
    # Once more, so that one can tell what fails from what failed.
    again = {}
    if failed:
        again = tests_of(run, name, env, ":".join(failed))
    step.data = {"tests": len(tests), "skipped": skipped, "failed": {
        test: {"first": tests[test]["failures"],
               "again": again[test]["failures"]} for test in failed}}
    step.say(f"{name}: {len(tests) - len(failed) - len(skipped)} passed, "
             f"{len(failed)} failed, {len(skipped)} skipped"
             + (", some left out by --quick" if run.quick else ""))
    twice = [test for test in failed if again[test]["failures"]]
    for test in failed:
        step.say(f"  failed: {test}; run once more it "
                 + ("failed again" if test in twice else "passed"))
    if not tests:
        step.wrong = f"{name} has run no test"
    if twice:
        step.wrong = f"{len(twice)} tests failed twice"


def tests_of(run, name, env, which):
    """Runs tests; what came of each."""
    found = os.path.join(run.host.scratch, name + ".json")
    with contextlib.suppress(OSError):
        os.remove(found)
    run.host.run([run.host.programs.find(name), f"--gtest_output=json:{found}",
                  f"--gtest_filter={which}"], 600, env, good=(0, 1))
    with open(found) as file:
        ended = json.load(file)
    tests = {}
    for suite in ended["testsuites"]:
        for test in suite["testsuite"]:
            tests[f"{test['classname']}.{test['name']}"] = {
                "failures": [one["failure"][:600]
                             for one in test.get("failures", ())],
                "skipped": test["result"] in ("SKIPPED", "SUPPRESSED")}
    return tests


# --- Figures


def latency_of(row):
    latency = row["median"]["latency_us"]
    return {name: latency[name] for name in ("p50", "p99", "p99.9")}


def compare(run, kind, size, spin):
    """TCP, rcsock and raw verbs in turn, by `rcsock perf --compare`."""
    seconds, rounds = (0.3, 1) if run.quick else (1, 3)
    words = [run.rcsock(), "perf", "-c", run.peer.address, "-p",
             run.port(PERF), "-J", "--compare", "--transport",
             "tcp,rdma,verbs", "--rounds", rounds, "-t", seconds, "-l", size,
             "--settle", 30]
    if kind == "latency":
        words.append("--latency")
    out = run.host.run(words, 400, run.tool_environment(spin), good=(0, 3))
    found = {}
    for row in json.loads(out)["compare"]:
        if "median" not in row:
            found[row["transport"]] = {"failed": row["failed"]}
            continue
        median = row["median"]
        one = {"lane_share": median.get("lane_share"),
               "reasons": median.get("reasons")}
        if kind == "latency":
            one.update(latency_of(row))
        else:
            one["MBps"] = median["bytes_per_second"] / 1e6
        found[row["transport"]] = one
    return found


def perftest(run, kind, size, spin):
    """A round trip, or a stream, as `rcsock perf` has it.

    ib_write_lat and ib_write_bw where both may poll.  A write tells its
    receiver nothing, so nobody can sleep for one: else their kin of SENDs."""
    if kind == "latency":
        count = 200 if run.quick else 20000 if size <= 4096 else 2000
    else:
        count = 200 if run.quick else 5000 if size >= 1 << 16 else 50000
    program = (kind != "latency") + (0 if spin else 2)
    name = PERFTEST[program]
    if shutil.which(name) is None:
        raise Skipped(f"{name} is not installed here (package perftest)")
    if spin and run.one_cpu:
        raise Skipped(f"{name} polls, and here is one CPU")
    port = run.port(PERFTESTS) + run._perftests
    run._perftests += 1
    numbers = {"program": program, "port": port, "size": size,
               "count": count, "sleep": not spin}
    with run.peer.serving("perftest", patience=5, **numbers):
        out = run.host.run(run.host.perftest(numbers) + [run.peer.address],
                           60)
    found = re.search(rf"^ *{size} +\d+ +(.*)$", out, re.MULTILINE)
    if not found:
        raise Failed(f"{name} printed: {out[-300:]}")
    words = [float(word) for word in found[1].split()]
    if not all(math.isfinite(word) for word in words) or words[1] == 0:
        raise Failed(f"{name} could not measure the CPU's clock")
    if kind == "latency":
        # min, max, typical, average, deviation, 99%, 99.9%: of half a trip
        return {"program": name, "p50": 2 * words[2], "p99": 2 * words[5],
                "p99.9": 2 * words[6]}
    return {"program": name, "MBps": words[1] * (1 << 20) / 1e6}


def shown(one, kind):
    if one is None:
        return "-"
    if kind == "latency":
        return "/".join(f"{one[p]:.4g}" for p in ("p50", "p99", "p99.9"))
    return f"{one['MBps']:.4g}"


def ratio(of, to, kind):
    """How many times as fast; above 1 rcsock is faster."""
    if of is None or to is None:
        return None
    if kind == "latency":
        return to["p50"] / of["p50"]
    return of["MBps"] / to["MBps"]


def figures(run, step, spin):
    step.data = {"rows": []}
    step.say("us of a round trip: p50/p99/p99.9, or MB/s; how many times as "
             "fast rcsock is")
    step.say("%-14s %-22s %-22s %-22s %-22s %6s %6s %8s" % (
        "", "tcp", "verbs", "perftest", "rcsock", "x tcp", "x verbs",
        "x perftest"))
    kinds = [("latency", QUICK_LATENCY_SIZES if run.quick else LATENCY_SIZES),
             ("stream", QUICK_STREAM_SIZES if run.quick else STREAM_SIZES)]
    without = set()
    with run.peer.serving("perf", port=run.port(PERF), spin=spin, patience=0):
        for kind, sizes in kinds:
            for size in sizes:
                row = {"kind": kind, "size": size}
                row.update(compare(run, kind, size, spin))
                # Twice: its two ends do not always meet.
                for _ in range(2):
                    try:
                        row["perftest"] = perftest(run, kind, size, spin)
                        break
                    except (Skipped, Failed) as error:
                        row["perftest"] = {"failed": str(error)}
                if "failed" in row["perftest"]:
                    without.add(row["perftest"]["failed"])
                figure_row(step, row)
    for why in sorted(without):
        step.say(f"without perftest: {why}")
    if not any(row["x"]["tcp"] for row in step.data["rows"]):
        step.wrong = "rcsock's RDMA lane was not measured"


def figure_row(step, row):
    kind = row["kind"]
    good = {name: None if "failed" in row[name] else row[name]
            for name in ("tcp", "verbs", "perftest", "rdma")}
    lane = good["rdma"]
    # Below 95% it is TCP that has been measured.
    if lane is not None and (lane["lane_share"] or 0) < 0.95:
        step.say(f"  {lane['lane_share'] or 0:.0%} of the bytes were on the "
                 f"lane: {lane['reasons']}")
        good["rdma"] = None
    elif lane is None:
        step.say(f"  rdma: {row['rdma']['failed']}")
    row["x"] = {name: ratio(good["rdma"], good[name], kind)
                for name in ("tcp", "verbs", "perftest")}
    step.data["rows"].append(row)
    times = ["-" if row["x"][name] is None else f"{row['x'][name]:.2f}"
             for name in ("tcp", "verbs", "perftest")]
    step.say("%-14s %-22s %-22s %-22s %-22s %6s %6s %8s" % (
        f"{kind} {size_name(row['size'])}", *(shown(good[name], kind) for name
                                              in ("tcp", "verbs", "perftest",
                                                  "rdma")), *times))


# --- Teardown under traffic


def teardown(run, step, connections=None):
    connections = connections or run.options.connections
    # With more, a host of few CPUs would be too busy to make lanes.
    threads = 8 if run.quick else max(8, min(32, 4 * os.cpu_count()))
    before = run.host.device.counters(), run.peer.ask("counters")
    stats = os.path.join(run.host.scratch, "teardown.client")
    with run.peer.serving("teardown", port=run.port(TEARDOWN),
                          threads=threads + 8, patience=60) as server:
        out = run.host.run(
            [run.host.programs.find("teardown"), "client", run.peer.address,
             run.port(TEARDOWN), "--connections", connections, "--threads",
             threads, "--limit", run.options.teardown_seconds],
            run.options.teardown_seconds + 120,
            run.host.under_rcsock(stats, True), good=(0, 1))
    client = json.loads(out)
    ends = {"here": read_stats(stats), "there": server.left["stats"]}
    try:
        there = json.loads(server.left["out"])
    except ValueError:
        there = None
    step.data = {"asked": connections, "client": client, "server": there,
                 "statistics": ends, "counters": changed(
                     run, before)}
    step.say(f"{client['connections']:,} of {connections:,} connections in "
             f"{client['seconds']:.0f} s, {client['bytes'] / 1e9:.2f} GB "
             "received and checked here")
    step.say(f"  {client['on_lane']:,} ended on the lane, {client['early']:,} "
             f"while it was made, {client['not_on_lane']:,} had none in time")
    step.say("  ended: " + ", ".join(f"{client[way]:,} {way}" for way in (
        "orderly", "closed", "reset", "left", "dropped")))
    for name, end in ends.items():
        if end is None:
            step.wrong = f"no statistics of the process {name}"
            continue
        step.say(f"  {name}: {end['promoted']:,} promoted of "
                 f"{end['streams']:,}, {end['failovers']:,} failovers, "
                 f"{end['demotions']:,} demotions; never on a lane: "
                 + (", ".join(f"{n:,} {why}" for why, n
                              in end["reasons"].items()) or "none"))
    say_counters(step)
    errors = {name: client[name] for name in (
        "wrong_bytes", "failed_connects", "unclean_ends", "stuck")}
    if there is not None:
        for name in "wrong_bytes", "stuck":
            errors[name] += there[name]
    elif not step.wrong:
        step.wrong = "the server did not come to its end"
    step.say("  errors: " + ", ".join(f"{n} {name.replace('_', ' ')}"
                                      for name, n in errors.items()))
    if any(errors.values()):
        step.wrong = "bytes, connects or ends were wrong"
    elif client["not_on_lane"] > client["on_lane"] / 10 and not step.wrong:
        step.wrong = (f"{client['not_on_lane']:,} connections had no lane "
                      "within ten seconds")


def read_stats(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def changed(run, before):
    """What the ports' counters of trouble have counted since."""
    after = run.host.device.counters(), run.peer.ask("counters")
    found = {}
    for name, old, new in zip(("here", "there"), before, after):
        found[name] = {key: value - old.get(key, 0)
                       for key, value in sorted(new.items())
                       if value != old.get(key, 0) and TROUBLE.search(key)}
    return found


def say_counters(step):
    for name, counts in step.data["counters"].items():
        step.say(f"  counters {name}: " + (", ".join(
            f"{key} +{n}" for key, n in counts.items()) or "no trouble"))


# --- A port that goes down


class Soak:
    """Checked traffic on eight connections, until told to end."""

    CONNECTIONS = 8

    def __init__(self, run):
        self.run = run
        scratch = run.host.scratch
        self.log, self.report, self.stop_file, self.stats = (
            os.path.join(scratch, f"soak.{name}")
            for name in ("log", "report", "stop", "stats"))

    def __enter__(self):
        for path in self.log, self.report, self.stop_file:
            if os.path.exists(path):
                os.remove(path)
        env = self.run.host.environment(dict(
            self.run.host.under_rcsock(self.stats, True),
            RCSOCK_LOG="1", RCSOCK_LOG_FILE=self.log))
        self.process = subprocess.Popen(
            [self.run.host.programs.find("soak"), "client",
             self.run.peer.address, str(self.run.port(SOAK)), "--connections",
             str(self.CONNECTIONS), "--message", "20000", "--bytes", "400000",
             "--report", self.report, "--stop", self.stop_file], env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, universal_newlines=True)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def count(self, words):
        with contextlib.suppress(OSError), open(self.log) as file:
            return file.read().count(words)
        return 0

    def promoted(self):
        return self.count("promoted to rdma")

    def left(self):
        return self.count("left its lane")

    def events(self):
        """What happened to the streams, and how often."""
        with contextlib.suppress(OSError), open(self.log) as file:
            found = collections.Counter(re.findall(
                r"promoted to rdma|left its lane: \w+|no lane: \w+",
                file.read()))
            return ", ".join(f"{n} {what}" for what, n in found.items())
        return ""

    def bytes(self):
        with contextlib.suppress(OSError, ValueError, IndexError), \
                open(self.report) as file:
            return int(file.read().split()[1])
        return 0

    def until(self, what, limit, true):
        """Seconds until it is true."""
        start = time.monotonic()
        while not true():
            if self.process.poll() is not None:
                raise Failed("the traffic ended: "
                             + self.process.stderr.read().strip()[-500:])
            if time.monotonic() - start > limit:
                raise Failed(f"not within {limit} s: {what}; the log has: "
                             + (self.events() or "nothing"))
            time.sleep(0.05)
        return time.monotonic() - start

    def end(self):
        with open(self.stop_file, "w"):
            pass
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            raise Failed("the traffic does not end") from None
        if status != 0:
            raise Failed("a byte was wrong, or an end: "
                         + self.process.stderr.read().strip()[-500:])
        return read_stats(self.stats)


def soaking(run):
    return run.peer.serving("soak", port=run.port(SOAK),
                            connections=Soak.CONNECTIONS, patience=30)


def port_flap(run, step):
    netdev = run.host.device.netdev
    asks = not run.options.flap
    if asks and not (run.options.ask and sys.stdin.isatty()):
        raise Skipped("not asked for: --flap takes the port down by itself, "
                      "--ask asks you to")
    if not asks and os.geteuid() != 0:
        raise Skipped("--flap needs root")
    before = run.host.device.counters(), run.peer.ask("counters")
    with soaking(run), Soak(run) as soak:
        many = Soak.CONNECTIONS
        soak.until("eight streams on the lane", 60,
                   lambda: soak.promoted() >= many)
        bytes_before = soak.bytes()
        soak.until("traffic on the lane", 30,
                   lambda: soak.bytes() > bytes_before + 10_000_000)
        if asks:
            print(f"   Take the port down (ip link set {netdev} down, or pull "
                  "the cable), wait three seconds,\n   and bring it up again.  "
                  "Then press Enter; s and Enter skips this step.", flush=True)
            if sys.stdin.readline().strip() == "s":
                raise Skipped("the user did not want it")
        else:
            flap(run, netdev)
        # (InfiniBand's port stays up when IPoIB's goes down.)
        try:
            left = soak.until("streams left their lanes", 60,
                              lambda: soak.left() > 0)
        except Failed as error:
            if soak.process.poll() is not None:
                raise
            left = None
            step.say(f"no lane ended: {error}")
        after = soak.bytes()
        resumed = soak.until("traffic after the port was down", 120,
                             lambda: soak.bytes() > after + 1_000_000)
        back = None
        if left is not None:
            try:
                back = soak.until(
                    "eight streams on the lane again", 120,
                    lambda: soak.promoted() - soak.left() >= many)
            except Failed as error:
                raise Failed(f"{error}; {rping_says(run)}") from None
        stats = soak.end()
    step.data = {"asked_user": asks, "lanes_ended": left is not None,
                 "traffic_after_s": resumed, "lanes_after_s": back,
                 "statistics": stats, "counters": changed(run, before)}
    step.say(f"{stats['failovers']} failovers, {stats['demotions']} "
             f"demotions, {stats['promoted']} of {stats['streams']} promoted; "
             f"every byte was right")
    step.say(f"traffic {resumed:.1f} s after the port was back, "
             + ("no lane had ended" if back is None
                else f"all lanes {back:.1f} s after"))
    say_counters(step)


def rping_says(run):
    """Whether rdma_cm gets through at all, without rcsock."""
    if shutil.which("rping") is None:
        return "rping is not installed"
    try:
        with run.peer.serving("rping", port=run.port(RPING)):
            run.host.run(["rping", "-c", "-a", run.peer.address, "-p",
                          run.port(RPING), "-C", 3], 15)
    except (Failed, Skipped):
        return ("rping, which is not of rcsock, does not get through either: "
                "the device, its driver or the network does not recover")
    return "rping gets through"


def flap(run, netdev):
    run.host.run(["ip", "link", "set", netdev, "down"], 30)
    try:
        time.sleep(3)
    finally:
        run.host.run(["ip", "link", "set", netdev, "up"], 30)


# --- Adaptive routing


def adaptive_routing(run, step):
    command = run.options.adaptive_routing
    if not command:
        raise Skipped("no --adaptive-routing COMMAND was given")
    step.say("forced by the user's command")
    step.data = {"command": command}
    run.host.run(["bash", "-c", command], 120)
    try:
        teardown(run, step, max(100, run.options.connections // 10))
        step.data["command"] = command
        with soaking(run), Soak(run) as soak:
            soak.until("eight streams on the lane", 60,
                       lambda: soak.promoted() >= Soak.CONNECTIONS)
            start = soak.bytes()
            time.sleep(3 if run.quick else 20)
            moved = soak.bytes() - start
            stats = soak.end()
        step.data["soak"] = {"bytes": moved, "statistics": stats}
        step.say(f"{moved / 1e9:.2f} GB on eight connections, every byte "
                 f"right, {stats['failovers']} failovers")
    finally:
        if run.options.adaptive_routing_off:
            run.host.run(["bash", "-c", run.options.adaptive_routing_off],
                         120)
        else:
            step.say("left on: no --adaptive-routing-off COMMAND was given")


STEPS = [
    ("hosts", hosts),
    ("doctor", doctor),
    ("lane conformance",
     lambda run, step: conformance(run, step, "rdma_lane_test")),
    ("meeting over rdma_cm",
     lambda run, step: conformance(run, step, "rdma_test")),
    ("figures, spinning", lambda run, step: figures(run, step, True)),
    ("figures, sleeping", lambda run, step: figures(run, step, False)),
    ("teardown under traffic", teardown),
    ("port down and up", port_flap),
    ("adaptive routing forced", adaptive_routing),
]
