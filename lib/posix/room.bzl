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
    "socket",
    "iomux",
    "lifecycle",
    "hooks",
]

# Above all rooms: the libraries that programs get.
CALLERS = [
    "lib/api",
    "preload",
]

# For the test: objects, sources and BUILD files.
ROOM_LABELS = [
    "//lib/posix/%s:%s" % (room, what)
    for room in ROOMS
    for what in ["objects", "sources"]
] + ["//%s:sources" % caller for caller in CALLERS]

# FORTIFY would turn rcsock's own calls into the names that it interposes.
POSIX_COPTS = COPTS + ["-U_FORTIFY_SOURCE"]

def room(name, deps, callers = [], plain = []):
    """All sources of the package, as one library.

    Args:
      name: the room's, which is the package's.
      deps: rooms below, and what is below lib/posix.
      callers: those of CALLERS that may include the room's headers.
      plain: headers that need no other of the room.  Each is a library too, for
        tools and tests.
    """
    cc_library(
        name = name,
        srcs = native.glob(["*.cc"]),
        hdrs = native.glob(
            ["*.h"],
            exclude = plain,
        ),
        copts = POSIX_COPTS,
        visibility = [
            "//tests/posix:__pkg__",
        ] + ["//lib/posix/%s:__pkg__" % above for above in ROOMS[ROOMS.index(name) + 1:]] + [
            "//%s:__pkg__" % caller
            for caller in callers
        ],
        deps = deps + [":" + header[:-len(".h")] for header in plain],
    )
    for header in plain:
        cc_library(
            name = header[:-len(".h")],
            hdrs = [header],
            copts = COPTS,
            visibility = ["//visibility:public"],
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
