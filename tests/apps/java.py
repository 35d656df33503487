"""Java: both ends in one process, as threads of it."""

import pathlib

from harness import app

HERE = pathlib.Path(__file__).resolve().parent


@app("java", "java", "javac")
def java(run):
    """Work.java: both ends in one process, as threads of it."""
    # Three ports in a row; nobody else of this harness takes those between.
    ports = [run.port() for _ in range(3)]
    while ports[2] != ports[0] + 2:
        ports = [*ports[1:], run.port()]
    run.call("javac", "-d", run.directory, HERE / "Work.java", limit=120,
             LD_PRELOAD="")
    return {"printed": run.call("java", "-cp", run.directory, "Work",
                                run.address, ports[0], limit=120)}, "done"
