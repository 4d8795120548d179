"""Validation points: the guide's exact texts, then where; silence where nothing is wrong."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.semicrf import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model.validation import Point, Validator  # noqa: E402
from lab.rooms.semicrf.workload.common import log_drift  # noqa: E402

pytestmark = pytest.mark.torch
B, T, H, C, K = 2, 7, 5, 3, 4
LABELS = torch.zeros(B, T, dtype=torch.int64)


def model(hidden_dim=H):
    torch.manual_seed(0)
    return SemiCRF(C, K, hidden_dim, backend="torch", validate=True)


def message(act):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        act()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_nan_in_hidden_is_told_after_the_projection_with_its_place():
    hidden = torch.randn(B, T, H)
    hidden[1, 4, 2] = math.nan
    text = message(lambda: model().loss(hidden, None, LABELS))
    assert text.startswith(
        "ValueError: hidden_states contains NaN values after projection layer "
        "[3 NaN, 0 Inf, first b=1 t=4 c=0;"
    )
    assert "the input has 1 NaN, 0 Inf: first b=1 t=4 c=2" in text


def test_first_means_first_in_time():
    hidden = torch.randn(B, T, H)
    hidden[0, 5, 0] = hidden[1, 2, 0] = math.nan
    assert "first b=1 t=2 c=0" in message(lambda: model().loss(hidden, None, LABELS))


def test_an_infinite_weight_is_blamed_on_the_weights():
    made = model()
    with torch.no_grad():
        made.projection.weight[0, 0] = math.inf
        made.projection.weight[0, 1] = -math.inf
    text = message(lambda: made.loss(torch.rand(B, T, H) + 1, None, LABELS))
    assert "the projection's weights are not" in text


def test_nan_in_scores_without_projection_is_told_at_the_prefix_sums():
    score = torch.randn(B, T, C)
    score[0, 3, 1] = math.nan
    text = message(lambda: model(None).loss(score, None, LABELS))
    assert text.startswith(
        "ValueError: NaN detected in cumulative scores after cumsum [1 NaN, 0 Inf, first b=0 t=3 c=1]"
    )


def test_an_impossible_sequence_is_told_at_the_partition_with_the_frame_that_closes_it():
    score = torch.randn(B, T, C)
    score[1, 3] = -math.inf
    text = message(lambda: model(None).loss(score, None, LABELS))
    assert text.startswith(
        "RuntimeError: Non-finite partition from forward pass (PyTorch): 0 NaN, 1 Inf [first b=1;"
    )
    assert "no segmentation is possible: all scores are -inf at t=3" in text


def test_a_nan_that_only_the_backend_makes_is_told_as_such():
    made = model(None)
    inner = made.partition
    made.partition = lambda *a, **m: inner(*a, **m) * torch.tensor([1.0, math.nan])
    text = message(lambda: made.loss(torch.randn(B, T, C), None, LABELS))
    assert re.search(r"forward pass \(PyTorch\): 1 NaN, 0 Inf \[first b=1; fp64 replay is finite, -?\d", text)


@pytest.mark.parametrize(
    "leaf, title",
    [
        ("score_BTC", "grad_cum_scores"),
        ("transition_CC", "grad_transition"),
        ("duration_KC", "grad_duration_bias"),
    ],
)
def test_a_non_finite_gradient_is_told_in_the_backward_pass(leaf, title):
    made = model(None)
    inner = made.partition

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            grad = grad.clone(memory_format=torch.contiguous_format)
            grad.view(-1)[-1] = math.nan
            return grad

    def partition(**model):
        return inner(**{**model, leaf: Broken.apply(model[leaf])})

    made.partition = partition
    score = torch.randn(B, T, C, requires_grad=True)
    loss = made.loss(score, None, LABELS)
    text = message(loss.backward)
    assert text.startswith(
        f"RuntimeError: Non-finite values in CRF backward (PyTorch): {title} has 1 NaN, 0 Inf [first "
    )


@pytest.mark.parametrize(
    "lengths, labels, words",
    [
        ([0, 7], 0, "ValueError: lengths must be positive, got min=0 [first b=0]"),
        ([7, 9], 0, "ValueError: lengths cannot exceed T=7, got max=9 [first b=1]"),
        ([7, 7], 3, "ValueError: labels must be in [0, 3), got range [3, 3] [first b=0 t=0]"),
        ([7, 7], -1, "ValueError: labels must be in [0, 3), got range [-1, -1] [first b=0 t=0]"),
    ],
)
def test_lengths_and_labels_are_checked(lengths, labels, words):
    assert (
        message(lambda: model().loss(torch.randn(B, T, H), torch.tensor(lengths), LABELS + labels)) == words
    )


def test_a_flat_input_is_told_its_dimensions():
    assert (
        message(lambda: model().loss(torch.randn(T, H), None, LABELS))
        == "ValueError: hidden_states must be 3D (batch, T, features), got 2D"
    )


def test_nothing_fires_on_nan_in_padding_masks_in_scores_or_labels_past_the_end():
    hidden, lengths, labels = torch.randn(B, T, H), torch.tensor([7, 3]), LABELS.clone()
    hidden[1, 3:], labels[1, 3:] = math.nan, 99
    model().loss(hidden, lengths, labels).backward()
    score = torch.randn(B, T, C)
    score[0, 2, 1] = -math.inf
    model(None).loss(score, None, LABELS).backward()


def test_drift_is_told_in_the_guides_words(caplog):
    caplog.set_level("DEBUG", "lab.semicrf")
    log_drift(7, 3.14159, 2.0)
    log_drift(7, 3.0, 25.0)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told[0] == ("DEBUG", "Epoch 7 CRF params: transition_max=3.1416, duration_bias_max=2.0000")
    assert told[2] == (
        "WARNING",
        "Epoch 7: CRF parameters drifting high! trans_max=3.00, dur_max=25.00. "
        "Consider increasing --crf-reg.",
    )


def test_of_the_points_of_a_step_the_first_bad_one_is_raised_when_the_next_step_begins(monkeypatch):
    """The way of a GPU, with a copy that has arrived at once."""
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, **_: torch.zeros(shape, dtype=dtype))
    monkeypatch.setattr(
        torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    )
    validator = Validator()
    for at, value in enumerate((1.0, 2.0, 9.0, 9.0)):
        low_high = torch.tensor([value, value]).double()
        error = lambda at=at: RuntimeError(f"point {at}")  # noqa: E731
        validator.points.append(Point(str(at), low_high, (-math.inf, 2), error))
    validator.settle()
    with pytest.raises(RuntimeError, match="point 2"):
        validator.settle()
    validator.settle(wait=True)


def test_settling_without_anything_noted_is_silent():
    Validator().settle(wait=True)


def test_validating_many_steps_leaves_no_hook_behind():
    made = model()
    for _ in range(3):
        made.loss(torch.randn(B, T, H), None, LABELS).backward()
    assert not any(p._backward_hooks for p in made.parameters())
