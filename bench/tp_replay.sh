#!/bin/sh
# Tensor-parallel replay on two GPUs, from the repository's root: sh bench/tp_replay.sh [FOLDER]
# Profiles bloom-560m's shape with --tp 2, replays each rank in order (two passes each, run twice), hot and cold, and
# fails if a replay does not end with 0 or 1 (1: collectives are not replayed), or if the two runs' same-kernel shares
# of computation differ.
set -eu
out=${1:-tp_replay}
export PYTHONPATH="$(pwd)${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
cd "$out"
python -m lab run kernels profile bloom-560m --tp 2 --max-new-tokens 4 --weights random | tail -n 25
run=$(ls -d experiments/kernels_* | head -n 1)
for rank in 0 1; do
    for mode in in-order in-order hot cold; do
        code=0
        python -m lab run kernels replay "$run" --rank $rank --mode $mode --repeats 5 >log 2>&1 || code=$?
        echo "== rank $rank, $mode: exit $code"
        grep -E 'same kernel|off by|closure|keeps apart|SIGSEGV|illegal' log || tail -n 20 log
        [ $code -le 1 ] || exit $code
    done
done
python - <<'PY'
import collections, glob, json
shares = collections.defaultdict(set)
for path in sorted(glob.glob("experiments/*/replay.json")):
    found = json.load(open(path))
    kernel = found["coverage"].get("kernel") or found["coverage"]["cpu_op"]
    shares[found["mode"], kernel["launches"]].add(kernel["same_launches"])
    print(path, found["mode"], kernel, [note for note in found["notes"] if "apart" in note])
different = {key: sorted(values) for key, values in shares.items() if len(values) > 1}
print("shares differ between equal replays:", different or "no")
PY
