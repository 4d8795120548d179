#!/bin/bash
# Ranks on two NVIDIA GPUs (NCCL), from the repository's root, about eight minutes:
#     bash bench/ranks_h200.sh OUT           # records into OUT, then checks what it can check here
#     bash bench/ranks_h200.sh --check OUT   # checks OUT, on any machine that has lab's analysis packages
# - hangs of each class, and lab's verdict on them;
# - a sweep in which rank 1's host is 30 ms late per step, and GPU 0 is shared with another program (hot);
# - a sweep without either on the default model, which must be bound by the GPUs;
# - a run under a tuner file with 8 channels, which no other run has, and the proof of its effect;
# - a sweep over algorithms and protocols of DDP's all-reduces, each of which the log must confirm, and whose
#   profiles hold the streams' waits that bind the replay.
# It needs torch, lab's packages, and a C compiler (or a built plugin in TUNER_SO=PATH).
set -u
export PYTHONPATH="$(pwd)${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
LAB="python -m lab"
failed=0

say() { echo "== $*"; }
bad() { echo "FAILED: $*"; failed=1; }

hangs() {
    for case in healthy not_joined mismatched order_deadlock stuck_kernel; do
        mkdir -p "$1/hang/$case"
        timeout 110 python -m torch.distributed.run --nproc_per_node 2 --rdzv_backend c10d \
            --rdzv_endpoint localhost:0 --rdzv_id "$case" -m tests.workload.hang_job "$case" "$1/hang/$case" 25 \
            >"$1/hang/$case/output.log" 2>&1 &
    done
    wait
}

sweeps() {
    common="--pause 0 --override training.max_steps=28 --override profiling.wait=22"
    python - <<'PY' &
import torch
a = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
PY
    burner=$!
    trap 'kill $burner 2>/dev/null' EXIT
    say "sweep with a late rank 1 and a hot GPU 0"
    LAB_PLANT=late:1:30 PYTHONPATH="$PYTHONPATH:$(pwd)/bench/planted" timeout 240 $LAB run --analysis none -q \
        -o "$1/planted" sweep -f llm -c 2,24 -t 512 --repeats 3 $common || bad "the planted sweep"
    kill $burner 2>/dev/null
    trap - EXIT
    say "one setting of the default model"
    timeout 100 $LAB run --analysis none -q -o "$1/wide" sweep -c 0 -t 0 $common || bad "the default model"
    say "a run under a tuner file"
    printf '# lab\n' >"$1/eight.conf"
    for kind in allgather reducescatter allreduce; do
        echo "$kind,1048576,18446744073709551615,ring,simple,8,-1,2" >>"$1/eight.conf"
    done
    so=${TUNER_SO:-$1/nccl_tuner.so}
    [ -e "$so" ] || cc -shared -fPIC -O2 -o "$so" bench/nccl_tuner.c || { bad "no tuner plugin"; return; }
    timeout 100 $LAB run --analysis none -q -o "$1/tuned" sweep -f llm --tuner "$1/eight.conf" \
        --tuner-plugin "$(realpath "$so")" $common || bad "the run under the tuner file"
    say "a sweep over algorithms and protocols"
    timeout 200 $LAB run --analysis none -q -o "$1/how" sweep -f llm -c 0 -t 0 --algorithms ring,tree \
        --protocols simple,ll128 --override distributed.mode=ddp $common || bad "the sweep over algorithms"
}

check() {
    python -c 'import pandas, matplotlib' 2>/dev/null || { say "no analysis packages here: --check OUT elsewhere"; return; }
    for case in healthy not_joined mismatched order_deadlock stuck_kernel; do
        [ "$case" = healthy ] && { grep -q "is through" "$1/hang/$case/output.log" || bad "the healthy job"; continue; }
        got=$($LAB ranks hang "$1/hang/$case/hang" --json 2>/dev/null)
        echo "hang $case: $got"
        echo "$got" | grep -q "\"class\":\"$case\"" || bad "hang $case"
    done
    $LAB ranks "$1/planted" --out "$1/account" -q >"$1/account.txt" 2>&1
    grep -E "Rank|clock|GPU of|bound" "$1/account.txt" | head -n 30
    $LAB ranks "$1/planted" --json -q 2>/dev/null | python -c '
import collections, json, sys
found = collections.Counter(
    (f["rank"], f["cause"]) for one in json.load(sys.stdin)["settings"] for f in one["findings"])
print("findings over 6 runs:", dict(found))
sys.exit(not (found[1, "host_late"] >= 5 and found[0, "slow_kernels"] >= 4))' || bad "planted late rank 1 and hot GPU 0"
    say "what to set, by the planted sweep: 24 channels expected for large sizes"
    $LAB ranks tuner "$1/planted" --for nccl --out "$1/tuner" -q
    grep -qE "^[a-z]+,.*,24,-1,2$" "$1/tuner/nccl_tuner.conf" || bad "24 channels are not set"
    say "proof of the tuner file"
    $LAB ranks tuner "$1/planted" --for nccl --out "$1/tuner" --run "$1/tuned" --file "$1/eight.conf" -q |
        grep -E "took effect|not proven|did not|Without"
    say "algorithms and protocols"
    $LAB analyze "$1/how" --out "$1/how_page" -q >"$1/how.txt" 2>&1 || bad "an algorithm or protocol is not proven"
    grep -E "lgorithm|rotocol" "$1/how.txt" | head -n 12
    $LAB ranks tuner "$1/how" --for nccl --out "$1/how_tuner" -q | head -n 12
    $LAB ranks "$1/how" --json -q 2>/dev/null | python -c '
import json, sys
found = json.load(sys.stdin)["settings"]
print("replayed", [bool(one["what_if"]) for one in found], [text for one in found for text in one["withheld"] + one["notes"]])
sys.exit(not all(one["what_if"] for one in found))' || bad "recorded waits of streams do not repeat the steps"
    $LAB analyze "$1/wide" --out "$1/wide_page" -q 2>&1 | head -n 12
    grep -q "set the pace\|bound by the" <($LAB ranks "$1/wide" --out "$1/wide_account" -q) && bad "the default model is bound by hosts"
    cat "$1"/wide/0thread/nccl_0channels/gpu_clocks.json; echo
}

if [ "${1:-}" = --check ]; then
    check "$2"
else
    mkdir -p "$1"
    hangs "$1"
    sweeps "$1"
    check "$1"
fi
[ $failed = 0 ] && say "all as planted" || exit 1
