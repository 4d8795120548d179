"""How many recorded launches have an op that can be called again on a CPU: lab and TraceLens' EventReplayer.

Bar: lab covers more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench import traces
from bench.peers import TRACELENS, peer
from bench.table import Row, measured

# Both programs print {"launches", "built", "ran"}: launches recorded, those whose op got its arguments, those
# it ran.
OURS = """
    import json, sys; from pathlib import Path
    import msgspec, tempfile, torch
    from lab.rooms.kernels.replay.calls.source import read_plan
    from lab.rooms.kernels.workload.replay.main import run
    nodes = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    plan = read_plan(Path(sys.argv[1]), nodes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        cpu = torch.device("cpu")
        raw = run(folder / "plan.json", folder, mode="hot", repeats=1, device=cpu)
    def launches(status):
        return sum(len(c.dur_us) for c in plan.calls if raw.signatures[c.sig].status in status)
    whole = sum(len(call.dur_us) for call in plan.calls) + len(plan.orphans)
    print(json.dumps({"launches": whole, "built": launches("ran shapes"), "ran": launches("ran")}))
"""
THEIRS = """
    import gzip, json, sys; from collections import Counter
    sys.path.append(sys.argv[2])
    from TraceLens.EventReplay.event_replay import EventReplayer
    data = open(sys.argv[1], "rb").read()
    events = json.loads(gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data)["traceEvents"]
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    on_gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    owners = [e["args"].get("External id") for e in on_gpu]
    if not owners:
        owners = json.loads(sys.argv[3])
    groups, sample = Counter(), {}
    def key_of(event):
        given = {k: v for k, v in event["args"].items() if "Input" in k or "Concrete" in k}
        return json.dumps([event["name"], given])
    for owner in owners:
        event = ops.get(owner)
        key = key_of(event) if event else ""
        groups[key] += 1
        sample[key] = event
    built = ran = 0
    for key, count in groups.items():
        try:
            replayer = EventReplayer(sample[key], device="cpu")
            built += count
            replayer.replay()
            ran += count
        except Exception:
            pass
    print(json.dumps({"launches": len(owners), "built": built, "ran": ran}))
"""


def main() -> None:
    theirs = peer(TRACELENS)
    with tempfile.TemporaryDirectory() as name:
        for title, trace, nodes in recordings(Path(name)):
            compare(title, trace, nodes, theirs)


def recordings(folder: Path) -> Iterator[tuple[str, Path, Path | None]]:
    """(title, trace, execution trace): recordings of an H200 if present, and a generation made now."""
    shared = traces.DATA / "kernels_h200"
    if shared.is_dir():
        yield (
            "bloom-560m generation on an H200",
            shared / "bloom560m_generate.json.gz",
            shared / "bloom560m_et.json.gz",
        )
        yield "the same, without its execution trace", shared / "bloom560m_generate.json.gz", None
        yield "a training step on an H200, no execution trace", shared / "cs336_small_training.json.gz", None
    here = folder / "run"
    command = [
        "-m",
        "lab",
        "run",
        "--analysis",
        "none",
        "--output-dir",
        str(here),
        "kernels",
        "profile",
        "tiny-bloom",
        "--max-new-tokens",
        "4",
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"no recording could be made here:\n{done.stderr}")
    yield (
        "tiny-bloom generation on this CPU",
        here / "profile/trace_rank0.json.gz",
        here / "profile/execution_trace_rank0.json.gz",
    )


def compare(title: str, trace: Path, nodes: Path | None, theirs: str | None) -> None:
    mine = _run(sys.executable, OURS, str(trace), *([str(nodes)] if nodes else []))
    row = Row(
        f"launches whose op gets its arguments: {title}",
        size=f"{mine['launches']:,} launches",
        cost=f"{_share(mine, 'built')}; ran on the CPU {_share(mine, 'ran')}",
        absent=f"no peer: {TRACELENS} names none",
    )
    if theirs:
        found = _run(theirs, THEIRS, str(trace), sysconfig.get_path("purelib"), json.dumps(_leaves(trace)))
        words = f"TraceLens {_share(found, 'built')}; ran {_share(found, 'ran')}"
        row = replace(row, peer=words, limit="more than the peer", met=mine["built"] > found["built"])
    measured(row)


def _leaves(trace: Path) -> list[int]:
    """External ids of the ops that stand in for launches on a CPU: the same for both."""
    from lab.rooms.kernels.catalogue.rank import read_trail
    from lab.rooms.kernels.trails import Trail

    (rank,) = read_trail(Trail(rank=0, trace=trace))
    ids: list[int] = rank.trace.operators.external_id[rank.rows].tolist()
    return ids


def _share(found: Counter[str], what: str) -> str:
    return f"{found[what]:,} ({100 * found[what] / max(found['launches'], 1):.1f} %)"


def _run(python: str, code: str, *argv: str) -> Counter[str]:
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code), *argv], capture_output=True, text=True, check=False, env=quiet
    )
    if done.returncode:
        raise SystemExit(f"the measured program failed: {python}\n{done.stderr[-2000:]}")
    return Counter(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
