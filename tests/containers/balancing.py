"""A service's address in the manner of Cilium: programs of the kernel (BPF) give
connect() another destination, and getpeername() the service's address again."""

import ctypes
import os
import platform
import socket
import struct

BPF = {"x86_64": 321, "aarch64": 280}
PROG_LOAD, PROG_ATTACH = 5, 8
CGROUP_SOCK_ADDR = 18
INET4_CONNECT, INET4_GETPEERNAME = 10, 29
# Where struct bpf_sock_addr has these, both big-endian.
ADDRESS, PORT = 4, 24


class Unavailable(Exception):
    pass


def bpf(command, attributes):
    if platform.machine() not in BPF:
        raise Unavailable("the number of bpf(2) is not known")
    text = ctypes.create_string_buffer(attributes, 144)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(BPF[platform.machine()], command, text, len(text))
    if result < 0:
        raise Unavailable(f"bpf: {os.strerror(ctypes.get_errno())}")
    return result


def instruction(code, to=0, source=0, offset=0, value=0):
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


def load(word, register, offset):
    return instruction(0x61, register, word, offset)


def store(word, offset, register):
    return instruction(0x63, word, register, offset)


def move(register, value):
    return instruction(0xb4, register, value=value)


def unless_equal(register, value, skip):
    return instruction(0x56, register, offset=skip, value=value)


def numbers(end):
    """An address and a port as the kernel has them, in signed words."""
    address, port = end
    return (struct.unpack("=i", socket.inet_aton(address))[0], socket.htons(port))


def rewrite(cgroup, kind, old, new):
    """Where a program of the cgroup names the end `old`, it is `new`."""
    (old_address, old_port), (new_address, new_port) = numbers(old), numbers(new)
    code = b"".join([
        load(1, 2, ADDRESS), unless_equal(2, old_address, 6),
        load(1, 2, PORT), unless_equal(2, old_port, 4),
        move(2, new_address), store(1, ADDRESS, 2),
        move(2, new_port), store(1, PORT, 2),
        move(0, 1), instruction(0x95)])
    text = ctypes.create_string_buffer(code)
    license_ = ctypes.create_string_buffer(b"GPL")
    program = bpf(PROG_LOAD, struct.pack(
        "=IIQQIIQII16sII", CGROUP_SOCK_ADDR, len(code) // 8, ctypes.addressof(text),
        ctypes.addressof(license_), 0, 0, 0, 0, 0, b"", 0, kind))
    folder = os.open(cgroup, os.O_RDONLY)
    try:
        # It stays with the cgroup.
        bpf(PROG_ATTACH, struct.pack("=IIII", folder, program, kind, 0))
    finally:
        os.close(folder)
        os.close(program)


def balance(cgroup, service, server):
    """Programs in the cgroup that call `service` reach `server`, unawares."""
    rewrite(cgroup, INET4_CONNECT, service, server)
    rewrite(cgroup, INET4_GETPEERNAME, server, service)
