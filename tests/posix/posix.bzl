"""Rules of tests/posix: programs that know sockets, and the tests that run them."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_test")
load("@rules_shell//shell:sh_test.bzl", "sh_test")
load("//tools/cc:copts.bzl", "COPTS")

PRELOAD = "//preload:librcsock_preload.so"

# Such a test runs without sanitizers only.
UNSANITIZED = [
    "noasan",
    "notsan",
]


def program(name, srcs = None, copts = [], **kwargs):
    """A program: NAME.cc, which need not look at what a call returns."""
    cc_binary(
        name = name,
        testonly = True,
        srcs = [name + ".cc"] if srcs == None else srcs,
        copts = COPTS + ["-Wno-unused-result"] + copts,
        **kwargs
    )

def preloaded(name, srcs = None, **kwargs):
    """libNAME.so, which a test preloads or opens."""
    cc_binary(
        name = "lib%s.so" % name,
        testonly = True,
        srcs = [name + ".cc"] if srcs == None else srcs,
        copts = COPTS,
        linkshared = True,
        **kwargs
    )

def _is_label(word):
    return word[:1] == ":" or word[:2] == "//"

def script_test(name, script = None, args = [PRELOAD], data = [], tags = ["block-network"] + UNSANITIZED, size = "medium", **kwargs):
    """Runs NAME.sh, or `script`, with `args`; those that are labels by their paths."""
    sh_test(
        name = name,
        size = size,
        srcs = [script or name + ".sh"],
        args = [
            "$(location %s)" % word if _is_label(word) else word
            for word in args
        ],
        data = [word for word in args if _is_label(word)] + data,
        tags = tags,
        **kwargs
    )

def pair_test(name, program, mode, cases = [], libraries = [PRELOAD], data = [], tags = ["block-network"], size = "medium", **kwargs):
    """Runs the cases of `program` over plain TCP and under `libraries`, and compares.

    Args:
      name: of the test
      program: a label
      mode: lane, early or default (README.md)
      cases: parts of the names of those that run; none: all
      libraries: what LD_PRELOAD says, in this order
      data: more files
      tags: as of every test
      size: as of every test
      **kwargs: as of every test
    """
    sh_test(
        name = name,
        size = size,
        srcs = ["both"],
        args = [
            "$(location %s)" % program,
            ":".join(["$(location %s)" % library for library in libraries]),
            mode,
        ] + cases,
        data = [program] + libraries + data,
        tags = tags,
        **kwargs
    )

def unit_test(name, deps, size = "small", **kwargs):
    """NAME.cc, with GoogleTest and parts of the library."""
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        copts = COPTS,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
