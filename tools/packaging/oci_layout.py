#!/usr/bin/env python3
"""oci_layout.py ROOT TO TAG DATE

Makes TO an OCI image layout of one image, TAG, whose one layer is the tree ROOT.
It needs no daemon and no network. The same tree and DATE (seconds) make the same
layout. The formats are those of OCI's image specification 1.0.
"""

import datetime
import gzip
import hashlib
import io
import json
import pathlib
import sys
import tarfile

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def layer_of(root, date):
    """Returns the tree as a tar archive that says nothing of who made it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(root)))
            if entry.islnk():  # a second name of a file that is in the archive
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = date
            if entry.isreg():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return data.getvalue()


class Layout:
    """A folder of blobs, each by its digest."""

    def __init__(self, to):
        self.to = to
        (to / "blobs" / "sha256").mkdir(parents=True)

    def put(self, kind, data):
        digest = hashlib.sha256(data).hexdigest()
        (self.to / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(data)}


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main():
    root, to, tag, date = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    created = datetime.datetime.fromtimestamp(date, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    layout = Layout(to)
    tree = layer_of(root, date)
    layer = layout.put(LAYER, gzip.compress(tree, 9, mtime=0))
    about = {"org.opencontainers.image.title": "rcsock", "org.opencontainers.image.version": tag,
             "org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.created": created}
    config = layout.put(CONFIG, encoded({
        "architecture": "amd64", "os": "linux", "created": created,
        "config": {"Env": ["PATH=/opt/rcsock/bin:/bin"], "Entrypoint": ["/opt/rcsock/bin/rcsock"],
                   "Cmd": ["--help"], "Labels": about},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tree).hexdigest()]},
        "history": [{"created": created, "created_by": "tools/dist --image"}]}))
    manifest = layout.put(MANIFEST, encoded({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer], "annotations": about}))
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag}
    manifest["platform"] = {"architecture": "amd64", "os": "linux"}
    (to / "index.json").write_bytes(encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]}))
    (to / "oci-layout").write_bytes(encoded({"imageLayoutVersion": "1.0.0"}))


main()
