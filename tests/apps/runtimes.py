"""Runtimes that wait by io_uring or past libc: Node from 22 on, Bun and Deno, and
PyTorch's gloo."""

import handing
import services
from harness import app

WHY = "system calls by machine code of its own: `raw_calls`"


def serve_and_ask(run, *words, serve=services.NODE_SERVER):
    port = run.port()
    # (Deno takes a file of this name for what node does.)
    server = run.start(*words, run.write("server.cjs", serve), port,
                       run.address, port=port)
    said = run.call(*words, run.write("client.cjs", services.NODE_CLIENT), port,
                    run.address)
    run.stop(server)
    return {"said": said}, "1,611 requests"


def node(version):
    @app(f"node{version}", f"node{version}")
    def plain(run):
        """As node: 1,611 requests over 8 connections; its loops have a ring."""
        return serve_and_ask(run, f"node{version}")

    @app(f"node{version}-cluster", f"node{version}")
    def cluster(run):
        """As node-cluster: a master passes each connection to 3 workers."""
        return serve_and_ask(run, f"node{version}", serve=handing.CLUSTER)

    return plain, cluster


for release in (22, 24, 25):
    node(release)


GLOO = """
import datetime, hashlib, os, sys, torch, torch.distributed as dist
rank, ranks = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=ranks,
                        timeout=datetime.timedelta(seconds=100))
for n in (10, 100_000, 2_000_000):
    for i in range(40):
        sums = torch.arange(n, dtype=torch.float64) * (rank + 1) + i
        dist.all_reduce(sums)
        expected = torch.arange(n, dtype=torch.float64)
        expected = expected * (ranks * (ranks + 1) / 2) + ranks * i
        assert torch.equal(sums, expected)
pieces = [torch.zeros(50_000) for _ in range(ranks)]
dist.all_gather(pieces, torch.full((50_000,), float(rank)))
dist.barrier()
print(rank, [piece[0].item() for piece in pieces])
"""


def gloo(ranks):
    @app(f"gloo-{ranks}", "/usr/bin/python3", rdma=False)
    def reduce(run):
        """PyTorch's all-reduce of up to 16 MB by gloo, 120 times."""
        settings = {"MASTER_ADDR": run.address, "MASTER_PORT": str(run.port()),
                    "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        work = run.write("work.py", GLOO)
        others = [run.start("/usr/bin/python3", work, rank, ranks, **settings)
                  for rank in range(1, ranks)]
        said = run.call("/usr/bin/python3", work, 0, ranks, limit=200, **settings)
        for other in others:
            run.stop(other, None, limit=100)
        return {"said": said}, f"{ranks} ranks"

    return reduce


for number in (2, 4):
    gloo(number)


@app("bun", "bun", share=0, why=WHY)
def bun(run):
    """As node; its event loop waits past libc, its data goes through libc."""
    return serve_and_ask(run, "bun")


@app("deno", "deno", share=0, why=WHY)
def deno(run):
    """As node; it reads changes of files past libc, and nothing else."""
    return serve_and_ask(run, "deno", "run", "--allow-all")
