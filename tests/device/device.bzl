"""Tests on the device of this directory (see README.md)."""

load("@rules_shell//shell:sh_test.bzl", "sh_test")

# All that a device may do, and hardly any does.
NASTY = ",".join([
    "unordered",
    "late_flush",
    "late_events",
    "keys=relaxed",
    "inline=0",
    "max_qp_wr=64",
    "max_cqe=512",
    "max_srq_wr=256",
    "max_sge=1",
    "vectors=1",
])

# What must be seen to have happened there.
NASTY_SEEN = [
    "late_flushes",
    "delayed_events",
    "relaxed_keys",
    "strict_keys=0",
]

# The tags of a test that tools/test runs with --long only.
RARE = [
    "manual",
    "rare",
]

def device_test(name, binary, args = [], data = [], devices = ["ib", "iwarp"], options = "", expect = [], tags = [], rare = "", **kwargs):
    """Runs a test program on the device, once with each transport: NAME_ib, NAME_iwarp.

    Args:
      name: the tests' common name.
      binary: the program.
      args: its arguments.
      data: what else it reads.
      devices: of "ib", "iwarp".
      options: the device's, with commas between.
      expect: counts of the device that must not be 0, or with "=0" must be.
      tags: the tests'.
      rare: the transport that tools/test runs with --long only, if any.
      **kwargs: for sh_test.
    """
    for device in devices:
        sh_test(
            name = "%s_%s" % (name, device),
            srcs = ["//tests/device:with_device"],
            args = [
                device + ("," + options if options else ""),
                ",".join(["overruns=0", "of_parent=0"] + expect),
                "$(location %s)" % binary,
            ] + args,
            data = [binary, "//tests/device"] + data,
            tags = tags + (RARE if device == rare and "rare" not in tags else []),
            **kwargs
        )
