"""Replay's checksums on a GPU: what it names, what it costs a training step, and the comparison of GPUs.

1. index_add_ and flash attention's backward, with and without deterministic algorithms: the operator that is
named, and whether repeats agree. 2. The fused checksum against numpy, and its time per GiB. 3. A
7B-shaped Mistral (bfloat16, random weights, fused AdamW) with `--level module` and without, in turns; the bar
is 3 % at 8,192 tokens. 4. `lab run trials gpus`. LAB_BENCH_LAYERS makes the model smaller.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.table import Row, at_most, measured

BAR = 1.03
TURNS, STEPS = 4, 3


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which older torch asks for
    import torch

    if not torch.cuda.is_available():
        sys.exit("this bench needs a GPU: nothing was measured")
    named()
    kernel()
    for tokens in (2048, 8192):
        try:
            cost(tokens)
        except torch.OutOfMemoryError:
            print(f"{tokens} tokens: out of memory, not measured")
        torch.cuda.empty_cache()
    box()


def named() -> None:
    """Each model under the recorder, three repeats of one step, with the switch and without."""
    import torch
    from torch import nn

    from lab.compare.same.steps import gather, judge_steps
    from lab.compare.same.steps_text import notes_of
    from lab.rooms.trials.workload.replay.training import Training

    class Rows(nn.Module):
        def forward(self, x: Any) -> Any:
            index = torch.arange(len(x), device=x.device) % 7
            return torch.zeros(7, x.shape[1], device=x.device, dtype=x.dtype).index_add_(0, index, x)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(512, 3 * 512)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).view(4, 2048, 3, 8, 64).permute(2, 0, 3, 1, 4)
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
                return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    cases: dict[str, tuple[Callable[[], Any], tuple[int, ...], Any]] = {
        "index_add_": (lambda: nn.Sequential(nn.Linear(64, 64), Rows()), (1 << 16, 64), torch.float32),
        "flash attention backward": (Attention, (4, 2048, 512), torch.bfloat16),
    }
    for name, (make, shape, dtype) in cases.items():
        for switch in (False, True):
            torch.use_deterministic_algorithms(
                switch
            )  # flash attention's backward heeds it only without warn_only
            torch.manual_seed(0)
            model = make().to("cuda", dtype)
            x = torch.randn(shape, device="cuda", dtype=dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            with tempfile.TemporaryDirectory() as folder:
                recorder = Training(Path(folder), steps=1, repeats=3, level="op", leave=False)
                recorder.start()
                model(x).float().square().mean().backward()
                optimizer.step()
                recorder.stop(ended=True)
                records, _ = gather([("run-0", Path(folder))])
            found = judge_steps(records)
            first = found.first_place
            place = str(first or "no difference")
            switch_text = first.switch if first and first.switch else "-"
            print(f"{name}, deterministic {'on' if switch else 'off'}: {found.outcome}; {place}")
            print(f"   known switch: {switch_text}; repeats {'agree' if found.repeats_agree else 'differ'}")
            for note in notes_of(records[0]):
                print(f"   note: {note}")
    torch.use_deterministic_algorithms(False)


def kernel() -> None:
    import torch

    from lab.workload.recorder.bits import Sums, host_sum

    device = torch.device("cuda", 0)
    sums = Sums(device)
    print(f"fused kernel: {'yes' if sums.kernel else 'NO: numpy on the host'}")
    kinds, sizes = (torch.float32, torch.bfloat16), (1, 3, 1000, 10**7 + 1)
    odd = [torch.randn(n, device=device).to(kind) for n in sizes for kind in kinds]
    odd += [torch.randn(999, device=device, dtype=torch.bfloat16)[1:], torch.empty(0, device=device)]
    slots = sums.add(odd) + [sums.add([one])[0] for one in odd]
    texts = sums.read()
    wanted = [f"{host_sum(one.cpu()):016x}" for one in odd] * 2
    same = [texts[at] for at in slots] == wanted
    print(f"fused kernel equals numpy: {'yes' if same else 'NO'}")
    big = torch.randn(1 << 28, device=device)
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        sums.add([big])
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    print(f"1 GiB of float32: {statistics.median(times):.3f} ms (sum of int64 words alone: 0.27 ms)")
    sums.read()


def cost(tokens: int) -> None:
    """Steps with the recorder and without, in turns; the first of a turn is not counted."""
    from bench.nan_guard import mistral, now
    from lab.rooms.trials.workload.replay.training import Training

    os.environ["LAB_BENCH_TOKENS"] = str(tokens)
    _model, optimizer, loss = mistral()

    def steps(count: int) -> list[float]:
        found = []
        for _ in range(count):
            began = now(True)
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            found.append(now(True) - began)
        return found

    steps(2)
    took: dict[str, list[float]] = {"plain": [], "recorded": []}
    events = 0
    for turn in range(TURNS):
        for way in ("plain", "recorded")[:: 1 if turn % 2 else -1]:
            if way == "plain":
                took[way] += steps(1 + STEPS)[1:]
                continue
            with tempfile.TemporaryDirectory() as folder:
                recorder = Training(Path(folder), steps=99, repeats=0, level="module", leave=False)
                recorder.start()
                try:
                    took[way] += steps(1 + STEPS)[1:]
                    events = recorder.rows.written // (1 + STEPS) if recorder.rows else 0
                finally:
                    recorder.stop(ended=True)
    plain, recorded = (statistics.median(took[way]) for way in took)
    ratio = recorded / plain
    bar = f"   bar {BAR:g}x: {'met' if ratio <= BAR else 'MISSED'}" if tokens == 8192 else ""
    low, _, high = statistics.quantiles(took["plain"], n=4)
    limit, met = at_most(ratio, BAR, "x")
    measured(
        Row(
            "a training step of the 7B shape with checksums",
            size=f"{tokens:,} tokens",
            cost=f"{1e3 * recorded:.1f} ms",
            peer=f"plain {1e3 * plain:.1f} ms",
            ratio=1 / ratio,
            limit=f"{limit} the time" if tokens == 8192 else "",
            met=met if tokens == 8192 else None,
        )
    )
    print(
        f"7B shape, {tokens} tokens: {1e3 * plain:.1f} ms plain ({1e3 * low:.1f} to {1e3 * high:.1f}), "
        f"{1e3 * recorded:.1f} ms with {events} checksums a step: x{ratio:.4f}{bar}"
    )


def box() -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "-q", "-o", f"{folder}/out", "trials", "-n", "2", "gpus"]
        done = subprocess.run(
            [sys.executable, "-m", "lab", *words], capture_output=True, text=True, check=False
        )
        print(done.stdout[-6000:], done.stderr[-1500:], f"exit code {done.returncode}")


if __name__ == "__main__":
    main()
