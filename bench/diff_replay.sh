#!/bin/sh
# `lab diff A B --replay` on one GPU against three planted changes of known cause, from the repository's root, with
# torch and the packages of lab[analysis]:
# sh bench/diff_replay.sh [FOLDER]. Takes about three minutes; ends with 1 unless each plant gets its verdict.
#   gelu     reads every other column of a tensor: the kernel itself
#   softmax  has its input pushed out of the caches by a fill before it: the neighbourhood, caches
#   mm       runs beside copies on another stream: the neighbourhood, clocks, overlap or contention
set -eu
out=${1:-diff_replay}
export PYTHONPATH="$(pwd)${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
python - "$out" <<'PY'
import sys
import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

out = sys.argv[1]
side = torch.cuda.Stream()
narrow = torch.randn(4096, 2048, device="cuda")
wide = torch.randn(4096, 4096, device="cuda")
small = torch.randn(4096, 2048, device="cuda")  # 32 MiB: within the L2 cache of an H200
big = torch.empty(1 << 28, device="cuda")
left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
copies = [torch.empty(1 << 27, device="cuda") for _ in range(2)]


def step(changed):
    torch.nn.functional.gelu(wide[:, ::2] if changed else narrow)
    if changed:
        small.add_(1.0)
        big.zero_()
    else:
        big.zero_()
        small.add_(1.0)
    torch.softmax(small, -1)
    torch.cuda.synchronize()
    if changed:
        with torch.cuda.stream(side):
            for _ in range(4):
                copies[0].copy_(copies[1])
    for _ in range(4):
        torch.mm(left, right)
    torch.cuda.synchronize()
    if not changed:
        with torch.cuda.stream(side):
            for _ in range(4):
                copies[0].copy_(copies[1])
    torch.cuda.synchronize()


for name, changed in (("a", False), ("b", True)):
    for _ in range(20):
        step(changed)
    observer = ExecutionTraceObserver().register_callback(f"{out}/{name}_et.json")
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=2, active=6, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{out}/{name}.json.gz"),
        record_shapes=True,
        execution_trace_observer=observer,
    ) as recorder:
        for _ in range(8):
            step(changed)
            recorder.step()
PY
code=0
python -m lab diff "$out/a.json.gz" "$out/b.json.gz" --replay -o "$out/diff" --by op \
    --execution-trace-a "$out/a_et.json" --execution-trace-b "$out/b_et.json" || code=$?
echo "lab diff ended with $code"
[ $code -le 1 ] || exit $code # 1: something was not replayed, which the findings say
python - "$out" <<'PY'
import json, sys
found = json.load(open(f"{sys.argv[1]}/diff/findings.json"))
shown = max(found["ranks"], key=lambda one: abs(one["span_ns"]))
wanted = {"aten::gelu": "the kernel itself", "softmax": "caches", "aten::mm": "overlap"}
got = {}
for one in found["replayed"]:
    text = shown["findings"][one["finding"]]["text"]
    print(f"{one['verdict']:58} {text[:110]}\n    {one['reason']}")
    for op in wanted:
        if op in text.split(" ")[0]:
            got.setdefault(op, one["verdict"])
wrong = {op: got.get(op, "not named") for op, words in wanted.items() if words not in got.get(op, "")}
print("each plant got its verdict" if not wrong else f"WRONG: {wrong}")
sys.exit(bool(wrong))
PY
