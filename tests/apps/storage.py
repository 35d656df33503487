"""Servers of files and of disks, each with its own client: XRootD, nbdkit
and GlusterFS."""

import hashlib
import os
import re

from harness import app, digest_file, wait_until

BLOCK = b"".join(hashlib.sha256(b"storage %d" % i).digest() * (1 << 10)
                 for i in range(1024))  # 32 MiB


XROOTD = """\
xrd.port {port}
xrd.allow host *
all.export /
oss.localroot {dir}/root
all.adminpath {dir}/admin
all.pidpath {dir}/admin
xrootd.async force
xrd.protocol xroot *
"""


@app("xrootd", "xrootd", "xrdcp", "xrdfs", user="www-data", rdma=False)
def xrootd(run):
    """96 MiB there and back, by one connection and by 4 at once; 300 questions."""
    here, port = run.directory, run.port()
    for name in ("root", "admin"):
        os.mkdir(here / name)
        os.chmod(here / name, 0o777)
    run.write("in", BLOCK * 3)
    server = run.start("xrootd", "-c", run.write("xrootd.cfg", XROOTD.format(
        port=port, dir=here)), "-l", here / "xrootd.log", "-n", "one",
                       port=port, limit=60)
    url = f"root://{run.address}:{port}/"
    run.call("xrdcp", "-s", here / "in", url + "/one")
    run.call("xrdcp", "-s", "-S", 4, url + "/one", here / "back")
    run.call("xrdcp", "-s", "-S", 3, here / "in", url + "/many")
    asked = run.call("xrdfs", f"{run.address}:{port}", input="".join(
        "ls -l /\nstat /one\n" for _ in range(150)))
    run.stop(server)
    return {"back": digest_file(here / "back"),
            "many": digest_file(here / "root/many"),
            "said": len(re.findall("Size: +100663296", asked))}, "288 MiB"


@app("nbdkit", "nbdkit", "nbdcopy", "nbdinfo", rdma=False)
def nbdkit(run):
    """nbdcopy, 4 connections with 64 requests each: a disk of 96 MiB there, and
    back, and from one server to another."""
    here, ports = run.directory, [run.port(), run.port()]
    run.write("in", BLOCK * 3)
    servers = [run.start("nbdkit", "-f", "-i", run.address, "-p", port, "memory",
                         f"size={3 * len(BLOCK)}", port=port) for port in ports]
    one, other = (f"nbd://{run.address}:{port}" for port in ports)
    run.call("nbdcopy", "--connections=4", "--requests=64", here / "in", one)
    run.call("nbdcopy", "--connections=4", one, other)
    run.call("nbdcopy", other, here / "out")
    said = run.call("nbdinfo", "--size", other)
    for server in servers:
        run.stop(server)
    return {"out": digest_file(here / "out"), "size": said.strip()}, "288 MiB"


BRICK = """\
volume posix
  type storage/posix
  option directory {dir}/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume threads
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.listen-port {port}
  option transport.socket.bind-address {address}
  option auth.addr.threads.allow *
  option rpc-auth-allow-insecure on
  subvolumes threads
end-volume
"""
VOLUME = """\
volume client
  type protocol/client
  option transport-type tcp
  option remote-host {address}
  option remote-port {port}
  option remote-subvolume threads
end-volume
volume behind
  type performance/write-behind
  subvolumes client
end-volume
"""


@app("glusterfs", "glusterfsd", "glusterfs", "fusermount3", rdma=False)
def glusterfs(run):
    """A brick, mounted by FUSE: 96 MiB and 300 small files written, read again."""
    here, port = run.directory, run.port()
    for name in ("brick", "mnt"):
        os.mkdir(here / name)
    names = {"dir": here, "port": port, "address": run.address}
    brick = run.start("glusterfsd", "-N", "-f", run.write(
        "brick.vol", BRICK.format(**names)), "-l", here / "brick.log", port=port)
    mount = here / "mnt"
    client = run.start("glusterfs", "-N", "--direct-io-mode=enable", "-f", run.write(
        "client.vol", VOLUME.format(**names)), "-l", here / "client.log", mount)
    try:
        wait_until(lambda: os.path.ismount(mount), 30, "it is not mounted")
        run.write("mnt/large", BLOCK * 3)
        for i in range(300):
            run.write(f"mnt/small{i}", b"%d\n" % i * 100)
        large = digest_file(mount / "large")
        small = hashlib.sha256(b"".join(
            (mount / f"small{i}").read_bytes() for i in range(300))).hexdigest()
    finally:
        run.call("umount", mount)
    run.stop(client, None, statuses=(0, 15))
    run.stop(brick, statuses=(0, 15))
    return {"large": large, "small": small,
            "brick": digest_file(here / "brick/large")}, "192 MiB"
