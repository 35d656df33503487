#!/usr/bin/env python3
"""The OCI image layout of `tools/dist --image`, in the tree's layout (runfiles).

Every digest, size and media type is what the bytes say; the same tree makes the
same layout; the command runs in the unpacked rootfs; a copy of /opt/rcsock, as an
init container makes it, can be preloaded; the Containerfile names what is there.
Where skopeo and umoci are installed they read it, too.
"""

import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

WORK = pathlib.Path(os.environ.get("TEST_TMPDIR", "/tmp")) / "image_test"
VERSION = pathlib.Path("VERSION").read_text(encoding="ascii").strip()
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def check(good, *what):
    if not good:
        raise AssertionError(what)


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    check(result.returncode == 0, command, result.stdout[-2000:], result.stderr[-2000:])
    return result.stdout


def made(name):
    env = dict(os.environ, RCSOCK_BUILT=os.getcwd(), SOURCE_DATE_EPOCH="86400", HOME=str(WORK))
    run("tools/dist", "--image", str(WORK / name), env=env)
    return WORK / name / f"rcsock-{VERSION}-image"


def blob(layout, descriptor, kind):
    check(descriptor["mediaType"] == kind, descriptor)
    algorithm, digest = descriptor["digest"].split(":")
    data = (layout / "blobs" / algorithm / digest).read_bytes()
    check(len(data) == descriptor["size"] and hashlib.sha256(data).hexdigest() == digest, descriptor)
    return data


def unpacked(layout):
    """Checks the layout. Returns the configuration and the unpacked layer."""
    check(json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"})
    index = json.loads((layout / "index.json").read_text())
    check(index["schemaVersion"] == 2 and len(index["manifests"]) == 1, index)
    entry = index["manifests"][0]
    check(entry["annotations"]["org.opencontainers.image.ref.name"] == VERSION, entry)
    manifest = json.loads(blob(layout, entry, "application/vnd.oci.image.manifest.v1+json"))
    config = json.loads(blob(layout, manifest["config"], "application/vnd.oci.image.config.v1+json"))
    check((config["architecture"], config["os"]) == ("amd64", "linux"), config)
    check(config["created"] == "1970-01-02T00:00:00Z", config["created"])
    check(len(manifest["layers"]) == len(config["rootfs"]["diff_ids"]) == 1, manifest)
    tree = gzip.decompress(blob(layout, manifest["layers"][0], LAYER))
    check("sha256:" + hashlib.sha256(tree).hexdigest() == config["rootfs"]["diff_ids"][0], "diff_id")
    blobs = {path.name for path in (layout / "blobs/sha256").iterdir()}
    check(len(blobs) == 3, blobs)
    root = WORK / "root"
    root.mkdir()
    (WORK / "layer.tar").write_bytes(tree)
    with tarfile.open(WORK / "layer.tar") as archive:
        for member in archive:
            check(not member.name.startswith("/") and ".." not in member.name.split("/"), member.name)
            check((member.uid, member.gid, member.mtime) == (0, 0, 86400), member.name)
        archive.extractall(root, filter="tar") if hasattr(tarfile, "tar_filter") else archive.extractall(root)
    return config["config"], root


def inside(root, config, *command):
    """Runs a command in the image, in namespaces of its own."""
    env = dict(one.split("=", 1) for one in config["Env"])
    return run(shutil.which("unshare"), "--user", "--map-root-user", "--mount", shutil.which("chroot") or "/usr/sbin/chroot", str(root),
               *command, env=env)


def test_rootfs(config, root):
    said = inside(root, config, *config["Entrypoint"], "--version")
    check(said.startswith(f"rcsock {VERSION} "), said)
    check("Usage" in inside(root, config, *config["Entrypoint"], *config["Cmd"]))
    check("TEXT" in inside(root, config, "sh", "-c", "echo TEXT | cat"))
    # The command preloads the library here, too: it is this libc's.
    said = inside(root, config, "rcsock", "run", "--", "rcsock", "run", "--", "rcsock", "--version")
    check(said.startswith("rcsock "), said)


def test_init_container(config, root):
    """The copy that docs/kubernetes.md makes works where it is mounted."""
    (root / "shared").mkdir()
    copy = ("sh", "-c", "rm -rf /shared/* && cp -a /opt/rcsock/. /shared/")
    inside(root, config, *copy)
    library = root / "shared" / "$LIB" / "librcsock_preload.so"
    # It may be made again, beside programs that have mapped the one before.
    with (root / "shared/lib/librcsock_preload.so").open("rb") as mapped:
        inside(root, config, *copy)
        check(os.fstat(mapped.fileno()).st_nlink == 0, "written over")
    maps = run("cat", "/proc/self/maps", env=dict(os.environ, LD_PRELOAD=str(library)))
    check(re.search(re.escape(str(root / "shared")) + r"/lib\S*/librcsock_preload.so", maps), maps)


def test_containerfile(root):
    text = (WORK / "one" / "Containerfile").read_text()
    check("@" not in text.replace("@VERSION@", "@"), text)
    source, target = re.search(r"^COPY --from=rcsock (\S+) (\S+)$", text, re.M).groups()
    check(source == target == "/opt/rcsock" and (root / source[1:]).is_dir(), text)
    # A Containerfile would replace $LIB by a variable of its own.
    value = re.search(r"^ENV LD_PRELOAD=(\S+)$", text, re.M).group(1)
    check("\\$LIB" in value and "$" not in value.replace("\\$LIB", ""), value)
    for folder in ("lib64", "lib/x86_64-linux-gnu"):
        path = value.replace("\\$LIB", folder)
        check((root / path[1:]).exists(), path)


def test_tools(layout):
    """What others make of it."""
    tried = 0
    if shutil.which("skopeo"):
        found = json.loads(run("skopeo", "inspect", f"oci:{layout}:{VERSION}"))
        check(found["Architecture"] == "amd64" and len(found["Layers"]) == 1, found)
        run("skopeo", "--tmpdir", str(WORK), "copy", "--quiet", "--insecure-policy", f"oci:{layout}:{VERSION}",
            f"docker-archive:{WORK}/archive.tar:rcsock:{VERSION}")
        tried += 1
    if shutil.which("umoci"):
        run("umoci", "unpack", "--rootless", "--image", f"{layout}:{VERSION}", str(WORK / "bundle"))
        check((WORK / "bundle/rootfs/opt/rcsock/bin/rcsock").exists())
        tried += 1
    print(f"read by {tried} of skopeo and umoci" if tried else "SKIPPED: there is no skopeo and no umoci")


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    layout = made("one")
    other = made("two")
    run("diff", "-r", str(layout), str(other))
    config, root = unpacked(layout)
    for test in (test_rootfs, test_init_container):
        test(config, root)
    test_containerfile(root)
    test_tools(layout)
    print("ok")


sys.exit(main())
