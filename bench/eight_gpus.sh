#!/bin/bash
# The original sweep as it was run, and a pipeline with planted faults, on eight GPUs (NCCL) in under ten minutes:
#     bash bench/eight_gpus.sh OUT           # records into OUT, checks itself, leaves what is small in OUT/keep
#     bash bench/eight_gpus.sh --check OUT   # checks OUT again, on any machine with lab's analysis packages
# GPUS=2 bash bench/eight_gpus.sh OUT runs it on two GPUs, or on the CPU with two gloo ranks where there are none.
# - the sweep -c 28,42,56,70 -t 256,512 of the default model, unprofiled step times beside the profiled ones;
# - TP x PP x DP with three layers more on stage 1, and the same with a late host: `lab ranks` must name both;
# - a receive without its send: `lab ranks hang` must name rank 0.
set -u
export PYTHONPATH="$(pwd)${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
LAB="python -m lab"
GPUS=${GPUS:-8}
BEGAN=$(date +%s)
case $GPUS in 8) SHAPE=2,2,2 ;; 4) SHAPE=2,2,1 ;; *) SHAPE=2,1,1 ;; esac
ON_GPU=$(python -c "import torch; print(int(torch.cuda.device_count() >= $GPUS))" 2>/dev/null || echo 0)
failed=0

say() { echo "== $* ($(($(date +%s) - BEGAN)) s)"; }
bad() { echo "FAILED: $*"; failed=1; }
spread() { timeout "$1" python -m torch.distributed.run --nproc_per_node "$GPUS" --rdzv_backend c10d \
    --rdzv_endpoint localhost:0 bench/planted/pipeline.py "${@:2}"; }

record() {
    say "the sweep"
    if [ "$ON_GPU" = 1 ]; then
        timeout 330 $LAB run --analysis none -q -o "$1/sweep" sweep -c 28,42,56,70 -t 256,512 --ranks "$GPUS" \
            --repeats 2 --pause 0 --override training.max_steps=20 --override profiling.wait=14 || bad "the sweep"
    else
        timeout 330 $LAB run --analysis none -q --engine local -o "$1/sweep" sweep -c 28,42 -t 256 \
            --ranks "$GPUS" --repeats 2 --pause 0 -f tiny || bad "the sweep"
    fi
    for case in even slow late; do
        say "the pipeline, $case"
        faults=""
        [ "$case" = slow ] && faults="--slow 1:3"
        [ "$case" = late ] && faults="--late 0:12"
        spread 100 "$1/$case" --shape "$SHAPE" $faults >"$1/$case.log" 2>&1 || bad "the pipeline, $case"
    done
    say "a hang in recv"
    mkdir -p "$1/hang"
    TORCH_FR_BUFFER_SIZE=2000 spread 60 "$1/hang" --shape "$SHAPE" --hang >"$1/hang.log" 2>&1
}

check() {
    python - "$1" "$ON_GPU" "$GPUS" <<'PY' || bad "what was planted"
import collections, json, statistics, subprocess, sys
from pathlib import Path

out, on_gpu, gpus = Path(sys.argv[1]), sys.argv[2] == "1", int(sys.argv[3])
wrong = []


def lab(*words, ok=(0,)):
    done = subprocess.run([sys.executable, "-m", "lab", *map(str, words)], capture_output=True, text=True)
    if done.returncode not in ok:
        wrong.append(f"lab {' '.join(map(str, words))}: exit code {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def check(holds, text):
    print("ok  " if holds else "BAD ", text)
    if not holds:
        wrong.append(text)


def step_ms(case):
    by_rank = json.loads((out / case / "steps.json").read_text())
    return statistics.median(max(lengths) for lengths in zip(*by_rank))


unprofiled = {case: step_ms(case) for case in ("even", "slow", "late")}
print("unprofiled ms per step:", {case: round(ms, 2) for case, ms in unprofiled.items()})
for case in ("even", "slow", "late"):
    found = json.loads(lab("ranks", out / case, "--json", "-q", ok=(0, 1)) or "{}")
    for row in found.get("steps", []):
        parts = sum(value for name, value in row.items() if name.endswith("_ns") and name not in ("step_ns", "not_separable_ns", "entered_late_ns"))
        if parts != row["step_ns"]:
            wrong.append(f"{case}: the parts of rank {row['rank']}, step {row['step']} do not sum to it")
    findings = {(f["rank"], f["cause"]): f for f in found.get("findings", [])}
    print(case, found.get("pipelines"), [f["text"] for f in found.get("findings", [])][:4])
    if not on_gpu:
        continue  # gloo records no send and no receive
    check(bool(found["pipelines"]), f"{case}: pipelines are told")
    half = gpus // 2
    if case == "slow":
        named = {rank for rank, cause in findings if cause == "more_work"}
        check(named == set(range(half, gpus)) or bool(named) and named <= set(range(half, gpus)), f"slow stage 1 named: {sorted(named)}")
    if case == "late":
        finding = findings.get((0, "host_late"))
        check(finding is not None and 0.8 * 12 <= finding["cost_ms"] <= 1.6 * 12, f"late host of rank 0: {finding and finding['cost_ms']} ms for 12")
hang = json.loads(lab("ranks", "hang", out / "hang/hang", "--json", ok=(0, 1)) or "{}")
print("hang:", hang.get("class"), hang.get("ranks"), hang.get("text"))
check(hang.get("ranks") == [0] if on_gpu else hang.get("ranks") in ([0], []), "rank 0 of the hang in recv")

sweep = out / "sweep"
lab("analyze", sweep, "--out", out / "page", "-q", ok=(0, 1))
lab("gemm", "all", sweep, "-o", out / "gemm", "-q", ok=(0, 1) if on_gpu else (0, 1, 4))
if on_gpu:
    effective = collections.Counter()
    import csv

    with (out / "page/tables/effective.csv").open() as file:
        for row in csv.DictReader(file):
            effective[row["channels_verdict"], row["threads_verdict"]] += 1
    print("requested and effective:", dict(effective))
    check(any("honoured" in key for key in effective), "channels or threads honoured by the kernels")
    logs = [path.read_text(errors="replace") for path in sweep.rglob("nccl.*.log")]
    check(any("28 coll channels" in text for text in logs), "28 channels by NCCL's log")
    halves = [out / "half_256", out / "half_512"]
    for half, threads in zip(halves, (256, 512)):
        half.mkdir(exist_ok=True)
        target = half / f"{threads}thread"
        target.exists() or target.symlink_to((sweep / f"{threads}thread").resolve())
    lab("gemm", "compare", *halves, "-o", out / "compared/page.html", "-q", ok=(0, 1))
    check((out / "compared/page.html").is_file(), "the comparison of both halves")
print("\n".join(["wrong:", *wrong]) if wrong else "nothing wrong")
sys.exit(bool(wrong))
PY
    mkdir -p "$1/keep"
    cp "$1"/page/report.html "$1"/page/findings.json "$1"/compared/page.html "$1"/*/steps.json "$1/keep/" 2>/dev/null
    tar -C "$1" -czf "$1/keep/tables.tar.gz" $(cd "$1" && ls -d page/tables */steps.json hang/hang 2>/dev/null) 2>/dev/null
    nvidia-smi --query-gpu=index,name,clocks.sm,power.draw,temperature.gpu --format=csv >"$1/keep/cards.csv" 2>/dev/null
    du -ch "$1"/keep/* | tail -n 12
}

if [ "${1:-}" = --check ]; then
    check "$2"
else
    mkdir -p "$1"
    record "$1"
    check "$1"
fi
[ $failed = 0 ] && say "all as planted" || exit 1
