"""The programs of tests/posix that run over plain TCP and under the preload."""

load("//tests/device:device.bzl", "RARE")

PROGRAMS = [
    "address_reuse",
    "arrival_steps",
    "bad_arguments",
    "bad_buffers",
    "bad_pointers",
    "cancel",
    "close_beside_fork",
    "concurrent_close",
    "concurrent_cuts",
    "connection_state",
    "connects",
    "corners",
    "crashes",
    "data",
    "descriptors",
    "exec",
    "exits",
    "files",
    "first_search",
    "flags",
    "fork",
    "fork_epoll_churn",
    "fork_steps",
    "full_rings",
    "handler_calls",
    "handler_jumps",
    "held_sends",
    "hot_sets",
    "hung_up",
    "inherit",
    "inherit_exec",
    "kills",
    "leave_while_agreed",
    "loader",
    "many_waiters",
    "modes",
    "nested",
    "new_sessions",
    "orderly_ends",
    "partial_results",
    "passed",
    "passed_kept",
    "passed_lost",
    "peername",
    "poll_select",
    "rare_options",
    "raw_syscalls",
    "reporting",
    "resets",
    "reused_numbers",
    "sets",
    "signal_steps",
    "signals",
    "stdio_streams",
    "switch_backlog",
    "threads",
    "time_outs",
    "untouched",
    "uring_calls",
    "uring_steps",
    "uring_streams",
    "vfork_numbers",
    "wait_masks",
    "waits_while_moving",
    "zerocopy",
]

# What several programs share.
_BULK = ["bulk.h"]
_EDGE = ["edge.h"]
_PASSED = ["passed.h"]
_STATE = ["state.h"]
_STEPS = [
    "hidden_syscall.h",
    "stepping.h",
]
_CHURN = ["churn.h"]
_UNREAD = ["unread.h"]
_WAITING = ["waiting.h"]

HEADERS = {
    "arrival_steps": _STEPS,
    "bad_buffers": _EDGE,
    "bad_pointers": _EDGE,
    "concurrent_close": _BULK,
    "concurrent_cuts": _CHURN,
    "connection_state": _STATE,
    "connects": _WAITING,
    "exits": _BULK,
    "first_search": _PASSED + ["hidden_syscall.h"],
    "fork_epoll_churn": _CHURN,
    "fork_steps": _STEPS,
    "full_rings": _BULK,
    "hung_up": _WAITING,
    "flags": _WAITING,
    "inherit": _UNREAD,
    "inherit_exec": _UNREAD,
    "loader": ["hidden_syscall.h"],
    "modes": _WAITING,
    "nested": _WAITING,
    "orderly_ends": _BULK,
    "passed": _PASSED,
    "passed_kept": _PASSED,
    "passed_lost": _PASSED,
    "peername": _STATE,
    "poll_select": _WAITING,
    "reporting": _STATE,
    "resets": _BULK,
    "reused_numbers": _STEPS,
    "sets": _WAITING,
    "signal_steps": _STEPS,
    "threads": _BULK,
    "time_outs": _WAITING,
    "uring_steps": _STEPS,
    "waits_while_moving": _WAITING,
}

DEPS = {
    "raw_syscalls": [
        "//lib/posix/hooks:uring",
        "//third_party:aio",
        "//third_party:uring",
    ],
    "uring_steps": ["//third_party:uring"],
    "uring_streams": ["//third_party:uring"],
    "uring_calls": ["//third_party:uring"],
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
    "uring_steps": {"RCSOCK_IO_URING": "lane"},
    "uring_streams": {"RCSOCK_IO_URING": "lane"},
}

# held_sends takes long and has nothing that the others lack.  partial_results moves
# gigabytes, and ASan takes for written what it cuts off by MSG_TRUNC.  The sanitizers
# look themselves at the pointers of bad_arguments, bad_buffers, bad_pointers and
# crashes.  The handlers of handler_calls come amid the sanitizers' own allocations.
_UNSANITIZED = [
    "bad_arguments",
    "bad_buffers",
    "bad_pointers",
    "crashes",
    "handler_calls",
    "held_sends",
    "partial_results",
]

# ASan's own unwinding fails a check when a thread is cancelled.  Programs with steps
# hold a thread at an instruction, which may lie within ASan's own locks.
_NOT_ASAN = _UNSANITIZED + [
    "arrival_steps",
    "cancel",
    "fork_steps",
    "reused_numbers",
    "signal_steps",
    "uring_steps",
]

# The threads of concurrent_close and concurrent_cuts close descriptors under each
# other, which TSan takes for races.  TSan follows neither a siglongjmp out of a wait,
# as in handler_jumps, nor single steps.
_NOT_TSAN = _UNSANITIZED + [
    "arrival_steps",
    "concurrent_close",
    "concurrent_cuts",
    "fork_steps",
    "handler_jumps",
    "reused_numbers",
    "signal_steps",
    "uring_steps",
]

# These take long, and what they look at happens on a lane.
_ON_LANES = [
    "arrival_steps",
    "fork_steps",
    "partial_results",
    "signal_steps",
    "uring_steps",
]

# These step through calls on a lane.  Few of their steps meet a promotion.  The
# others take long, and by default few of their connections live until one.
_RARE = [
    ("arrival_steps", "early"),
    ("bad_pointers", "default"),
    ("close_beside_fork", "default"),
    ("concurrent_cuts", "default"),
    ("exits", "default"),
    ("fork_steps", "early"),
    ("full_rings", "default"),
    ("kills", "default"),
    ("orderly_ends", "default"),
    ("rare_options", "default"),
    ("reused_numbers", "default"),
    ("signal_steps", "early"),
    ("signals", "default"),
    ("uring_steps", "early"),
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
    # Their connections end too early for a promotion.
    if program in ["reporting", "first_search"]:
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

# Over RDMA these have no tests.  The children of fork of new_sessions and
# fork_epoll_churn would need a lane, bad_arguments hangs in a guest over TCP as well,
# and the others count instructions, move gigabytes or need more than a program.
_NOT_ON_RDMA = [
    "arrival_steps",
    "bad_arguments",
    "fork_epoll_churn",
    "fork_steps",
    "loader",
    "new_sessions",
    "partial_results",
    "raw_syscalls",
    "reused_numbers",
    "signal_steps",
    "uring_calls",
    "uring_steps",
    "uring_streams",
]

ON_RDMA = [program for program in PROGRAMS if program not in _NOT_ON_RDMA]
