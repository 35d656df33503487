"""Runtimes of JavaScript that make system calls by machine code of their own."""

import services
from harness import app

WHY = "system calls by machine code of its own: `raw_calls`"


def serve_and_ask(run, *words):
    port = run.port()
    # (Deno takes a file of this name for what node does.)
    server = run.start(*words, run.write("server.cjs", services.NODE_SERVER),
                       port, run.address, port=port)
    said = run.call(*words, run.write("client.cjs", services.NODE_CLIENT), port,
                    run.address)
    run.stop(server)
    return {"said": said}, "1,611 requests"


@app("bun", "bun", share=0, why=WHY)
def bun(run):
    """As node; its event loop waits past libc, its data goes through libc."""
    return serve_and_ask(run, "bun")


@app("deno", "deno", share=0, why=WHY)
def deno(run):
    """As node; it reads changes of files past libc, and nothing else."""
    return serve_and_ask(run, "deno", "run", "--allow-all")
