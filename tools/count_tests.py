#!/usr/bin/env python3
"""Adds up the results of several `bazel test` runs.

usage: count_tests.py DIRECTORY CONFIG...

DIRECTORY holds, for each CONFIG, CONFIG.json (what --build_event_json_file
wrote), CONFIG.status (bazel's exit status), if tests were left out
CONFIG.skipped (their labels), and CONFIG.failed (what failed before bazel).  Lists what was skipped, what passed only on a
second or third try, and what failed, then prints `N passed, N failed, N
skipped`, and fails if any failed.
"""

import json
import pathlib
import sys


def results(path):
    """{label: passed} of the tests that ran or could not be built, and those
    of them that needed more than one try."""
    tests, is_test, retried = {}, set(), []
    text = path.read_text() if path.exists() else ""
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # cut off: bazel died; its status tells
            break
        ident = event["id"]
        if "targetConfigured" in ident:
            kind = event.get("configured", {}).get("targetKind", "")
            if kind.endswith(("_test rule", "test_suite rule")):
                is_test.add(ident["targetConfigured"]["label"])
        elif "targetCompleted" in ident:
            label = ident["targetCompleted"]["label"]
            if label in is_test and not event.get("completed", {}).get("success"):
                tests[label] = False  # not built
        elif "testSummary" in ident:
            status = event["testSummary"]["overallStatus"]
            label = ident["testSummary"]["label"]
            # FLAKY: it has passed, but not at the first try.
            tests[label] = status in ("PASSED", "FLAKY")
            if status == "FLAKY":
                retried.append(label)
    return tests, retried


def main():
    directory = pathlib.Path(sys.argv[1])
    passed, failed, skipped, again = 0, [], [], []
    for config in sys.argv[2:]:
        tests, retried = results(directory / f"{config}.json")
        again += [f"{label} ({config})" for label in retried]
        status = int((directory / f"{config}.status").read_text())
        passed += sum(tests.values())
        bad = [f"{label} ({config})" for label, ok in tests.items() if not ok]
        if (status != 0 or not tests) and not bad:
            bad = [f"bazel itself: exit status {status}, {len(tests)} tests "
                   f"({config})"]
        failed += bad
        before = directory / f"{config}.failed"
        if before.exists():
            failed += [f"{label} ({config})"
                       for label in before.read_text().split()]
        left_out = directory / f"{config}.skipped"
        if left_out.exists():
            skipped += [f"{label} ({config})"
                        for label in left_out.read_text().split()]
    for line in skipped:
        print(f"SKIPPED: {line}")
    for line in again:
        print(f"NOT AT ONCE: {line}")
    for line in failed:
        print(f"FAILED: {line}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
