"""The Triton kernel, run by Triton's interpreter, gives what torch's predicates give."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.torch
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

# The interpreter is chosen when Triton is imported, so it has a process of its own.
PROGRAM = """
import numpy as np, torch
import lab.rooms.nan.watch.kernel as kernel
from lab.rooms.nan.watch.count import plain_counts
generator = torch.Generator().manual_seed(0)
torch.Tensor.get_device = lambda tensor: 0
def check(tensors, dtype):
    launched = kernel.KernelCounter().begin(tensors)
    assert np.array_equal(launched.rows(), plain_counts(tensors)), (dtype, kernel.LEAST_PIECES)
    return sum(len(group.members) for group, *_ in launched._launches)

# Every half and bfloat16 that there is, beside every kind of other; and floats at the borders between kinds.
for dtype in kernel.FORMATS:
    if dtype is torch.float32:
        borders = torch.tensor([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF])
        numbers = torch.cat([borders, borders - 2**31]).to(torch.int32).repeat(200)
    else:
        numbers = torch.arange(-32768, 32768).to(torch.int16)
    numbers = torch.cat([numbers, numbers[torch.randperm(len(numbers), generator=generator)]]).view(dtype)
    finite = numbers[torch.isfinite(numbers)]
    assert check([numbers, finite, numbers[numbers == 0]], dtype) == 3

# Sizes around those of blocks, and pieces of one block and of many.
kernel.LANES, kernel.BLOCK = 16, 64
for dtype, kernel.LEAST_PIECES in ((one, least) for one in kernel.FORMATS for least in (1, 4096)):
    tensors = []
    for size in (2, 64, 128, 130, 1000, 3 * 64 * 2 + 6):
        for bad in (0, 2):
            x = torch.randn(size, generator=generator).to(dtype)
            picked = torch.randint(0, size, (bad * max(1, size // 9),), generator=generator)
            tiny = 1e-7 if dtype is torch.float16 else 1e-40
            kinds = torch.tensor([float("nan"), float("inf"), -float("inf"), tiny])
            x[picked] = kinds[torch.randint(0, 4, (len(picked),), generator=generator)].to(dtype)
            tensors.append(x)
    assert check(tensors, dtype) > 10

# The counter remembers a call's sizes for the next: new values, new sizes and gaps must not be taken for the
# old ones.
real, cut = kernel._groups, []
def spied(*args):
    cut.append(1)
    return real(*args)
kernel._groups = spied
counter = kernel.KernelCounter()
def call(sizes, gap=False):
    made = [torch.randn(2 * n, generator=generator)[:: 2 if gap else 1][:n] for n in sizes]
    made = [x.to(torch.float16 if len(x) % 4 else torch.float32) for x in made]
    made = [x if not gap else torch.stack([x, x], 1)[:, 0] for x in made]
    made[1][0] = float("nan")
    assert np.array_equal(counter(made), plain_counts(made))
    return len(cut)
one, other = (130, 64, 200, 66), (64, 130, 200, 66)
cuts = [call(one), call(one), call(other), call(other, gap=True), call(other)]
cuts += [call((63, 130)), call((63, 130))]
assert cuts == [1, 1, 2, 2, 2, 3, 3], cuts

# What is launched is waited for later: a launch before that must leave the first one's memory alone.
def made(bad):
    some = [torch.randn(130, generator=generator).half() for _ in range(3)]
    some[bad][:2] = float("inf")
    return some
counter = kernel.KernelCounter()
counter(made(0))
lists = [made(1), made(2), made(0)]
pending = [counter.begin(some) for some in lists]
assert all(np.array_equal(one.rows(), plain_counts(some)) for one, some in zip(pending, lists))
again = counter(lists[1])
assert np.array_equal(again, plain_counts(lists[1])), "counts of the launch before were not zeroed"

# Lists of as many tensors, now of this kind, now of that, some of whose memory begins elsewhere or nowhere.
base, counter = torch.randn(4096, generator=generator), kernel.KernelCounter()
def parts(begin, count, dtype, shape):
    return [base[begin + 64 * n :][:64].view(shape).to(dtype) for n in range(count)]
kinds = [((4, 16), torch.float32), ((16, 4), torch.float32), ((4, 16), torch.float16)]
for turn in range(16):
    shape, dtype = kinds[0 if turn < 6 else turn % 3]
    some = parts(4 * turn, 5, dtype, shape)
    some[turn % 5][0, turn % 4] = (1.0, float("nan"), float("-inf"))[turn % 3]
    if turn == 14:  # one whose memory is its own
        some[2].untyped_storage().resize_(0)
        try:
            counter(some)
        except ValueError:
            continue
        raise AssertionError("memory that was freed was read")
    assert np.array_equal(counter(some), plain_counts(some)), turn
    assert np.array_equal(counter(some[::-1]), plain_counts(some[::-1])), turn

# A view with the bit of a sign that torch has not turned yet has other infinities than its memory.
up = torch.full((64,), float("inf"))
for some in ([torch._neg_view(up)], [up], [torch._neg_view(up)]):
    assert np.array_equal(counter(some), plain_counts([some[0].resolve_neg()]))
print("equal")
"""


def test_the_kernel_counts_what_the_predicates_count():
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("pairs", [True, False])
def test_a_gpu_counts_every_number_with_and_without_instructions_for_pairs(monkeypatch, pairs):
    import numpy as np
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    from lab.rooms.nan.watch import kernel
    from lab.rooms.nan.watch.count import FORMATS, plain_counts

    if not pairs:
        monkeypatch.setattr(kernel, "has_pairs", lambda device: False)
    for dtype, (whole, _, _) in FORMATS.items():
        bits = torch.arange(-32768, 32768, device="cuda").to(whole)
        bits = bits * 65537 if whole is torch.int32 else bits
        numbers = torch.cat([bits[torch.randperm(len(bits), device="cuda")] for _ in range(9)]).view(dtype)
        tensors = [numbers[:size].clone() for size in (2, 4094, 4098, len(numbers))]
        tensors += [one[torch.isfinite(one)] for one in tensors]
        assert np.array_equal(kernel.KernelCounter()(tensors), plain_counts(tensors)), dtype


@pytest.mark.gpu
def test_a_gpu_counts_on_any_stream_and_in_any_thread():
    """On several streams, in a thread that has not used the GPU, and where nobody reads what was counted."""
    import threading

    import numpy as np
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    from lab.rooms.nan.watch import kernel
    from lab.rooms.nan.watch.count import plain_counts

    counter, wrong = kernel.KernelCounter(), []

    def made(turn):
        some = [torch.randn(64 + 2 * n, 8, device="cuda").to(torch.float16) for n in range(100)]
        some[turn % 100][3, 5], some[-1 - turn % 50][1, turn % 8] = float("nan"), -float("inf")
        return some

    def look(turn, some=None):
        some = made(turn) if some is None else some
        if turn % 3 == 2:  # torch gives its pinned memory to others once nobody has it
            counter.begin(made(turn))
            others = torch.full((1 << 10,), 7.0).pin_memory()
        if not np.array_equal(counter(some), plain_counts(some)):
            wrong.append(turn)
        if turn % 3 == 2 and not (others == 7).all():
            wrong.append(f"memory of others, {turn}")

    for turn in range(12):
        look(turn)
    with torch.cuda.stream(torch.cuda.Stream()):
        for turn in range(12, 18):
            look(turn)
    torch.cuda.synchronize()
    some = made(1)
    torch.cuda.synchronize()
    one = threading.Thread(target=look, args=(0, some))
    one.start()
    one.join()
    assert not wrong
