#!/usr/bin/env python3
"""Says which versions of symbols each file wants of the system's libraries, and
fails where a glibc of the given version has not got them all.

usage: symbol_versions.py VERSION FILE...
"""
import re
import subprocess
import sys

# glibc's and GCC's libraries: every system with glibc has them. libdl and
# libpthread are glibc's own of before 2.34, and are still there.
SYSTEM = {
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
}
# RHEL 7, with glibc 2.17, has GCC 4.8. Our own libraries come together.
MOST = {"GCC": (4, 8), "RCSOCK": (0,)}


def output(*command):
    return subprocess.run(
        command, check=True, text=True, capture_output=True, env={"LC_ALL": "C"}
    ).stdout


def number(text):
    return tuple(int(part) for part in text.split("."))


def wanted_symbols(file):
    """The (version, symbol) pairs that the file does not define itself."""
    pairs = []
    for line in output("/usr/bin/readelf", "--dyn-syms", "--wide", file).splitlines():
        columns = line.split()
        if len(columns) < 8 or columns[6] != "UND":
            continue
        symbol, _, version = columns[7].partition("@")
        pairs.append((version.lstrip("@"), symbol))
    return pairs


def check(file, most):
    text = output("/usr/bin/readelf", "--dynamic", "--wide", file)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    ours = {one for one in needed if one.startswith("librcsock")}
    wrong = [f"needs {one}" for one in needed if one not in SYSTEM | ours]
    versions = {}
    for version, symbol in wanted_symbols(file):
        versions.setdefault(version, []).append(symbol)
    print(f"{file}: needs {' '.join(needed)}")
    highest = (0,)
    for version, symbols in sorted(versions.items()):
        # Weak ones that nothing may define, such as __gmon_start__.
        if not version:
            continue
        family, _, digits = version.partition("_")
        plain = re.fullmatch(r"[0-9.]+", digits) is not None
        if family == "GLIBC" and plain:
            highest = max(highest, number(digits))
        bound = most if family == "GLIBC" else MOST.get(family)
        if not plain or bound is None or number(digits) > bound:
            wrong.append(f"wants {version}: {' '.join(sorted(symbols))}")
    print(f"  glibc {'.'.join(map(str, highest))}, {sum(map(len, versions.values()))} symbols")
    for line in wrong:
        print(f"  FAILED: {line}")
    # A file without a version of glibc's would be none of ours.
    if highest == (0,):
        print("  FAILED: wants no version of glibc")
        return False
    return not wrong


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    most = number(sys.argv[1])
    results = [check(file, most) for file in sys.argv[2:]]
    sys.exit(0 if all(results) else 1)


main()
