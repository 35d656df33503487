"""usage: containers_test.py PRELOAD [CASE...]

Programs in several network, mount, PID, UTS and user namespaces of this host,
which share nothing but a directory (RCSOCK_MEET_DIR).  Most of their connections
must go over shared memory, by each way in which an address may be translated;
and whatever is wrong with the directory, each connection must go right.

Needs root.  Where namespaces cannot be made, says so and is skipped.
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import balancing

HERE = pathlib.Path(__file__).resolve().parent
TALK = str(HERE / "talk.py")
# Users of the containers must be able to run it.
PYTHON = "/usr/bin/python3"
os.environ["PATH"] += ":/usr/sbin:/sbin"


def run(*words, check=True, **more):
    return subprocess.run([str(word) for word in words], check=check,
                          capture_output=True, text=True, **more)


class Network:
    """A bridge of this host, and containers at it: NAME1, NAME2, ..."""

    def __init__(self, name, subnet, count, isolated=False):
        self.name, self.subnet = name, subnet
        self.subnet6 = "fd91:7::"
        self.spaces = []
        try:
            self.host = f"{name}h"
            run("ip", "netns", "add", self.host)
            self.spaces.append(self.host)
            host = ["ip", "-n", self.host]
            run(*host, "link", "set", "lo", "up")
            run(*host, "link", "add", "br0", "type", "bridge")
            run(*host, "addr", "add", f"{subnet}.254/24", "dev", "br0")
            run(*host, "addr", "add", f"{self.subnet6}fe/64", "dev", "br0", "nodad")
            run(*host, "link", "set", "br0", "up")
            for i in range(1, count + 1):
                space = f"{name}{i}"
                run("ip", "netns", "add", space)
                self.spaces.append(space)
                inside = ["ip", "-n", space]
                run(*host, "link", "add", f"v{i}", "type", "veth", "peer", "name",
                    "eth0", "netns", space)
                run(*host, "link", "set", f"v{i}", "master", "br0", "up")
                run(*host, "link", "set", f"v{i}", "type", "bridge_slave", "hairpin",
                    "on")
                run(*inside, "addr", "add", f"{subnet}.{i}/24", "dev", "eth0")
                run(*inside, "addr", "add", f"{self.subnet6}{i}/64", "dev", "eth0",
                    "nodad")
                run(*inside, "link", "set", "eth0", "up")
                run(*inside, "link", "set", "lo", "up")
                run(*inside, "route", "add", "default", "via", f"{subnet}.254")
                run(*inside, "route", "add", "default", "via", f"{self.subnet6}fe")
            run("ip", "netns", "exec", self.host, "sysctl", "-qw",
                "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        except BaseException:
            self.close()
            raise

    def nft(self, rules, space=None):
        run("ip", "netns", "exec", space or self.host, "nft", "-f", "-",
            input=rules)

    def close(self):
        for space in self.spaces:
            run("ip", "netns", "del", space, check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class World:
    """What the cases share: the preload, a folder, and a directory to meet in."""

    def __init__(self, preload):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rcsock-containers-"))
        self.folder.chmod(0o755)
        self.talk = shutil.copy(TALK, self.folder)
        self.preload = shutil.copy(preload, self.folder)
        os.chmod(self.preload, 0o755)
        self.meet = self.folder / "meet"
        self.meet.mkdir()
        run("mount", "-t", "tmpfs", "-o", "mode=1777,size=4m,nr_inodes=60000",
            "none", self.meet)
        self.running = []
        self.count = 0

    def start(self, space, command, meet="", uid=0, user_space=False, under=True,
              group=None, **more):
        """Starts a command in a container, in mount, PID and UTS namespaces of its
        own, and in the cgroup `group`.  Returns the process and the file of its
        statistics."""
        self.count += 1
        stats = self.folder / f"stats{self.count}"
        words = ["ip", "netns", "exec", space, "unshare", "-m", "-p", "-u", "-i",
                 "-f", "--kill-child", "--mount-proc"]
        if uid:
            for file in (stats, self.folder / f"log{self.count}"):
                file.touch()
                os.chown(file, uid, uid)
            words += ["setpriv", f"--reuid={uid}", f"--regid={uid}",
                      "--clear-groups"]
        if user_space:
            words += ["unshare", "-U", "-r", "-f"]
        words += ["env", f"RCSOCK_STATS={stats}", "RCSOCK_LOG=1",
                  f"RCSOCK_LOG_FILE={self.folder}/log{self.count}"]
        if meet is not None:
            words += [f"RCSOCK_MEET_DIR={meet or self.meet}"]
        if under:
            words += [f"LD_PRELOAD={self.preload}"]
        if group is not None:
            words = ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"',
                     group] + words
        process = subprocess.Popen([str(word) for word in words + command],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, start_new_session=True, **more)
        process.stats = stats
        self.running.append(process)
        return process

    def serve(self, space, port=7000, address="0.0.0.0", **more):
        process = self.start(space, [PYTHON, self.talk, "serve", address, str(port)],
                             **more)
        line = process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(f"no server: {line}")
        return process

    def call(self, space, address, port=7000, connections=8, rounds=60, pause=0.005,
             word="word", source=0, **more):
        return self.start(
            space, [PYTHON, self.talk, "call", address, str(port),
                    str(connections), str(rounds), str(pause), word, str(source)],
            **more)

    def finish(self, process, status=0):
        out, _ = process.communicate(timeout=60)
        if process.returncode != status:
            raise AssertionError(f"status {process.returncode}: {out}")
        try:
            return json.loads(process.stats.read_text())
        except ValueError:
            return {"promoted": 0, "streams": 0, "reasons": {}}

    def end(self, process, how=signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            pass
        if how == signal.SIGKILL:
            process.wait()

    def end_all(self):
        for process in self.running:
            if process.poll() is None:
                self.end(process)
            process.stdout.close()
        self.running = []
        for entry in self.meet.iterdir():
            if entry.is_dir():
                entry.rmdir()
            else:
                entry.unlink()

    def close(self):
        self.end_all()
        run("umount", self.meet, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def lanes(stats):
    return stats["lanes"]["shm"]["streams"] if "lanes" in stats else 0


def on_lanes(stats, connections, share=0.95):
    assert lanes(stats) >= share * connections, f"{lanes(stats)} of {connections}: {stats}"


def on_tcp(stats, reason=None):
    assert lanes(stats) == 0, stats
    if reason is not None:
        assert stats["reasons"].get(reason, 0) > 0, (reason, stats)


def share_of_bytes(stats):
    """Which part of all bytes has gone over shared memory."""
    counts = {name: lane["tx_bytes"] + lane["rx_bytes"]
              for name, lane in stats["lanes"].items()}
    return counts["shm"] / sum(counts.values())


def direct(world, net):
    """Each container sees the directory at a path of its own."""
    world.serve(f"{net.name}1")
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1",
                                     connections=40)), 40)


def users(world, net):
    """Other uids, and uid 0 of a user namespace."""
    world.serve(f"{net.name}1", uid=23001)
    for more in ({"uid": 23002}, {"uid": 23003, "user_space": True}):
        on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1", **more)), 8)


def redis(world, net):
    """Nearly all bytes go over shared memory, of one client as of many."""
    port = "7001"
    server = world.start(f"{net.name}1", ["redis-server", "--port", port, "--bind",
                                          "0.0.0.0", "--protected-mode", "no",
                                          "--save", ""])
    while "Ready to accept" not in server.stdout.readline():
        pass
    for clients in (1, 24):
        client = world.start(f"{net.name}2", [
            "redis-benchmark", "-h", f"{net.subnet}.1", "-p", port, "-n", "40000",
            "-c", str(clients), "-t", "get,set", "-q"])
        stats = world.finish(client)
        # redis-benchmark also asks for the server's configuration.
        on_lanes(stats, stats["streams"] - 3)
        share = share_of_bytes(stats)
        assert share >= 0.95, f"{clients} clients: {share} of the bytes: {stats}"


def address_translation(world, net):
    """DNAT: a service's address, and a published port of the host's address."""
    world.serve(f"{net.name}1")
    net.nft(f"""table ip t {{ chain pre {{ type nat hook prerouting priority -100;
      ip daddr 10.99.0.1 tcp dport 80 dnat to {net.subnet}.1:7000;
      ip daddr {net.subnet}.254 tcp dport 81 dnat to {net.subnet}.1:7000; }}; }}
      """)
    try:
        for address, port in (("10.99.0.1", 80), (f"{net.subnet}.254", 81)):
            on_lanes(world.finish(world.call(f"{net.name}2", address, port)), 8)
    finally:
        net.nft("delete table ip t\n")


def socket_balancing(world, net):
    """As Cilium balances services: the kernel connects elsewhere, and getpeername
    tells the service's address."""
    group = new_cgroup()
    if group is None:
        print("    SKIPPED: socket_balancing: no cgroup v2 can be made here")
        return
    try:
        balancing.balance(group, ("10.97.0.1", 80), (f"{net.subnet}.1", 7000))
        server = world.serve(f"{net.name}1")
        on_lanes(world.finish(world.call(f"{net.name}2", "10.97.0.1", 80,
                                         group=group)), 8)
        # Both ends in one namespace.
        world.serve(f"{net.name}3")
        balancing.balance(group, ("10.97.0.1", 80), (f"{net.subnet}.3", 7000))
        on_lanes(world.finish(world.call(f"{net.name}3", "10.97.0.1", 80, rounds=300,
                                         group=group)), 8)
        world.end(server)
    except balancing.Unavailable as error:
        print(f"    SKIPPED: socket_balancing: {error}")
    finally:
        world.end_all()
        group.rmdir()


def ipv6(world, net):
    """Direct, and behind DNAT.  And IPv4 at a server that listens by IPv6."""
    world.serve(f"{net.name}1", address="::")
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet6}1",
                                     connections=20)), 20)
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1")), 8)
    net.nft(f"""table ip6 t {{ chain pre {{ type nat hook prerouting priority -100;
      ip6 daddr fd99::1 tcp dport 80 dnat to [{net.subnet6}1]:7000; }}; }}
      """)
    try:
        on_lanes(world.finish(world.call(f"{net.name}2", "fd99::1", 80)), 8)
    finally:
        net.nft("delete table ip6 t\n")


def masquerade(world, net):
    """Both halves are translated: nobody is found, and nobody is guessed.  Both
    ends say so."""
    server = world.serve(f"{net.name}1")
    net.nft(f"""table ip t {{
      chain pre {{ type nat hook prerouting priority -100;
        tcp dport 81 dnat to {net.subnet}.1:7000; }};
      chain post {{ type nat hook postrouting priority 100;
        ip daddr {net.subnet}.1 masquerade; }}; }}
      """)
    try:
        on_tcp(world.finish(world.call(f"{net.name}2", f"{net.subnet}.254", 81,
                                       rounds=400)), "translated_address")
        # A hairpin: the container calls itself by the host's address.
        on_tcp(world.finish(world.call(f"{net.name}1", f"{net.subnet}.254", 81,
                                       rounds=400)), "translated_address")
        # It also writes them at its end.
        run("pkill", "-TERM", "-s", str(server.pid), check=False)
        on_tcp(world.finish(server), "translated_address")
    finally:
        net.nft("delete table ip t\n")


def redirect(world, net):
    """A redirection in one namespace, as of a sidecar."""
    world.serve(f"{net.name}2", 7005)
    net.nft("""table ip t { chain out { type nat hook output priority -100;
      ip daddr 10.98.0.1 tcp dport 80 redirect to :7005; }; }
      """, f"{net.name}2")
    try:
        on_lanes(world.finish(world.call(f"{net.name}2", "10.98.0.1", 80,
                                         rounds=300)), 8)
    finally:
        net.nft("delete table ip t\n", f"{net.name}2")


def unset(world, net):
    world.serve(f"{net.name}1", meet=None)
    on_tcp(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1", meet=None)),
           "other_namespace")


def one_end_plain(world, net):
    world.serve(f"{net.name}1", under=False)
    on_tcp(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1", rounds=400)),
           "peer_without_rcsock")
    assert not list(world.meet.iterdir()), "names are left"


def bad_directories(world, net):
    """None of them costs more than lanes."""
    world.serve(f"{net.name}1")
    folder = world.folder / "bad"
    folder.mkdir()
    (folder / "file").touch()
    (folder / "link").symlink_to(world.meet)
    (folder / "readonly").mkdir()
    run("mount", "-t", "tmpfs", "-o", "ro", "none", folder / "readonly")
    (folder / "full").mkdir()
    run("mount", "-t", "tmpfs", "-o", "nr_inodes=1", "none", folder / "full")
    (folder / "foreign").mkdir(mode=0o700)
    try:
        for name in ("file", "link", "readonly", "full", "missing", "foreign"):
            on_tcp(world.finish(world.call(
                f"{net.name}2", f"{net.subnet}.1", meet=folder / name, rounds=20,
                uid=23001 if name == "foreign" else 0)), "meet_dir")
    finally:
        run("umount", folder / "readonly", folder / "full", check=False)


def silent_file_system(world, net):
    """A directory whose server never answers (FUSE) is not asked anything."""
    world.serve(f"{net.name}1")
    folder = world.folder / "silent"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        print(f"    SKIPPED: silent_file_system: {error}")
        return
    try:
        options = f"fd={device},rootmode=41777,user_id=0,group_id=0,allow_other"
        if libc.mount(b"silent", bytes(folder), b"fuse", 0, options.encode()) != 0:
            print("    SKIPPED: silent_file_system: no FUSE can be mounted")
            return
        call = world.call(f"{net.name}2", f"{net.subnet}.1", meet=folder)
        try:
            on_tcp(world.finish(call), "meet_dir")
        except subprocess.TimeoutExpired:
            raise AssertionError("a call waits for the file system") from None
    finally:
        # This ends the calls that wait for an answer.
        os.close(device)
        libc.umount2(bytes(folder), 2)


def deleted_directory(world, net):
    """The directory goes, comes again, and lanes with it."""
    world.serve(f"{net.name}1", meet=world.folder / "comes")
    (world.folder / "comes").mkdir()
    call = world.call(f"{net.name}2", f"{net.subnet}.1", meet=world.folder / "comes",
                      rounds=200)
    time.sleep(0.5)
    shutil.rmtree(world.folder / "comes")
    on_lanes(world.finish(call), 8)
    (world.folder / "comes").mkdir()
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1",
                                     meet=world.folder / "comes")), 8)


def killed(world, net):
    """A killed container leaves its name.  The next connection of that port gets a
    lane, and names of the dead go away."""
    port = 40001
    call = world.call(f"{net.name}2", f"{net.subnet}.1", connections=1, rounds=4000,
                      source=port, under=False)
    world.end(call)
    # A name as a killed process leaves it: its socket has gone.
    for place in range(4):
        for source in range(port, port + 3):
            left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            left.bind(str(name_of(world.meet, f"{net.subnet}.2", source, place)))
            left.close()
    server = world.serve(f"{net.name}1")
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1",
                                     connections=1, source=port)), 1)
    assert not list(world.meet.iterdir()), "names are left"
    # The server's container is killed: the client sees what TCP shows.
    call = world.call(f"{net.name}2", f"{net.subnet}.1", rounds=100000)
    time.sleep(1)
    world.end(server)
    out, _ = call.communicate(timeout=60)
    assert call.returncode != 0 and ("ended" in out or "reset" in out), out


def name_of(folder, address, port, place):
    mapped = "00" * 10 + "ffff" + socket.inet_aton(address).hex()
    return folder / f"rcsock-1-{mapped}{port:04x}-{place}"


def squatters(world, net):
    """Another user has the names, and listens without a word; has them as
    folders, files and symbolic links; and has filled the directory."""
    world.serve(f"{net.name}1")
    port = 40010
    held = []
    for place in range(4):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = name_of(world.meet, f"{net.subnet}.2", port, place)
        one.bind(str(name))
        os.chown(name, 23009, 23009)
        one.listen(1)
        held.append(one)
    on_tcp(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1", connections=1,
                                   source=port, rounds=200, uid=23001)))
    # One place is enough.
    port += 1
    name_of(world.meet, f"{net.subnet}.2", port, 0).mkdir()
    name_of(world.meet, f"{net.subnet}.2", port, 1).symlink_to("/dev/log")
    os.mkfifo(name_of(world.meet, f"{net.subnet}.2", port, 2))
    for entry in world.meet.iterdir():
        os.chown(entry, 23009, 23009, follow_symlinks=False)
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1", connections=1,
                                     source=port, uid=23001)), 1)
    for i in range(20000):
        (world.meet / f"rcsock-1-{i:032x}").touch()
    begun = time.monotonic()
    on_lanes(world.finish(world.call(f"{net.name}2", f"{net.subnet}.1",
                                     connections=20, uid=23001)), 20)
    assert time.monotonic() - begun < 20, "a full directory takes long"
    for one in held:
        one.close()


def others_dead_names(world, net):
    """In a sticky directory nobody removes the names that killed processes of
    another user have left.  Three of them cost nothing, four cost the lane."""
    world.serve(f"{net.name}1")
    port = 40020
    for taken in (3, 4):
        for place in range(taken):
            name = name_of(world.meet, f"{net.subnet}.2", port, place)
            left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            left.bind(str(name))
            left.close()
            os.chown(name, 23009, 23009)
        stats = world.finish(world.call(f"{net.name}2", f"{net.subnet}.1",
                                        connections=1, source=port, rounds=200,
                                        uid=23001))
        on_lanes(stats, 1) if taken == 3 else on_tcp(stats, "meet_dir")
        port += 1


def stopped(world, net):
    """A stopped container is waited for, as over TCP, and goes on."""
    server = world.serve(f"{net.name}1")
    call = world.call(f"{net.name}2", f"{net.subnet}.1", rounds=300)
    time.sleep(1)
    run("pkill", "-STOP", "-s", str(server.pid), check=False)
    time.sleep(2)
    assert call.poll() is None, call.stdout.read()
    run("pkill", "-CONT", "-s", str(server.pid), check=False)
    on_lanes(world.finish(call), 8)


def new_cgroup():
    """Makes a cgroup, or returns None where this host has none of version 2."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] != "cgroup2":
            continue
        group = pathlib.Path(before.split()[4]) / f"rcsock-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "cgroup.freeze").exists() and (group / "cgroup.kill").exists():
            return group
        group.rmdir()
    return None


def frozen(world, net):
    """The cgroup's freezer: as a stopped container.  Connections that begin while
    their server is frozen are answered, too.  To kill the cgroup is kill -9."""
    group = new_cgroup()
    if group is None:
        print("    SKIPPED: frozen: no cgroup v2 can be made here")
        return
    try:
        server = world.serve(f"{net.name}1", group=group)
        call = world.call(f"{net.name}2", f"{net.subnet}.1", rounds=300)
        time.sleep(1)
        (group / "cgroup.freeze").write_text("1")
        until = time.monotonic() + 10
        while "frozen 1" not in (group / "cgroup.events").read_text():
            assert time.monotonic() < until, "the server does not freeze"
            time.sleep(0.01)
        late = world.call(f"{net.name}2", f"{net.subnet}.1", rounds=200)
        time.sleep(2)
        assert call.poll() is None and late.poll() is None, "a client has ended"
        (group / "cgroup.freeze").write_text("0")
        on_lanes(world.finish(call), 8)
        on_lanes(world.finish(late), 8)
        for freeze in (False, True):
            call = world.call(f"{net.name}2", f"{net.subnet}.1", rounds=100000)
            time.sleep(1)
            if freeze:
                (group / "cgroup.freeze").write_text("1")
            (group / "cgroup.kill").write_text("1")
            out, _ = call.communicate(timeout=60)
            assert call.returncode != 0 and ("ended" in out or "reset" in out), out
            server.wait()
            (group / "cgroup.freeze").write_text("0")
            if not freeze:
                server = world.serve(f"{net.name}1", group=group)
    finally:
        (group / "cgroup.kill").write_text("1")
        world.end_all()
        group.rmdir()


def twins(world, net):
    """Two networks with the same addresses, and in each a connection of the same
    four numbers, at one time.  Each goes right, whichever lane it has."""
    with Network(net.name + "t", net.subnet, 2) as twin:
        world.serve(f"{net.name}1")
        world.serve(f"{twin.name}1")
        for turn in range(6):
            calls = [world.call(f"{one.name}2", f"{net.subnet}.1", connections=1,
                                rounds=150, word=word, source=40100 + turn)
                     for one, word in ((net, "abcd"), (twin, "wxyz"))]
            all_lanes = sum(lanes(world.finish(call)) for call in calls)
            print(f"    turn {turn}: {all_lanes} of 2 on lanes")


CASES = [direct, users, redis, address_translation, socket_balancing, ipv6, masquerade,
         redirect, unset, one_end_plain, bad_directories, silent_file_system,
         deleted_directory, killed, squatters, others_dead_names, stopped, frozen,
         twins]


def main():
    preload = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2:]
    if os.geteuid() != 0:
        print("SKIPPED: needs root")
        return 0
    name = f"rc{os.getpid() % 100000}"
    try:
        net = Network(name, "10.91.7", 3)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"SKIPPED: no network namespaces: {getattr(error, 'stderr', '')}{error}")
        return 0
    failed = 0
    world = World(preload)
    try:
        for case in CASES:
            if wanted and case.__name__ not in wanted:
                continue
            begun = time.monotonic()
            try:
                case(world, net)
                result = "ok"
            except (AssertionError, subprocess.SubprocessError) as error:
                result = f"FAILED: {error} {getattr(error, 'stderr', '')}"
                failed += 1
            print(f"{case.__name__}: {result} ({time.monotonic() - begun:.1f} s)",
                  flush=True)
            world.end_all()
    finally:
        world.close()
        net.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
