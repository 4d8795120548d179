"""False alarms of `lab check` on real processes: the same program as BASE and as HEAD, again and again.

    python -m bench.gate_aa [--checks 100]

Each check runs as a user's would: fresh processes, interleaved, the first of each side dropped, looks at 3, 6
and 12 processes a side. The allowed slowdown is 0, so that every `regression` is a false alarm; of equal
sides the gate may call one in 200 slower. The first check measures the A/A floors that all use. The program
is a loop of Python, 12 steps of some milliseconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.table import Row, measured
from lab.compare.check.repeat import repeat
from lab.compare.check.sides import sides

PROGRAM = """
import sys, time
times = []
for _ in range(14):
    begin = time.perf_counter()
    sum(i * i for i in range(30_000))
    times.append((time.perf_counter() - begin) * 1e3)
open(sys.argv[1], "w").write('{"step_ms": [' + ", ".join(map(str, times[2:])) + "]}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=100)
    checks = parser.parse_args().checks
    found: Counter[str] = Counter()
    counts, widths, floors = Counter[int](), [], []
    with tempfile.TemporaryDirectory() as root:
        os.environ["XDG_STATE_HOME"] = str(Path(root) / "state")
        program = Path(root) / "work.py"
        program.write_text(PROGRAM)
        command = [sys.executable, "-I", "-S", str(program), "{out}"]
        for number in range(checks):
            with sides(root, root) as both:
                verdict = repeat(both, command, Path(root) / str(number), 0.0, lambda _: None)
            (metric,) = verdict.metrics
            found[verdict.outcome] += 1
            counts[metric.n_base] += 1
            widths.append(metric.detectable or 0.0)
            floors.append(metric.floor or 0.0)
            faster = metric.high is not None and metric.high < 0
            found["faster"] += faster
            print(
                f"{number + 1}: {verdict.outcome} after {metric.n_base} a side, {metric.change:+.2%}",
                flush=True,
            )
    middle = sorted(widths)[len(widths) // 2]
    wrong = f"{found['regression']} called slower, {found['faster']} called faster"
    measured(Row("`lab check` of equal sides: false alarms", size=f"{checks} checks", cost=wrong))
    floor = sorted(floors)[len(floors) // 2]
    print(f"processes a side: {dict(sorted(counts.items()))}; median of what could be seen: {middle:.1%}")
    print(f"median floor at the last look: {floor:.1%}")


if __name__ == "__main__":
    main()
