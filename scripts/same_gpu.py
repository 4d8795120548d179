"""`lab same` on a GPU (else on the CPU, and it says so): does each comparison get the verdict that is due?

    python scripts/same_gpu.py OUT

One training step of a small causal transformer, recorded eager, eager again, compiled, with 10 bits left of
one product's mantissa, with the GPU's TF32, and on the CPU; each is compared with the first. On a GPU every
fused attention, too, with and without dropout: it repeats itself, and seeds that nobody wrote are left out.
Exit code 1 where a verdict is not the one planned. Recordings and verdicts stay in OUT.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from lab import same

WIDTH, HEADS, LAYERS, WORDS = 128, 4, 2, 300
FLOORS = (1, 2, 3)
KERNELS = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


class Model(nn.Module):
    """Scores (batch, time, WORDS) of the next word, for words (batch, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words_BT: torch.Tensor) -> torch.Tensor:
        mask_TT = nn.Transformer.generate_square_subsequent_mask(words_BT.shape[1], device=words_BT.device)
        return self.head(self.layers(self.words(words_BT), mask=mask_TT, is_causal=True))


class Attention(nn.Module):
    """Of (batch, heads, time, width) over itself, by one of torch's kernels."""

    def __init__(self, kernel: SDPBackend, dropout: float) -> None:
        super().__init__()
        self.kernel, self.dropout = kernel, dropout
        self.factor = nn.Parameter(torch.ones((), dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.factor
        with sdpa_kernel(self.kernel):
            return nn.functional.scaled_dot_product_attention(
                scaled, scaled, scaled, dropout_p=self.dropout, is_causal=True
            )


class CutOneProduct(TorchDispatchMode):
    """Leaves 10 bits of the mantissa of the third addmm's result."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func) == "aten.addmm.default":
            self.calls += 1
            if self.calls == 3:
                result = (result.view(torch.int32) & ~0x1FFF).view(torch.float32)
        return result


@contextmanager
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def main(out: Path) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(torch.cuda.get_device_name() if device == "cuda" else "no GPU here: this run is on the CPU")
    eager = model_on(device)
    record(eager, out / "eager.gz")
    for seed in FLOORS:
        with same.nudged(eager, seed):
            record(eager, out / f"floor{seed}.gz")
    results = [
        verdict(out, "again", "op", ("same bits",), lambda path: record(eager, path)),
        verdict(
            out,
            "compiled",
            "ends",
            ("within noise", "same bits"),
            lambda path: record(torch.compile(eager), path, "ends"),
        ),
        verdict(out, "cut", "op", ("differs",), lambda path: record(eager, path, plant=CutOneProduct())),
    ]
    if device == "cuda":
        results += [
            verdict(out, "tf32", "op", ("differs",), lambda path: record(eager, path, plant=tf32())),
            verdict(out, "cpu", "module", ("within noise",), lambda path: record(model_on("cpu"), path)),
        ]
        results += [attention_repeats(out, kernel, dropout) for kernel in KERNELS for dropout in (0.0, 0.1)]
    return 0 if all(results) else 1


def attention_repeats(out: Path, kernel: SDPBackend, dropout: float) -> bool:
    """Whether two equal recordings of an attention are equal by bits, without dropout but for their seeds."""
    x = torch.randn(2, 4, 32, 64, generator=torch.Generator().manual_seed(1)).to("cuda", torch.bfloat16)
    name = f"{kernel.name.lower()}-dropout{dropout:g}"

    def make(path: Path) -> None:
        model = Attention(kernel, dropout).to("cuda")
        torch.manual_seed(5)
        with same.record(model, path):
            model(x).square().mean().backward()

    try:
        make(out / f"{name}-first.gz")
    except RuntimeError as error:
        if not any(words in str(error) for words in ("No available kernel", "No viable backend")):
            raise
        print(f"\n== {name}: not tested, torch has no such kernel here")
        return True
    right = verdict(out, name, "op", ("same bits",), make, first=f"{name}-first", floors=())
    left_out = "philox" in (text := (out / f"{name}.txt").read_text()) or "rng_state" in text
    if left_out is (dropout > 0):
        print(f"NOT as due: the seeds were {'' if left_out else 'not '}left out")
    return right and left_out is (dropout == 0)


def model_on(device: str) -> Model:
    torch.manual_seed(0)
    return Model().to(device)


def record(
    model: Any, path: Path, level: str = "op", *, plant: AbstractContextManager[Any] | None = None
) -> None:
    """Forward and backward of the same batch into `path`."""
    device = next(model.parameters()).device
    words = torch.randint(0, WORDS, (2, 33), generator=torch.Generator().manual_seed(1)).to(device)
    model.zero_grad(set_to_none=True)
    with plant or nullcontext(), same.record(model, path, level=level):
        scores = model(words[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()


def verdict(
    out: Path,
    name: str,
    level: str,
    due: tuple[str, ...],
    make: Callable[[Path], None],
    *,
    first: str = "eager",
    floors: tuple[int, ...] = FLOORS,
) -> bool:
    """Whether `lab same` says of run `name` what is due; its words are printed and kept."""
    make(out / f"{name}.gz")
    noise = [word for seed in floors for word in ("--floor", str(out / f"floor{seed}.gz"))]
    argv = [sys.executable, "-m", "lab", "same", str(out / f"{first}.gz"), str(out / f"{name}.gz"), *noise]
    done = subprocess.run([*argv, "--level", level], capture_output=True, text=True, check=False)
    (out / f"{name}.txt").write_text(done.stdout + done.stderr)
    outcome = (done.stdout.splitlines() + [""] * 3)[2]
    right = outcome.partition(":")[0] in due
    print(f"\n== {first} against {name}: {'as due' if right else 'NOT as due: ' + ' or '.join(due)}")
    print("\n".join((done.stdout + done.stderr).splitlines()[2:12]))
    return right


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
