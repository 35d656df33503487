"""Tests that run in a guest with an RDMA device (see README.md)."""

load("@rules_shell//shell:sh_test.bzl", "sh_test")
load("//tests/device:device.bzl", "RARE")

# Not in the sandbox, which has neither ptrace nor /dev/shm for the guest's kernel;
# and a program in a guest has 512 GiB of addresses, where ASan finds no place for
# its shadow memory.
TAGS = [
    "guest",
    "local",
    "noasan",
    "notsan",
]

def guest_test(name, binary, args = [], data = [], devices = ["rxe", "siw"], seconds = 240, tags = [], flaky = True, rare = "", **kwargs):
    """Runs a test program in a guest, once with each device: NAME_rxe, NAME_siw.

    Args:
      name: the tests' common name.
      binary: the program, for example a cc_test that is tagged "manual".
      args: its arguments.
      data: what else it reads.
      devices: of "rxe", "siw", "none".
      seconds: its time limit.
      tags: beside those that all these tests have.
      rare: the device whose test tools/test runs with --long only, if any.
      flaky: three tries: much in a guest depends on how the host schedules it.
      **kwargs: for sh_test.
    """
    for device in devices:
        sh_test(
            name = "%s_%s" % (name, device),
            srcs = ["//tests/guest:run"],
            args = ["-d", device, "-t", str(seconds), "$(location %s)" % binary] + args,
            data = [binary, "//tests/guest"] + data,
            tags = TAGS + tags + (RARE if device == rare else []),
            flaky = flaky,
            **kwargs
        )
