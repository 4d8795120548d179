"""Head, gold path and objective linter: the loss is a probability, and the published one is not."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.errors import UsageError  # noqa: E402
from lab.rooms.semicrf import SemiCRF, lint_objective  # noqa: E402
from lab.rooms.semicrf.model import head as head_module  # noqa: E402
from lab.rooms.semicrf.model import naive  # noqa: E402
from lab.rooms.semicrf.model.head import gold_score, run_starts  # noqa: E402
from lab.rooms.semicrf.model.problem import make_problem  # noqa: E402
from lab.rooms.semicrf.workload.probes import linter  # noqa: E402
from lab.rooms.semicrf.workload.probes.linter import FRAMES, drift_probe, outcomes  # noqa: E402
from lab.rooms.semicrf.workload.training import guide_gold, plant_objective  # noqa: E402
from tests.rooms.semicrf.problems import starts_of  # noqa: E402

pytestmark = pytest.mark.torch
C, K, T = 3, 4, 6


def head(seed=0, classes=C, longest=K, **knobs):
    torch.manual_seed(seed)
    made = SemiCRF(classes, longest, **knobs).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(1, K), st.integers(0, C - 1)), min_size=1, max_size=6),
)
@settings(max_examples=30)
def test_the_gold_score_is_the_sum_over_its_segments(seed, path):
    torch.manual_seed(seed)
    ends = [sum(k for k, _ in path[: at + 1]) for at in range(len(path))]
    segments = [(end - k, end, label) for end, (k, label) in zip(ends, path, strict=True)]
    score, transition, duration = (
        torch.randn(1, ends[-1] + 2, C).double(),
        torch.randn(C, C).double(),
        torch.randn(K, C).double(),
    )
    start, end = torch.randn(2, C).double()
    lengths = torch.tensor([ends[-1]])
    labels, starts = starts_of([segments], ends[-1] + 2)
    found = gold_score(score, transition, duration, labels, starts, lengths, start_C=start, end_C=end)
    right = naive.path_score(make_problem(score, transition, duration, lengths, start, end), 0, segments)
    assert float(found[0]) == pytest.approx(float(right), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_every_question_of_the_linter_is_answered_well_by_our_loss(seed):
    findings = lint_objective(head(seed))
    assert [f.check for f in findings if not f.ok] == [] and len(findings) == 3


def test_a_linear_crf_is_the_case_of_one_frame_segments():
    assert all(f.ok for f in lint_objective(head(1, longest=1)))


def test_planting_the_published_objective_in_a_head_is_seen():
    planted = head()
    plant_objective(planted)
    bad = {f.check for f in lint_objective(planted) if not f.ok}
    assert "sum of probabilities" in bad


MUTANTS = {
    "log Z + .05": lambda logZ: logZ + 0.05,
    "half a nat lost": lambda logZ: logZ - 0.5,
    "one in a thousand": lambda logZ: logZ * 1.001,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_linter_kills_a_partition_that_is_off(name):
    wrong = head()
    inner = wrong.partition
    wrong.partition = lambda *args, **more: MUTANTS[name](inner(*args, **more))
    assert not all(f.ok for f in lint_objective(wrong))


@pytest.mark.parametrize(
    "name, change",
    [
        ("the first segment pays a transition", lambda m: {"start_C": m["start_C"] + 1.0}),
        ("durations shifted by one", lambda m: {"duration_KC": m["duration_KC"].roll(1, 0)}),
        ("transitions turned", lambda m: {"transition_CC": m["transition_CC"].T}),
    ],
)
def test_the_linter_kills_a_gold_path_of_another_model(name, change):
    wrong = head()
    wrong.gold = lambda score, **model: gold_score(score, **{**model, **change(model)})
    assert not all(f.ok for f in lint_objective(wrong)), name


def test_a_run_longer_than_K_is_split_is_an_error_or_leaves_the_loss():
    hidden, labels = torch.randn(2, 9, C).double(), torch.zeros(2, 9, dtype=torch.int64)
    labels[1, ::2] = 1
    split = head().loss(hidden, None, labels, reduction="none")
    assert bool((split >= 0).all()) and bool(torch.isfinite(split).all())
    with pytest.raises(
        ValueError, match=r"1 sequences hold a gold segment longer than max_duration=4 \[first b=0\]"
    ):
        head(over_long="error").loss(hidden, None, labels)
    masked = head(over_long="mask")
    each = masked.loss(hidden, None, labels, reduction="none")
    assert each[0] == 0 and each[1] == split[1] and masked.loss(hidden, None, labels) == each[1]


def test_equal_neighbours_and_one_long_segment_are_different_outcomes():
    labels = torch.zeros(1, 4, dtype=torch.int64)
    one, two = run_starts(labels), torch.tensor([[True, False, True, False]])
    hidden = torch.randn(1, 4, C).double()
    assert head().loss(hidden, None, labels, one).item() != head().loss(hidden, None, labels, two).item()


def test_padding_even_nan_changes_no_bit_of_loss_or_gradient():
    lengths = torch.tensor([6, 3])
    labels = torch.randint(0, C, (2, 8))
    outcomes_ = []
    for value in (0.0, math.nan):
        torch.manual_seed(5)
        model = SemiCRF(C, K, hidden_dim=5, backend="torch")
        hidden = torch.randn(2, 8, 5)
        hidden[0, 6:], hidden[1, 3:] = value, value
        loss = model.loss(hidden, lengths, labels)
        loss.backward()
        outcomes_.append([loss.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes_, strict=True))


def test_a_grammar_forbids_and_gets_no_gradient():
    allowed = torch.ones(C, C, dtype=torch.bool)
    allowed[0, 1] = False
    model = head(allowed_CC=allowed)
    hidden = torch.randn(4, 12, C).double()
    loss = model.loss(hidden, None, torch.full((4, 12), 2))
    loss.backward()
    assert model.transition_CC.grad[0, 1] == 0 and bool(torch.isfinite(model.transition_CC.grad).all())
    for found in model.decode(hidden):
        steps = zip(found.segments, found.segments[1:], strict=False)
        assert all((a[2], b[2]) != (0, 1) for a, b in steps)
    penalty = model.parameter_penalty()
    assert float(penalty.detach()) == pytest.approx(
        float(
            model.transition_CC.detach().masked_fill(~allowed, 0).pow(2).sum()
            + model.duration_KC.detach().pow(2).sum()
        )
    )


def test_decoding_finds_the_segmentation_of_least_loss():
    model = head(classes=2, longest=3)
    hidden = torch.randn(1, FRAMES, 2).double()
    labels, starts = outcomes(3, 2)
    nll = model.loss(hidden.expand(len(labels), -1, -1), None, labels, starts, reduction="none")
    best, (found,) = int(nll.argmin()), model.decode(hidden)
    assert starts_of([found.segments], 5)[0].tolist() == labels[best : best + 1].tolist()
    assert [s for s, _, _ in found.segments] == starts[best].nonzero()[:, 0].tolist()


def test_training_with_the_published_objective_goes_below_zero_and_ours_does_not(monkeypatch):
    monkeypatch.setattr(linter, "DRIFT_STEPS", 50)
    sound, planted = SemiCRF(4, 6), SemiCRF(4, 6)
    plant_objective(planted)
    assert drift_probe(sound)["clean"] and not drift_probe(planted)["clean"]


def test_the_published_gold_score_is_that_of_maximal_runs():
    score = torch.randn(1, 5, 2).double()
    transition, duration = torch.randn(2, 2).double(), torch.randn(3, 2).double()
    labels = torch.tensor([[0, 0, 1, 1, 1]])
    found = guide_gold(score, transition, duration, labels, None)
    right = score[0, :2, 0].sum() + score[0, 2:, 1].sum() + transition[0, 1] + duration[2, 0] + duration[2, 1]
    assert float(found) == pytest.approx(float(right), abs=1e-12)


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch older than 2.0 has no where() on meta")
@pytest.mark.parametrize("over_long", ["split", "mask"])
def test_lengths_may_stay_on_the_cpu_while_all_else_is_elsewhere(monkeypatch, over_long):
    """The meta device stands in for a GPU: it computes nothing and refuses to mix devices."""
    monkeypatch.setattr(
        head_module, "reject_labels", lambda *_: None
    )  # it reads values, of which there are none
    model = SemiCRF(C, K, hidden_dim=5, over_long=over_long).to("meta")
    model.partition = lambda score_BTC, **_: score_BTC.sum((1, 2)).double()
    labels = torch.zeros(2, 6, dtype=torch.int64, device="meta")
    loss = model.loss(torch.zeros(2, 6, 5, device="meta"), torch.tensor([6, 3]), labels)
    loss.backward()
    assert loss.device.type == "meta" and model.projection.weight.grad is not None


@pytest.mark.parametrize("shape", [(2, 3), (2, 7), (1, 5), (2,)])
@pytest.mark.parametrize("name", ["labels", "starts"])
def test_labels_of_another_shape_than_the_frames_are_refused(shape, name):
    """Fewer frames, or one row for a batch, would be scored against a partition of all."""
    head = SemiCRF(3, 2, 4)
    given = {"labels": torch.zeros(2, 5, dtype=torch.int64), "starts": torch.ones(2, 5, dtype=torch.bool)}
    given[name] = given[name].new_ones(shape)
    with pytest.raises(ValueError, match=f"{name} must be \\(2, 5\\)"):
        head.loss(torch.randn(2, 5, 4), None, given["labels"], given["starts"])


def test_a_grammar_of_another_shape_and_an_unknown_way_with_long_segments_are_refused():
    with pytest.raises(ValueError, match="allowed_CC must be"):
        SemiCRF(3, 2, allowed_CC=torch.ones(3, 1))
    with pytest.raises(ValueError, match="over_long must be"):
        SemiCRF(3, 2, over_long="msak")


def test_a_label_that_changes_inside_a_gold_segment_is_an_error():
    head = SemiCRF(3, 4)
    labels = torch.tensor([[0, 0, 1, 1, 2]])
    starts = torch.tensor([[True, False, False, False, True]])
    with pytest.raises(ValueError, match=r"labels change inside a gold segment \[first b=0 t=2\]"):
        head.loss(torch.zeros(1, 5, 3), torch.tensor([5]), labels, starts)
    padded = torch.tensor([[True, False, True, True, False]])  # frame 4 is padding
    assert torch.isfinite(head.loss(torch.zeros(1, 5, 3), torch.tensor([4]), labels, padded))


def batch_of(model):
    """Hidden states, lengths, the mask that means them, and labels with -100 in the padding."""
    hidden, lengths = (
        torch.randn(3, T, C, generator=torch.Generator().manual_seed(1)).double(),
        torch.tensor([6, 2, 4]),
    )
    labels = torch.randint(C, (3, T), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(T) < lengths[:, None]
    return hidden, lengths, mask, labels.masked_fill(~mask, -100)


def test_lengths_a_mask_and_ignored_labels_say_the_same_in_every_function():
    model = head()
    hidden, lengths, mask, labels = batch_of(model)
    right = model.loss(hidden, lengths, labels.clamp(min=0))
    assert torch.equal(model.loss(hidden, None, labels), right)
    for kind in (mask, mask.long(), mask.double()):
        assert torch.equal(model.loss(hidden, None, labels, mask=kind), right)
    assert torch.equal(model(hidden, lengths, labels), right) and torch.equal(
        model(hidden, None, labels), right
    )
    other = labels.masked_fill(labels == -100, 7)
    assert torch.equal(model(hidden, None, other, ignore_index=7), right)
    partition = model(hidden, lengths)["partition"]
    assert torch.equal(model(hidden, mask=mask)["partition"], partition)
    assert model.decode(hidden, mask=mask) == model.decode(hidden, lengths)
    assert torch.equal(model.distribution(hidden, mask=mask).partition, partition)


def test_each_reduction_is_what_its_name_says():
    model = head()
    hidden, lengths, _, labels = batch_of(model)
    each = model(hidden, lengths, labels, reduction="none")
    right = -model.distribution(hidden, lengths).log_prob(labels.clamp(min=0))
    assert torch.allclose(each, right, atol=1e-12)
    assert float(model(hidden, lengths, labels)) == pytest.approx(float(right.mean()))
    assert float(model(hidden, lengths, labels, reduction="sum")) == pytest.approx(float(right.sum()))
    assert float(model(hidden, lengths, labels, reduction="token_mean")) == pytest.approx(
        float(right.sum()) / 12
    )
    model.over_long = "mask"
    labels[0] = (
        0  # six frames of one label, and K is 4: the sequence leaves the loss, and its frames the mean
    )
    kept = -model.distribution(hidden, lengths).log_prob(labels.clamp(min=0))[1:]
    assert float(model(hidden, lengths, labels, reduction="token_mean")) == pytest.approx(
        float(kept.sum()) / 6
    )
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none, token_mean, got 'avg'"):
        model(hidden, lengths, labels, reduction="avg")


def test_a_label_out_of_range_and_a_mask_with_a_hole_are_named_with_their_place():
    model = head()
    hidden, lengths, mask, labels = batch_of(model)
    for value, text in ((-100, "label -100 at b=2 t=1"), (3, "label 3 at b=2 t=1")):
        labels[2, 1] = value
        with pytest.raises(ValueError, match=f"{text} is not in \\[0, 3\\)"):
            model(hidden, lengths, labels)
    mask[0, 3] = False
    with pytest.raises(ValueError, match=r"mask of sequence 0 .*\[first b=0 t=3\]"):
        model.decode(hidden, mask=mask)
    with pytest.raises(UsageError, match="give one of them"):
        model.decode(hidden, lengths, mask=mask)
    with pytest.raises(UsageError, match=r"mask must be \(3, 6\), got \(2, 6\)"):
        model.decode(hidden, mask=mask[:2])


def test_decoding_by_frame_is_the_segments_and_nothing_in_the_padding_or_where_nothing_fits():
    model = head()
    hidden, lengths, _, _ = batch_of(model)
    hidden[2, 1] = -math.inf
    labels = model.decode(hidden, lengths, per_frame=True)
    assert labels.dtype == torch.int64 and labels.shape == (3, T)
    for row, found, length in zip(
        labels.tolist(), model.decode(hidden, lengths), lengths.tolist(), strict=True
    ):
        assert row[:length] == [c for s, e, c in found.segments for _ in range(s, e)] or row == [-100] * T
        assert row[length:] == [-100] * (T - length)
    assert labels[2].tolist() == [-100] * T


def test_the_heads_draws_come_from_torchs_stream_or_a_generator():
    model = head()
    hidden, lengths, _, _ = batch_of(model)
    torch.manual_seed(0)
    drawn = model.sample(hidden, lengths, samples=3)
    assert [len(paths) for paths in drawn] == [3, 3, 3] and model.sample(hidden, lengths, samples=3) != drawn
    torch.manual_seed(0)
    assert model.sample(hidden, lengths, samples=3) == drawn
    seeded = [model.sample(hidden, lengths, generator=torch.Generator().manual_seed(4)) for _ in range(2)]
    assert seeded[0] == seeded[1]


def random_terms():
    torch.manual_seed(4)
    shapes = {"seg_start_BTC": (2, 6, C), "seg_end_BTC": (2, 6, C), "segment_BTKC": (2, 6, K, C)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    "names", [("seg_start_BTC",), ("seg_end_BTC",), ("segment_BTKC",), tuple(random_terms())]
)
def test_the_loss_with_terms_of_segments_is_the_distributions(names, validate):
    terms = {name: value.requires_grad_() for name, value in random_terms().items() if name in names}
    model, lengths = SemiCRF(C, K, validate=validate), torch.tensor([6, 4])
    scores, labels = torch.randn(2, 6, C), torch.tensor([[0, 0, 1, 1, 1, 0], [1, 0, 0, 0, 1, 1]])
    for value in terms.values():
        value.data[1, 4:] = math.nan  # padding
    loss = model.loss(scores, lengths, labels, reduction="none", **terms)
    p = model.distribution(scores, lengths, **terms)
    assert torch.allclose(loss, -p.log_prob(labels), atol=1e-9)
    loss.sum().backward()
    assert all(torch.isfinite(value.grad).all() and value.grad.abs().max() > 0 for value in terms.values())
    assert [found.segments for found in model.decode(scores, lengths, **terms)] == p.argmax()
    draws = model.sample(scores, lengths, generator=torch.Generator().manual_seed(1), **terms)
    assert draws == p.sample(1, torch.Generator().manual_seed(1))
    with pytest.raises(UsageError, match="no argument segments"):
        model.loss(scores, lengths, labels, segments=None)


def test_a_duration_prior_is_added_and_is_no_parameter():
    prior = torch.distributions.Poisson(2.0).log_prob(torch.arange(1.0, K + 1))
    torch.manual_seed(0)
    model = SemiCRF(C, K, duration_prior=prior)
    torch.manual_seed(0)
    plain = SemiCRF(C, K)
    plain.duration_KC.data += prior[:, None]
    scores, labels = torch.randn(2, 6, C), torch.zeros(2, 6, dtype=torch.int64)
    assert torch.equal(model.loss(scores, None, labels), plain.loss(scores, None, labels))
    assert "prior_KC" in model.state_dict() and len(list(model.parameters())) == 4
    assert not torch.equal(model.parameter_penalty(), plain.parameter_penalty())
    with pytest.raises(ValueError, match="duration_prior must be"):
        SemiCRF(C, K, duration_prior=prior[:-1])
