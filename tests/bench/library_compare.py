#!/usr/bin/env python3
"""The C library against the preload: an 8-byte round trip over shared memory.

usage: library_compare PINGPONG LINKED_PINGPONG SHIM [--repetitions N] [--limit PERCENT]

LINKED_PINGPONG is the same program, compiled with -include rcsock/posix_names.h
and linked with librcsock.  Both run in turn; the best of all batches is what is
compared.  Fails if the library takes more than --limit percent longer.
"""

import argparse
import json
import os
import subprocess
import sys


def run(program, mode, shim, iterations):
    environment = dict(os.environ, RCSOCK_PROMOTE_OPS="1", RCSOCK_LANES="shm")
    if shim:
        environment["LD_PRELOAD"] = os.path.abspath(shim)
    output = subprocess.run(
        [os.path.abspath(program), "--mode", mode, "--iters", str(iterations)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pingpong")
    parser.add_argument("linked")
    parser.add_argument("shim")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--iters", type=int, default=300000)
    parser.add_argument("--limit", type=float, default=None)
    options = parser.parse_args()
    failed = False
    for mode in ("blocking", "epoll"):
        preload, library = [], []
        for _ in range(options.repetitions):
            preload.append(run(options.pingpong, mode, options.shim,
                               options.iters)["best_ns"])
            library.append(run(options.linked, mode, None,
                               options.iters)["best_ns"])
        ratio = min(library) / min(preload)
        print(f"pingpong-8-{mode}: preload {min(preload):.0f} ns, "
              f"library {min(library):.0f} ns, {100 * (ratio - 1):+.1f}%")
        failed |= (options.limit is not None
                   and 100 * (ratio - 1) > options.limit)
    sys.exit(failed)


main()
