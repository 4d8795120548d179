"""The alarm on posterior mass: it speaks where guards against NaN are silent, and never of a sound run."""

from __future__ import annotations

import gc
import math
import re
import shutil
import warnings
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from lab.rooms.semicrf import SemiCRF  # noqa: E402
from lab.rooms.semicrf.model import api, ledger, log_domain  # noqa: E402
from lab.rooms.semicrf.model import native as choose  # noqa: E402
from lab.rooms.semicrf.model.autograd import MendedCounts  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.validation import CRFWatch, Validator  # noqa: E402
from lab.rooms.semicrf.workload.check import hostile_case  # noqa: E402
from tests.rooms.semicrf.model.native.emulated import SMALL, Emulated, build  # noqa: E402
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
compiled = pytest.mark.skipif(choose.missing_reason("cpu") is not None, reason="no C++ compiler")
B, T, K, C = 2, 60, 8, 5
CHUNK = slice(32, 48)


def step(validate, lengths=None, device="cpu"):
    torch.manual_seed(1)
    head = SemiCRF(C, K, backend="torch", validate=validate).to(device)
    score = torch.randn(B, T, C).to(device).requires_grad_()
    loss = head.loss(score, lengths, torch.zeros(B, T, dtype=torch.int64, device=device))
    loss.backward()
    return head, score, loss


def test_the_worst_sequence_is_named_with_its_frame_and_what_float64_has(monkeypatch):
    def backward(state):
        found = log_domain.backward(state)
        found.mass_error_B.copy_(torch.tensor([0.1, 0.5]))
        found.mass_frame_B[1] = 7
        return found

    engine = SimpleNamespace(forward=log_domain.forward, backward=backward)
    monkeypatch.setattr(api, "engine_for", lambda *_: engine)
    with pytest.raises(
        RuntimeError,
        match=r"worst error 5\.0e-01 \[first b=1 t=7; fp64 replay is finite, .*: the inputs are sound",
    ):
        step(validate=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_on_a_gpu_the_alarm_is_told_when_the_next_step_begins(monkeypatch):
    def backward(state):
        found = log_domain.backward(state)
        found.label_BTC[1, CHUNK] *= 2
        found.mass_error_B[1] = 1.0
        return found

    engine = SimpleNamespace(forward=log_domain.forward, backward=backward)
    monkeypatch.setattr(api, "engine_for", lambda *_: engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MendedCounts)
        head, _, _ = step(validate=True, device="cuda")
    head.validator.settle()
    with pytest.raises(RuntimeError, match=r"Posterior mass is not 1 in CRF backward \(PyTorch\)"):
        head.validator.settle()


def test_posteriors_that_are_no_numbers_are_told_in_the_guides_words_with_the_coverage(monkeypatch):
    def backward(state):
        found = log_domain.backward(state)
        found.label_BTC[1, 40, 2], found.mass_error_B[1] = math.nan, math.inf
        return found

    engine = SimpleNamespace(forward=log_domain.forward, backward=backward)
    monkeypatch.setattr(api, "engine_for", lambda *_: engine)
    with pytest.raises(RuntimeError) as caught:
        step(validate=True)
    assert re.match(
        r"Non-finite values in CRF backward \(PyTorch\): grad_cum_scores has \d+ NaN, 0 Inf "
        r"\[first b=1 t=\d+ c=\d+; coverage inf\]$",
        str(caught.value),
    )


def test_a_gradient_broken_after_sound_posteriors_is_told_with_their_coverage():
    torch.manual_seed(1)
    head = SemiCRF(C, K, backend="torch", validate=True)
    score = torch.randn(B, T, C, requires_grad=True)
    loss = head.loss(score, None, torch.zeros(B, T, dtype=torch.int64), reduction="none")
    with pytest.raises(
        RuntimeError, match=r"\(PyTorch\): grad_\w+ has \d+ NaN, 0 Inf \[first .*; coverage \d\.\de-1\d\]"
    ):
        loss.backward(torch.tensor([1.0, math.nan]))


def spoken(case, backend):
    """What the alarm says of one case's backward pass, or None."""
    model = case.arguments()
    watch = CRFWatch(Validator(), model, model.pop("lengths_B"), backend)
    score = case.score_BTC.clone().requires_grad_()
    log_z_B = api.log_partition(
        score,
        case.transition_CC,
        case.duration_KC,
        case.lengths_B,
        start_C=case.start_C,
        end_C=case.end_C,
        backend=backend,
        alarm=watch.posteriors,
    )
    try:
        log_z_B.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


@settings(max_examples=40)
@given(st.integers(0, 2**31))
def test_the_alarm_is_silent_on_hostile_input_that_is_computed_soundly(seed):
    case, kinds = hostile_case(torch.Generator().manual_seed(seed))
    assert spoken(case, "auto") is None, kinds


def test_the_alarm_is_silent_on_nan_padding_and_a_long_sequence():
    for lengths in (None, torch.tensor([T, 7])):
        step(validate=True, lengths=lengths)[0].poison_padding = True
    head = SemiCRF(3, 20, backend="torch", validate=True)
    head.poison_padding = True
    score = torch.randn(2, 300, 3, requires_grad=True)
    head.loss(score, torch.tensor([300, 1]), torch.zeros(2, 300, dtype=torch.int64)).backward()


def test_mass_is_measured_inside_the_sequence_nan_is_infinite_and_the_impossible_has_none_to_miss():
    label = torch.full((4, 5, 2), 0.5)
    label[0, 3:], label[1, 2, 0], label[2] = math.nan, math.nan, 0.0
    label[3, 1], label[3, 3] = 0.8, 0.8
    error_B, frame_B = ledger.mass(
        label, torch.tensor([3, 5, 5, 5]), torch.tensor([1.0, 1.0, -math.inf, 1.0])
    )
    assert error_B.tolist() == pytest.approx([0.0, math.inf, 0.0, 0.6])
    assert frame_B.tolist() == [0, 2, 0, 1]


def test_watching_a_pass_keeps_no_tensor_of_it_alive():
    gc.collect()
    gc.disable()
    try:
        _, score, loss = step(validate=True)
        gone = [weakref.ref(score), weakref.ref(loss)]
        del score, loss
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


ROWS = {"tables": ["gathered", "source", "arrived"], "frames": [2, 4]}
STALE = {
    "a checkpoint +0.5": {**ROWS, "times": math.exp(0.5)},
    "a checkpoint +75": {**ROWS, "times": math.exp(75)},
    "a checkpoint of zeros": {**ROWS, "times": 0},
    "a power of two lost": {"tables": ["exponent"], "frames": [2, 4], "more": 1},
    "gathered rows stale": {"tables": ["gathered"], "frames": [2, 4], "times": 0},
    "source rows stale": {"tables": ["source"], "frames": [2, 4], "times": 0},
    "arrived rows stale": {"tables": ["arrived"], "frames": [2, 4], "times": 0},
    "z +3": {"tables": ["z_value"], "frames": [0, 1], "times": math.exp(3)},
}
SOUND = {
    "float64": {},
    "float32": {"machine": "float32"},
    "float32, done again in the log domain": {"machine": "float32", "scale": 60.0},
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """The CUDA C kernels on a CPU, by number type."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here to emulate the kernels with")
    folder = tmp_path_factory.mktemp("emulated")
    forget = ("    m.power += step;", "    m.power += m.nonzero > 3 ? 0 : step;")
    return {
        "float64": Emulated(build(folder, torch.float64)),
        "float32": Emulated(build(folder, torch.float32)),
        "an exponent forgotten": Emulated(build(folder, torch.float64, mutant=forget)),
    }


@pytest.fixture
def told(machines, monkeypatch):
    """A function from a fault to what the alarm says of a training step by the kernels, NaN in the padding,
    and to whether a guard against NaN would be silent.

    A fault is of the second sequence's pass from the left, in the rows `frames`: what `tables` hold is
    multiplied by `times`, or powers are moved by `more`.
    """
    monkeypatch.setattr(native_cuda, "SIZES", SMALL)
    monkeypatch.setattr(native_cuda, "supports", lambda problem: None)

    def say(machine="float64", stale=None, **options):
        monkeypatch.setattr(native_cuda, "machine_for", lambda problem, *sizes: machines[machine])
        dtype = torch.float32 if machine == "float32" else torch.float64
        problem = random_problem(2, 7, 4, 2, dtype=dtype, **{"seed": 1, **options})
        forward = native_cuda.forward

        def planted(problem, keep=True):
            state = forward(problem, keep, count=False)
            for name in stale["tables"] if stale else ():
                table = state.buffer(name)
                rows = table.view(2 * len(problem.lengths_B), -1, *table.shape[1:])[2]
                rows[slice(*stale["frames"])] *= stale.get("times", 1)
                rows[slice(*stale["frames"])] += stale.get("more", 0)
            return state

        engine = SimpleNamespace(forward=planted, backward=native_cuda.backward)
        monkeypatch.setattr(api, "engine_for", lambda *_: engine)
        return step_of(problem)

    return say


def step_of(problem):
    """The first message of a training step's alarm, if any, and whether all gradients are finite."""
    head = SemiCRF(problem.shape[3], problem.shape[2], backend="native", validate=True)
    head.poison_padding = True
    score_BTC = problem.score_BTC.requires_grad_()
    messages = []
    watch = head.validator.watch

    def noted(*point):
        try:
            watch(*point)
        except RuntimeError as error:
            messages.append(str(error))

    head.validator.watch = noted  # the step goes on: what would the guards have seen?
    labels = torch.zeros(problem.shape[:2], dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MendedCounts)
        head.loss(score_BTC, problem.lengths_B, labels).backward()
    grads = [score_BTC.grad, *(value.grad for value in head.parameters())]
    return messages[:1], all(bool(torch.isfinite(value).all()) for value in grads)


@pytest.mark.parametrize("name", SOUND)
def test_of_sound_kernels_the_alarm_says_nothing(told, name):
    assert told(**SOUND[name]) == ([], True)


@pytest.mark.parametrize("name", [*STALE, "an exponent forgotten"])
def test_a_stale_buffer_of_the_kernels_raises_the_alarm_where_guards_against_nan_are_silent(told, name):
    fault = {"stale": STALE[name]} if name in STALE else {"machine": name}
    messages, finite = told(**fault)
    assert finite and messages[0].startswith("Posterior mass is not 1 in CRF backward (native): worst error ")


def test_what_is_allowed_grows_as_rounding_walks_and_only_beyond_a_hundred_thousand_frames():
    assert ledger.tolerance_of(torch.float32, 100_000) == ledger.TOLERANCE[torch.float32]
    assert ledger.tolerance_of(torch.bfloat16, 400_000) == pytest.approx(2 * ledger.TOLERANCE[torch.float32])
    assert ledger.tolerance_of(torch.float64, 1) == ledger.TOLERANCE[torch.float64]
