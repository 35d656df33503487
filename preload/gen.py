#!/usr/bin/env python3
"""From lib/base/calls.def: the version scripts of the preload and of
librcsock_posix, or docs/interposed.md.

usage: gen.py exports|posix|docs lib/base/calls.def
"""

import re
import sys

TITLES = {
    "connection": "Making and ending connections",
    "data": "Data",
    "waiting": "Waiting",
    "descriptors": "Descriptors and options",
    "processes": "Processes",
    "sandbox": "Filters of system calls",
    "threads": "Threads and cancellation",
    "signals": "Signals",
    "rare": "Rarer names",
    "fortify": "Names that FORTIFY uses",
    "aliases": "Other names in glibc",
}


def rows(path):
    """(group, name, what) of each symbol."""
    for line in open(path):
        call = re.match(
            r'(CALL|CALLV|VARIADIC)\((.*?), .*?"(.*)"\)\s*$', line)
        if call:
            words = [w.strip() for w in line.split("(", 1)[1].split(",")]
            name = words[1] if call[1] == "CALLV" else words[2]
            yield words[0], name, call[3]
            continue
        alias = re.match(r"ALIAS\((\w+), (\w+), (\w+),", line)
        if alias:
            yield alias[1], alias[2], f"As `{alias[3]}`."


SUBMITS = ("From liburing. Streams that requests name move to TCP first, for "
           "good. With RCSOCK_IO_URING=lane rcsock carries out requests on "
           "streams that have a lane, or may get one; io-uring.md says which. "
           "Other requests move their streams to TCP. "
           "IORING_OP_EPOLL_CTL is as `epoll_ctl`.")
REGISTERS = "From liburing. The streams among them move to TCP first, for good."

# Defined by hand in preload/raw.cc, uring.cc, vfork.cc and loader.cc, by the
# preload alone.
RAW = [
    ("syscall", "A call on a stream, or on a set that has one, is as the call "
     "of that name. The rest is the kernel's."),
    ("io_uring_queue_init", "From liburing. Streams stay where they are. "
     "If rcsock does not know the ring's flags, or liburing's version, all "
     "streams of the process move to TCP, for good."),
    ("io_uring_queue_init_params", "As `io_uring_queue_init`."),
    ("io_uring_queue_init_mem", "As `io_uring_queue_init`."),
    ("io_uring_queue_init_try_nosqarr", "As `io_uring_queue_init`."),
    ("io_uring_queue_exit", "From liburing. rcsock forgets the ring."),
    ("io_uring_setup", "From liburing, and by `syscall`. rcsock maps the "
     "ring's queue. All streams of the process move to TCP, for good, for a "
     "queue that the kernel polls (SQPOLL), or that is the program's memory "
     "(NO_MMAP). So they do if rcsock does not know the ring's flags."),
    ("io_uring_enter", "From liburing, and by `syscall`. As "
     "`io_uring_submit`, for a ring that this process has made by "
     "`io_uring_setup`, by its first number. If it submits for another ring, "
     "all streams of the process move to TCP first, for good."),
    ("io_uring_enter2", "As `io_uring_enter`."),
    ("io_uring_submit", SUBMITS),
] + [(name, "As `io_uring_submit`.") for name in (
    "io_uring_submit_and_wait", "io_uring_submit_and_get_events",
    "io_uring_submit_and_wait_timeout", "io_uring_submit_and_wait_min_timeout",
    "io_uring_submit_and_wait_reg", "io_uring_wait_cqes",
    "io_uring_wait_cqes_min_timeout", "io_uring_wait_cqe_timeout",
    "__io_uring_get_cqe")] + [
    ("io_uring_register_files", REGISTERS),
    ("io_uring_register_files_tags", "As `io_uring_register_files`."),
    ("io_uring_register_files_update", "As `io_uring_register_files`."),
    ("io_uring_register_files_update_tag", "As `io_uring_register_files`."),
    ("io_uring_register_restrictions", "From liburing. Requests of such a "
     "ring are the kernel's."),
    ("io_uring_register_sync_cancel", "From liburing. Requests that rcsock "
     "holds can be cancelled too."),
    ("io_uring_resize_rings", "From liburing. rcsock forgets what it has "
     "mapped of the ring."),
    ("io_uring_close_ring_fd", "From liburing. rcsock keeps a number of its "
     "own of a ring whose requests it holds."),
    ("io_uring_register", "If it registers files, all streams of the process "
     "move to TCP first, for good."),
    ("io_submit", "From libaio. The streams that it names move to TCP first, "
     "for good."),
    ("pidfd_getfd", "A connection of this process that is taken so moves to "
     "TCP, for good."),
    ("unshare", "CLONE_FILES is left out in a program of one thread, which "
     "has its descriptors to itself anyway. In other programs every stream of "
     "the process moves to TCP first, for good."),
    ("vfork", "The kernel's. While the child borrows the process's memory, "
     "what it does to descriptors changes no stream."),
    ("__vfork", "As `vfork`."),
    ("dlsym", "A look-up in libc's handle finds what a look-up by default "
     "does. A library that defines the name itself finds libc's."),
    ("dlvsym", "As `dlsym`."),
    ("dlopen", "The loader's. If the library makes system calls of its own, "
     "all streams of the process move to TCP, for good (`raw_calls`)."),
    ("dlmopen", "As `dlopen`."),
]


def exports(path, posix=False):
    print("{\n  global:")
    for group, name, _ in rows(path):
        if posix and group in ("sandbox", "threads", "rare"):
            continue  # the preload's alone
        print(f"    {name};")
    if posix:
        print("    rcsock_posix_names;\n  local:\n    *;\n};")
        return
    for name, _ in RAW:
        print(f"    {name};")
    # lib/api: how it finds the preload, and what it leaves to it.
    for name in ("rcsock_preloaded", "rcs_get_lane", "rcs_get_reason",
                 "rcs_get_stream_info", "rcs_get_process_info",
                 "rcs_set_policy", "rcs_get_policy", "rcs_promote",
                 "rcs_demote", "rcs_register_buffer",
                 "rcs_unregister_buffer", "rcs_epoll_look", "rcs_epoll_arm",
                 "rcs_epoll_disarm", "rcs_expose", "rcs_hide", "rcs_place",
                 "rcs_placed", "rcs_recv_registered",
                 "rcs_send_registered", "rcs_sent_done"):
        print(f"    {name};")
    print("  local:\n    *;\n};")


def docs(path):
    print("# Interposed symbols\n")
    print("Made from `lib/base/calls.def` by `preload/gen.py`; a test keeps it "
          "current. A descriptor\nthat is no TCP stream passes straight to the "
          "kernel in every one of them. What glibc calls\ninside itself "
          "(`fork` in `forkpty`, for one) is followed by other means: see "
          "`hands.md`.")
    group = None
    for row_group, name, what in rows(path):
        if row_group != group:
            group = row_group
            print(f"\n## {TITLES[group]}\n\n| symbol | on a stream |\n| --- | --- |")
        print(f"| `{name}` | {what} |")
    print("\n## Past libc\n\n| symbol | on a stream |\n| --- | --- |")
    for name, what in RAW:
        print(f"| `{name}` | {what} |")


if __name__ == "__main__":
    {"exports": exports, "posix": lambda path: exports(path, True),
     "docs": docs}[sys.argv[1]](sys.argv[2])
