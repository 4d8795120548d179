"""One process of a benchmark: the milliseconds of each step, as JSON. WIDTH is what a change made larger."""

import json
import os
import sys
import time

WIDTH = int(os.environ.get("WIDTH", "20000"))
step_ms = []
for _ in range(12):
    start_ns = time.perf_counter_ns()
    sum(index * index for index in range(WIDTH))
    step_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
with open(sys.argv[1], "w") as file:
    json.dump({"step_ms": step_ms}, file)
