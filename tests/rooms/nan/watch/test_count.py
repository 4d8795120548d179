"""Every way of counting gives what torch's own predicates give, and knows what it does not know."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.errors import UsageError  # noqa: E402
from lab.rooms.nan.watch import count as count  # noqa: E402
from lab.rooms.nan.watch.count import NativeCounts  # noqa: E402
from lab.rooms.nan.watch.native import library  # noqa: E402
from lab.rooms.nan.watch.watch import counter_named  # noqa: E402

NATIVE = NativeCounts(library()) if library() is not None else None
BITS = [NATIVE.exact] if NATIVE else []
SCREENS = [NATIVE.screen] if NATIVE else []
LARGE = 1 << 13

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -65504.0, 6e-8, -1e-40]


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    values = draw(st.lists(st.sampled_from(SPECIAL) | st.floats(width=16), min_size=0, max_size=12))
    return torch.tensor(values, dtype=torch.float32).to(dtype)


@settings(max_examples=80)
@given(st.lists(tensors(), max_size=6))
def test_counting_by_bits_gives_what_the_predicates_give(some):
    for way in BITS:
        assert np.array_equal(way(some), count.plain_counts(some))


@settings(max_examples=40)
@given(st.lists(tensors(), max_size=6))
def test_the_norm_finds_every_bad_tensor_and_its_exact_counts(some):
    plain, norm = count.plain_counts(some), count.norm_counts(some)
    bad = plain[:, :3].sum(axis=1) > 0
    assert np.array_equal(norm[bad], plain[bad])
    assert np.array_equal(norm[~bad][:, [0, 1, 2, 4]], plain[~bad][:, [0, 1, 2, 4]])
    filled = [at for at, one in enumerate(some) if one.numel() and not bad[at]]
    assert (norm[filled, 3] == -1).all(), "subnormals that were not counted must not read as zero"


def test_counts_are_by_kind_and_the_largest_finite_magnitude():
    one = torch.tensor(
        [float("nan"), float("inf"), float("inf"), -float("inf"), 6e-8, -3.0, 0.0], dtype=torch.float16
    )
    assert count.plain_counts([one]).tolist() == [[1, 2, 1, 1, 3.0]]


def test_many_tensors_of_mixed_types_keep_their_order():
    some = [torch.full((n % 5,), float("nan") if n % 3 else 1.0, dtype=DTYPES[n % 3]) for n in range(40)]
    some.append(torch.tensor([1.0, float("inf")], dtype=torch.float64))
    for way in BITS:
        assert np.array_equal(way(some), count.plain_counts(some))


@pytest.mark.skipif(NATIVE is None, reason="there is no C compiler here")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_c_counts_any_bits_at_any_length_and_place_as_the_predicates_do(dtype):
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.finfo(dtype).bits // 8]
    limits = torch.iinfo(whole)
    bits = torch.randint(limits.min, limits.max, (9000,), dtype=whole).view(dtype)
    lengths = [1, 15, 16, 31, 63, 64, 65, 127, 128, 129, 255, 1000, 8999]
    some = [bits[at % 7 : at % 7 + length] for at, length in enumerate(lengths)]
    assert np.array_equal(NATIVE.exact(some), count.plain_counts(some))
    assert np.array_equal(NATIVE.magnitudes(some)[:, [0, 1, 2, 4]], count.plain_counts(some)[:, [0, 1, 2, 4]])
    tiny = torch.full((600_000,), torch.finfo(dtype).tiny / 2, dtype=dtype)  # more than 16 bits can sum
    assert NATIVE.exact([tiny]).tolist() == [[0, 0, 0, 600_000, torch.finfo(dtype).tiny / 2]]
    tiny[-1] = torch.finfo(dtype).max
    assert NATIVE.magnitudes([tiny]).tolist() == [[0, 0, 0, -1, torch.finfo(dtype).max]]


def test_complex_and_strided_tensors_are_counted_too():
    strided = torch.tensor([[1.0, float("nan")], [2.0, 3.0]]).t()[1:]
    complex_one = torch.tensor([complex(float("inf"), float("nan"))])
    for way in BITS:
        assert way([strided, complex_one]).tolist() == [[1, 0, 0, 0, 3.0], [1, 1, 0, 0, 0.0]]


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_view_that_turns_the_sign_is_counted_with_its_own_signs(size):
    turned = torch._neg_view(torch.cat([torch.full((size,), float("inf")), torch.zeros(1)]))
    for way in (count.plain_counts, *BITS, *SCREENS):
        assert way([turned])[0, :3].tolist() == [0, 0, size]


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormals_have_their_size_where_the_processor_takes_them_for_zero(dtype, size):
    whole, _, normal = count.FORMATS[dtype]
    some = [torch.tensor([normal - 1, 1, 0], dtype=whole).repeat(size // 3).view(dtype)]
    wanted = torch.finfo(dtype).tiny * (normal - 1) / normal
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor reads all subnormals")
    try:
        for way in BITS:
            assert way(some).tolist() == [[0, 0, 0, size // 3 * 2, wanted]]
    finally:
        torch.set_flush_denormal(False)


def test_an_unknown_way_of_counting_is_refused():
    with pytest.raises(UsageError, match="no counter 'fast'"):
        counter_named("fast")


@pytest.mark.parametrize("screen", SCREENS)
def test_the_screen_sees_what_is_bad_wherever_it_lies_and_knows_no_magnitudes(screen):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        for size in (1, 7, LARGE, LARGE + 1, 3 * LARGE + 5):
            for at in {0, size // 2, size - 1}:
                for value in (float("nan"), float("inf"), float("-inf")):
                    tensor = torch.ones(size, dtype=dtype)
                    tensor[at] = value
                    row = screen([torch.ones(3), tensor])[1]
                    assert row[:3].tolist() == count.plain_counts([tensor])[0, :3].tolist(), (
                        dtype,
                        size,
                        at,
                        value,
                    )
    clean = screen([torch.ones(3), torch.ones(4, 5).t(), torch.tensor(2.0), torch.ones(0)])
    assert (clean[:, :3] == 0).all() and (clean[:3, 3:] == -1).all()


WAYS = [count.plain_counts, count.norm_counts, *BITS, *SCREENS]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [7, LARGE + 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_count_leaves_the_program_free_to_resize_its_memory(way, size, dtype):
    some = [torch.ones(size, dtype=dtype)]
    way(some)
    some[0].untyped_storage().resize_(0) if hasattr(some[0], "untyped_storage") else some[
        0
    ].storage().resize_(0)


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_was_freed_before_the_count_is_refused_not_read(way):
    some = [torch.ones(8), torch.ones(5)]
    strided = some[0][::2]
    (some[0].untyped_storage() if hasattr(some[0], "untyped_storage") else some[0].storage()).resize_(0)
    with pytest.raises(ValueError, match="freed before"):
        way(some)
    with pytest.raises(ValueError, match="freed before"):
        way([strided, some[1]])
