"""Tests that count what the programs of this directory do."""

load("@rules_shell//shell:sh_test.bzl", "sh_test")

def bench_test(name, programs, size = "small", data = []):
    """Runs NAME.sh with the files of `programs`.

    A sanitizer's own calls would count, too, and other tests would disturb these.

    Args:
      name: the test's.
      programs: the targets that are its arguments.
      size: as for sh_test.
      data: what else it reads.
    """
    sh_test(
        name = name,
        size = size,
        srcs = [name + ".sh"],
        args = ["$(location %s)" % program for program in programs],
        data = programs + data,
        tags = [
            "local",
            "noasan",
            "notsan",
        ],
    )
