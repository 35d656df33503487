"""gRPC, Open MPI and QEMU's network block devices."""

import hashlib
import os
import re

from harness import Failed, app, digest_file

GRPC = """
import sys, grpc
role, address = sys.argv[1:]
sizes = [("grpc.max_receive_message_length", -1)]
if role == "serve":
    import signal, threading
    from concurrent import futures
    def echo(message, _):
        return message
    def many(message, _):
        for i in range(200):
            yield message * (i % 20 + 1)
    def both(messages, _):
        for message in messages:
            yield message[::-1]
    service = grpc.method_handlers_generic_handler("test.Service", {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Many": grpc.unary_stream_rpc_method_handler(many),
        "Both": grpc.stream_stream_rpc_method_handler(both)})
    server = grpc.server(futures.ThreadPoolExecutor(4), options=sizes)
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    server.start()
    end.wait()
    server.stop(1).wait()
else:
    with grpc.insecure_channel(address, options=sizes) as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        many = channel.unary_stream("/test.Service/Many")
        both = channel.stream_stream("/test.Service/Both")
        for i in range(800):
            message = bytes([i % 256]) * (i * 13 % 9000)
            assert echo(message) == message
        total = len(echo(b"z" * 6000000))
        total += sum(len(part) for part in many(b"abc" * 1000))
        total += sum(len(part) for part in both(
            iter([b"q" * (k * 10) for k in range(500)])))
        calls = [echo.future(b"f" * 1000) for _ in range(500)]
        print(total + sum(len(call.result()) for call in calls))
"""


@app("grpc", "/usr/bin/python3")
def grpc(run):
    """Its C core, from Python (TCP_INQ): 800 calls, one of 6 MB, streams both
    ways, 500 calls at once."""
    port = run.port()
    script = run.write("calls.py", GRPC)
    address = f"{run.address}:{port}"
    server = run.start("/usr/bin/python3", script, "serve", address, port=port)
    said = run.call("/usr/bin/python3", script, "ask", address)
    run.stop(server)
    return {"said": said}, "1,303 calls"


MPI = r"""
#include <mpi.h>
#include <stdio.h>
#include <string.h>
static char to[4 << 20], from[4 << 20];
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, n;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  const int left = (rank + n - 1) % n;
  long long sum = 0, all = 0;
  for (int i = 0; i < 300; ++i) {
    const int length = (i * 7919) % (i % 20 ? 20000 : (int)sizeof to);
    memset(to, rank + i, length);
    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_Irecv(from, sizeof from, MPI_CHAR, left, i, MPI_COMM_WORLD, requests);
    MPI_Isend(to, length, MPI_CHAR, (rank + 1) % n, i, MPI_COMM_WORLD,
              requests + 1);
    MPI_Waitall(2, requests, statuses);
    int got;
    MPI_Get_count(statuses, MPI_CHAR, &got);
    for (int j = 0; j < got; ++j) {
      if (from[j] != (char)(left + i)) MPI_Abort(MPI_COMM_WORLD, 3);
    }
    sum += got;
    MPI_Allreduce(&sum, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  }
  if (rank == 0) printf("sum %lld\n", all);
  MPI_Finalize();
  return 0;
}
"""


@app("openmpi", "mpicc.openmpi", "mpirun.openmpi", rdma=False)
def openmpi(run):
    """4 processes over its TCP transport: a ring of messages of up to 4 MB,
    reductions."""
    run.write("ring.c", MPI)
    # In a guest the device's own.
    interface = ("lo" if run.address == "127.0.0.1"
                 else os.environ["RDMA_NETDEV"])
    run.call("mpicc.openmpi", "-O1", "-o", "ring", "ring.c", LD_PRELOAD="")
    said = run.call("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe",
                    "-np", 4, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                    "--mca", "btl_tcp_if_include", interface,
                    run.directory / "ring", limit=120)
    return {"sum": re.findall("sum .*", said)}, "300 rounds"


@app("qemu-nbd", "qemu-nbd", "qemu-img", rdma=False)
def qemu_nbd(run):
    """qemu-img reads 64 MiB, then 4 KiB and 64 KiB pieces, 16 at a time; writes
    some."""
    port = run.port()
    run.write("disk", hashlib.sha256(b"disk").digest() * (2 << 20))
    server = run.start("qemu-nbd", "-t", "-f", "raw", "-p", port, "-b",
                       run.address, "-e", 4, run.directory / "disk", port=port)
    url = f"nbd://{run.address}:{port}"
    run.call("qemu-img", "convert", "-O", "raw", url, "out")
    bench = ["qemu-img", "bench", "-f", "raw", "-d", 16]
    said = run.call(*bench, "-c", 5000, "-s", 4096, url, limit=120)
    run.call(*bench, "-w", "--pattern", 7, "-c", 500, "-s", 65536, url)
    run.stop(server)
    seconds = re.search(r"completed in ([0-9.]+)", said)
    if seconds is None:
        raise Failed(said)
    return {name: digest_file(run.directory / name)
            for name in ("out", "disk")}, f"5,000 reads in {seconds.group(1)} s"
