#!/bin/bash
# usage: measure_test MEASURE
#
# count_for of tools/measure.py: each kind has its own count, so that windows are
# about as long as asked, whatever a short run loses at its start.
set -euo pipefail
PYTHONPATH=$(dirname "$1") PYTHONDONTWRITEBYTECODE=1 python3 - <<'END'
import measure

plain = measure.Session(None, False)
START = 0.01  # seconds that are lost
for each in 1e4, 1e5, 2e6:
    runs = []

    def rate_of(session, n):
        assert not session.under_rcsock
        runs.append(n)
        return n / (START + n / each)

    for seconds in 0.5, 1, 3:
        count = measure.count_for(plain, str(each), seconds, 4000, rate_of)
        took = START + count / each
        assert 0.8 * seconds < took < 1.2 * seconds, (each, seconds, took)
    assert len(runs) <= 2, runs

    # Another kind is asked by itself.
    under = measure.Session(None, True)
    asked = []
    measure.count_for(under, str(each), 1, 4000,
                      lambda session, n: asked.append(session.under_rcsock) or 5e5)
    assert asked and all(asked), asked
    under.__exit__()
plain.__exit__()
END
