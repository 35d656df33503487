"""A room of lib/posix: a library of its own, which the rooms above may use."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//tools/cc:copts.bzl", "COPTS")

# The lowest room first.  //tests/posix:rooms_test reads it.
ROOMS = [
    "sys",
    "thread",
    "fd",
    "sharing",
    "policy",
]

# For the test: objects, sources and BUILD files.
ROOM_LABELS = ["//lib/posix:objects"] + [
    "//lib/posix/%s:%s" % (room, what)
    for room in ROOMS
    for what in ["objects", "sources"]
]

# FORTIFY would turn rcsock's own calls into the names that it interposes.
POSIX_COPTS = COPTS + ["-U_FORTIFY_SOURCE"]

def room(name, deps):
    """All sources of the package, as one library.

    Args:
      name: the room's, which is the package's.
      deps: rooms below, and what is below lib/posix.
    """
    cc_library(
        name = name,
        srcs = native.glob(["*.cc"]),
        hdrs = native.glob(["*.h"]),
        copts = POSIX_COPTS,
        visibility = [
            "//lib/posix:__pkg__",
            "//tests/posix:__pkg__",
        ] + ["//lib/posix/%s:__pkg__" % above for above in ROOMS[ROOMS.index(name) + 1:]],
        deps = deps,
    )
    native.filegroup(
        name = "objects",
        srcs = [name],
        output_group = "compilation_outputs",
        visibility = ["//tests/posix:__pkg__"],
    )
    native.filegroup(
        name = "sources",
        srcs = native.glob([
            "*.cc",
            "*.h",
            "BUILD",
        ]),
        visibility = ["//tests/posix:__pkg__"],
    )
