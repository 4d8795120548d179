"""What runs in the step's process, in the run folder: time eight copies, write the fastest."""

import json
import sys
import time
from pathlib import Path

mib = int(sys.argv[1])
source = bytes(mib << 20)
copy_s = []
for _ in range(8):
    start_s = time.perf_counter()
    bytearray(source)
    copy_s.append(time.perf_counter() - start_s)
Path("copy/rate.json").write_text(json.dumps({"mib": mib, "gib_per_s": mib / 1024 / min(copy_s)}))
