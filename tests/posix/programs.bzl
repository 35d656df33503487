"""The programs of tests/posix that run over plain TCP and under the preload."""

load("//tests/device:device.bzl", "RARE")

PROGRAMS = [
    "arguments",
    "arrives",
    "asked",
    "backlog",
    "beside",
    "cancel",
    "closed",
    "connects",
    "corners",
    "crashes",
    "data",
    "descriptors",
    "ends",
    "exec",
    "exits",
    "faults",
    "filed",
    "files",
    "flags",
    "fork",
    "gale",
    "handlers",
    "held",
    "hot",
    "hung_up",
    "inherit",
    "inherit_exec",
    "jumps",
    "kills",
    "leaves",
    "lent",
    "loader",
    "modes",
    "moves",
    "nested",
    "parts",
    "passed",
    "passed_kept",
    "passed_lost",
    "peername",
    "pointers",
    "raw",
    "ready",
    "resets",
    "reused",
    "ring_streams",
    "rings",
    "room",
    "sessions",
    "sets",
    "signals",
    "steps",
    "storm",
    "threads",
    "told",
    "tuned",
    "tuples",
    "waiters",
    "waits",
    "zerocopy",
]

# What several programs share.
_BULK = ["bulk.h"]
_EDGE = ["edge.h"]
_PASSED = ["passed.h"]
_STATE = ["state.h"]
_STEPS = [
    "past.h",
    "steps.h",
]
_STORM = ["storm.h"]
_UNREAD = ["unread.h"]
_WAITING = ["waiting.h"]

HEADERS = {
    "arrives": _STEPS,
    "asked": _STATE,
    "closed": _BULK,
    "connects": _WAITING,
    "ends": _BULK,
    "exits": _BULK,
    "faults": _EDGE,
    "gale": _STORM,
    "hung_up": _WAITING,
    "inherit": _UNREAD,
    "inherit_exec": _UNREAD,
    "loader": ["past.h"],
    "modes": _WAITING,
    "moves": _WAITING,
    "nested": _WAITING,
    "passed": _PASSED,
    "passed_kept": _PASSED,
    "passed_lost": _PASSED,
    "peername": _STATE,
    "pointers": _EDGE,
    "ready": _WAITING,
    "resets": _BULK,
    "reused": _STEPS,
    "room": _BULK,
    "sets": _WAITING,
    "steps": _STEPS,
    "storm": _STORM,
    "threads": _BULK,
    "told": _STATE,
}

DEPS = {
    "raw": [
        "//lib/posix:uring",
        "//third_party:aio",
        "//third_party:uring",
    ],
    "ring_streams": ["//third_party:uring"],
    "rings": ["//third_party:uring"],
}

COPTIONS = {
    # FORTIFY, which -c opt turns on, would end a program that lies about counts.
    "corners": ["-U_FORTIFY_SOURCE"],
}

# What a program opens or starts.
DATA = {
    "loader": [
        "cat_32",
        "cat_static_pie",
        "ld_other",
        ":libowncalls.so",
        ":libplug.so",
        ":libtalk.so",
        ":searchers",
    ],
}

SETTINGS = {
    # The program passes each connection on as soon as it is warm.  With 20 round
    # trips no promotion would come before that.
    "passed_lost": {"PAIR_TURNS": "2000"},
    "ring_streams": {"RCSOCK_IO_URING": "lane"},
}

# held takes long and has nothing that the others lack.  parts moves gigabytes, and
# ASan takes for written what it cuts off by MSG_TRUNC.  The sanitizers look at the
# pointers of arguments, crashes, faults and pointers themselves.  The handlers of
# handlers come amid the sanitizers' own allocations.
_UNSANITIZED = [
    "arguments",
    "crashes",
    "faults",
    "handlers",
    "held",
    "parts",
    "pointers",
]

# ASan's own unwinding fails a check when a thread is cancelled.  arrives, reused and
# steps hold a thread at an instruction, which may lie within ASan's own locks.
_NOT_ASAN = _UNSANITIZED + [
    "arrives",
    "cancel",
    "reused",
    "steps",
]

# The threads of closed and gale close descriptors under each other, which TSan takes
# for races.  TSan follows neither a siglongjmp out of a wait, as in jumps, nor the
# single steps of arrives, reused and steps.
_NOT_TSAN = _UNSANITIZED + [
    "arrives",
    "closed",
    "gale",
    "jumps",
    "reused",
    "steps",
]

# These take long, and what they look at happens on a lane.
_ON_LANES = [
    "arrives",
    "parts",
    "steps",
]

# These step through calls on a lane.  Few of their steps meet a promotion.
_RARE = [
    ("arrives", "early"),
    ("steps", "early"),
]

def modes(program):
    """The modes (README.md) in which `program` is a test.

    Args:
      program: its name
    """
    if program in _ON_LANES:
        return [
            "early",
            "lane",
        ]
    if program == "told":  # its connections end too early for a promotion
        return [
            "default",
            "lane",
        ]
    return [
        "default",
        "early",
        "lane",
    ]

def tags(program, mode):
    """The tags of that test.

    Args:
      program: its name
      mode: of modes(program)
    """
    return (
        ["block-network"] +
        (["noasan"] if program in _NOT_ASAN else []) +
        (["notsan"] if program in _NOT_TSAN else []) +
        (RARE if (program, mode) in _RARE else [])
    )

# Over RDMA these have no tests: the children of fork of sessions and storm would
# need a lane, arguments hangs in a guest over TCP as well, and the others count
# instructions, move gigabytes or need more than a program.
_NOT_ON_RDMA = [
    "arguments",
    "arrives",
    "loader",
    "parts",
    "raw",
    "reused",
    "ring_streams",
    "rings",
    "sessions",
    "steps",
    "storm",
]

ON_RDMA = [program for program in PROGRAMS if program not in _NOT_ON_RDMA]
