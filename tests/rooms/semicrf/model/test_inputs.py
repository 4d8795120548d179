"""Inputs that are not finite, or not what they should be: the same answer of every backend, or words."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.errors import BadDataError, UsageError  # noqa: E402
from lab.rooms.semicrf import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model import api  # noqa: E402
from lab.rooms.semicrf.model.problem import COUNTS, make_problem  # noqa: E402
from tests.rooms.semicrf.problems import extended_problem, inputs_of, random_problem  # noqa: E402

pytestmark = pytest.mark.torch
NAMES = ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C")
BACKENDS = ("torch", "native")
SHAPES = ((3, 6, 3, 3), (2, 9, 4, 1), (3, 5, 1, 4), (4, 2, 7, 2), (1, 1, 1, 1), (2, 20, 5, 9))


def spoiled(seed, name, value, **more):
    """A random problem of a random shape with `value` in one place of one input, and that place."""
    dice = random.Random(seed)
    batch, frames, longest, labels = dice.choice(SHAPES)
    problem = random_problem(
        batch, frames, longest, labels, scale=dice.choice((2.0, 50.0)), seed=seed, **more
    )
    problem = masked(problem, dice.choice((0.0, 0.2, 0.6)), seed)
    whole = getattr(problem, name).clone()
    place = tuple(dice.randrange(size) for size in whole.shape)
    whole[place] = value
    return replace(problem, **{name: whole}), place


def masked(problem, share, seed):
    """-inf in this share of every input."""
    g = torch.Generator().manual_seed(seed)

    def holed(value):
        return value.masked_fill(torch.rand(value.shape, generator=g) < share, -math.inf)

    return replace(problem, **{name: holed(getattr(problem, name)) for name in NAMES})


def gradients(problem, backend, loss=torch.sum):
    leaves = [value.detach().clone().requires_grad_() for value in problem.floats()]
    log_z_B = api.log_partition(
        *leaves[:3], problem.lengths_B, start_C=leaves[3], end_C=leaves[4], backend=backend
    )
    loss(log_z_B).backward()
    return log_z_B.detach(), [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


def asked(function, problem, backend):
    score_BTC, transition, duration_KC, start_C, end_C = problem.floats()
    return function(
        score_BTC, transition, duration_KC, problem.lengths_B, start_C=start_C, end_C=end_C, backend=backend
    )


def same(mine, right, dtype=torch.float64):
    bound = 1e-9 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(mine.double(), right.double(), rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_minus_inf_forbids_on_every_backend_and_what_nothing_fits_has_a_gradient_of_zero(backend, name):
    for seed in range(6):
        problem, _ = spoiled(seed, name, -math.inf)
        if seed % 2:  # forbid all of it: nothing fits
            problem = replace(problem, **{name: torch.full_like(getattr(problem, name), -math.inf)})
        log_z_B, found = gradients(problem, backend)
        right_B, right = gradients(problem, "naive")
        same(log_z_B, right_B)
        for mine, wanted in zip(found, right, strict=True):
            assert bool(torch.isfinite(mine).all())
            same(mine, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_label_that_a_frame_forbids_has_a_marginal_and_a_gradient_of_exactly_zero(backend):
    for seed in range(20):
        problem = random_problem(2, 12, 4, 3, scale=3.0, seed=seed)
        g = torch.Generator().manual_seed(seed)
        never = torch.rand(problem.score_BTC.shape, generator=g) < 0.3
        problem = replace(problem, score_BTC=problem.score_BTC.masked_fill(never, -math.inf))
        _, (gradient_BTC, *_) = gradients(problem, backend)
        label_BTC = api.marginals(**inputs_of(problem), backend=backend)
        assert not gradient_BTC[never].any() and not label_BTC[never].any(), seed


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_nothing_fits_has_a_gradient_of_zero_though_messages_from_the_right_overflow(backend):
    g = torch.Generator().manual_seed(3)
    for length in (2, 7, 9, 20):
        reward = extended_problem(2, length, 3, 2, terms=("end",), seed=length)
        reward = replace(reward, duration_KC=reward.duration_KC + 650 * torch.rand(3, 2, generator=g))
        problem = replace(reward, start_C=torch.full_like(reward.start_C, -math.inf))
        found = api.posteriors(**inputs_of(problem), backend=backend)
        assert torch.isneginf(found.log_z_B).all()
        for name in COUNTS:
            value = getattr(found, name)
            assert value is None or not value.any(), name


LENGTHS = [
    ([6, 4, 1], "lengths must be a tensor, got list"),
    ((6, 4, 1), "lengths must be a tensor, got tuple"),
    (6, "lengths must be a tensor, got int"),
    (torch.tensor([True, True, True]), "lengths must be 3 integers, got torch.bool"),
    (torch.tensor([6.0, 4.0, 1.0]), "lengths must be 3 integers, got torch.float32"),
    (torch.tensor([6, 4]), r"lengths must be 3 integers, got torch.int64 \(2,\)"),
    (torch.tensor(6), r"lengths must be 3 integers, got torch.int64 \(\)"),
    (torch.tensor([[6, 4, 1]]), "lengths must be 3 integers"),
    (torch.tensor([6, 0, 1]), "lengths must be positive, got min=0"),
    (torch.tensor([7, 4, 1]), "lengths cannot exceed T=6, got max=7"),
]


@pytest.mark.parametrize(("lengths", "words"), LENGTHS)
def test_lengths_of_the_wrong_kind_are_an_error_in_words(lengths, words):
    problem = random_problem(3, 6, 3, 3)
    with pytest.raises(UsageError, match=words):
        api.viterbi(problem.score_BTC, problem.transition_CC, problem.duration_KC, lengths)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(("lengths", "words"), LENGTHS[:8])
def test_the_module_refuses_the_same_lengths_in_loss_and_decoding(lengths, words, validate):
    made = SemiCRF(3, 4, 5, validate=validate)
    hidden, labels = torch.randn(3, 6, 5), torch.zeros(3, 6, dtype=torch.int64)
    for call in (lambda: made.loss(hidden, lengths, labels), lambda: made.decode(hidden, lengths)):
        with pytest.raises(UsageError, match=words):
            call()


WHOLE = [torch.uint8, torch.int16, torch.int32, torch.int64]
# Newer versions of torch have them, and can neither compare nor add them.
WHOLE += [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_of_any_width_are_lengths_labels_and_starts_of_the_module(dtype, validate):
    made = SemiCRF(3, 4, 5, validate=validate)
    hidden, lengths = torch.randn(3, 6, 5), torch.tensor([6, 4, 1])
    labels, starts = torch.tensor([[0, 0, 1, 2, 2, 0]] * 3), torch.tensor([[1, 0, 1, 1, 1, 1]] * 3)
    right = made.loss(hidden, lengths, labels, starts.bool())
    assert torch.equal(made.loss(hidden, lengths.to(dtype), labels.to(dtype), starts.to(dtype)), right)
    assert made.decode(hidden, lengths.to(dtype)) == made.decode(hidden, lengths)
    made(hidden, lengths.to(dtype))["partition"].sum().backward()
    p = made.distribution(hidden, lengths.to(dtype))
    assert torch.equal(p.log_prob(labels.to(dtype), starts.to(dtype)), p.log_prob(labels, starts))


@pytest.mark.parametrize("name", ["labels", "starts"])
def test_labels_and_starts_that_are_no_whole_numbers_are_an_error_in_words(name):
    given = {"labels": torch.zeros(2, 5, dtype=torch.int64), "starts": torch.ones(2, 5, dtype=torch.bool)}
    given[name] = given[name].float()
    with pytest.raises(UsageError, match=f"{name} must be integers.*, got torch.float32"):
        SemiCRF(3, 2).loss(torch.randn(2, 5, 3), None, given["labels"], given["starts"])


@pytest.mark.parametrize("at", range(5))
def test_an_input_that_is_no_tensor_is_an_error_with_its_name(at):
    values = list(random_problem(3, 6, 3, 3).floats())
    values[at] = values[at].tolist()
    name = ("score", "transition", "duration", "start", "end")[at]
    with pytest.raises(UsageError, match=f"^{name} must be a tensor, got list$"):
        make_problem(*values[:3], None, *values[3:])


# Gold paths that the model forbids.


def forbidding(**places):
    """A model of 3 labels and K = 3, without projection, in which `places` are -inf."""
    torch.manual_seed(0)
    made = SemiCRF(3, 3, validate=True, backend="torch")
    with torch.no_grad():
        for name, place in places.items():
            getattr(made, name)[place] = -math.inf
    return made


@pytest.mark.parametrize(
    ("forbidden", "words"),
    [
        (
            {"transition_CC": (1, 1)},
            r"frames 5..6 of label 1: transition\[1, 1\] is -inf, which forbids; .*=3 and was split",
        ),
        ({"transition_CC": (0, 1)}, r"frames 2..4 of label 1: transition\[0, 1\] is -inf, which forbids$"),
        ({"duration_KC": (1, 0)}, r"frames 0..1 of label 0: duration of 2 frames is -inf, which forbids$"),
        ({"duration_KC": (0, 2)}, r"frames 7..7 of label 2: duration of 1 frame is -inf, which forbids$"),
        ({"start_C": (0,)}, r"frames 0..1 of label 0: start\[0\] is -inf, which forbids$"),
        ({"end_C": (2,)}, r"frames 7..7 of label 2: end\[2\] is -inf, which forbids$"),
    ],
)
def test_an_infinite_loss_is_told_with_its_cause(forbidden, words):
    made = forbidding(**forbidden)
    labels = torch.tensor([[0] * 9, [0, 0, 1, 1, 1, 1, 1, 2, 2]])
    lengths = torch.tensor([9, 8])
    labels[0], lengths[0] = 1 if "start_C" in forbidden else 0, 2
    if "transition_CC" not in forbidden:
        labels[0, :2] = torch.tensor([1, 1])
    with pytest.raises(ValueError, match="so the loss is infinite or NaN") as caught:
        made.loss(torch.randn(2, 9, 3), lengths, labels)
    text = str(caught.value)
    assert text.startswith("gold path has score -inf") and "[first b=1: " in text
    assert re.search(words, text.rstrip("]")), text


def test_a_gold_label_that_a_frame_forbids_is_told_with_its_frame():
    score_BTC = torch.randn(2, 6, 3)
    score_BTC[1, 4, 1] = -1e20
    with pytest.raises(
        ValueError, match=r"first b=1: frames 3..5 of label 1: score at t=4 is -1e\+20, which forbids\]"
    ):
        forbidding().loss(score_BTC, None, torch.tensor([[0, 0, 0, 2, 2, 2], [0, 0, 0, 1, 1, 1]]))


def test_a_forbidden_gold_path_that_the_loss_leaves_out_is_no_error():
    made = forbidding(transition_CC=(1, 1))
    made.over_long = "mask"
    labels = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 2]])
    loss = made.loss(torch.randn(2, 6, 3), None, labels)
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert all(bool(torch.isfinite(value.grad).all()) for value in made.parameters())


def test_a_parameter_that_is_nan_is_named():
    made = forbidding()
    with torch.no_grad():
        made.duration_KC[2, 1] = math.nan
    with pytest.raises(BadDataError, match="duration is nan") as caught:
        made.loss(torch.randn(2, 2, 3), None, torch.zeros(2, 2, dtype=torch.int64))
    assert str(caught.value.location) == "duration[2, 1]"
