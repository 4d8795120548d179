"""The user's calls on the default backend, where a form can trip over its surroundings, by the definition."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from lab.errors import LabError, UsageError  # noqa: E402
from lab.rooms.semicrf import SegmentDistribution  # noqa: E402
from lab.rooms.semicrf.model import api  # noqa: E402
from lab.rooms.semicrf.model.autograd import MendedCounts  # noqa: E402
from lab.rooms.semicrf.workload.check import (  # noqa: E402
    Subject,
    audit,
    stale_counts,
)
from tests.rooms.semicrf.problems import random_problem  # noqa: E402

pytestmark = pytest.mark.torch
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]
on_each = pytest.mark.parametrize("device", DEVICES)
on_gpu = pytest.mark.gpu
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
NAMES = ("score_BTC", "transition_CC", "duration_KC", "start_C", "end_C")
ROOT = Path(__file__).parents[4]
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}


def inputs(seed=0, shape=(3, 37, 9, 5), dtype=torch.float64):
    """Leaves by name, on the CPU, and lengths."""
    problem = random_problem(*shape, seed=seed, dtype=dtype)
    return dict(zip(NAMES, problem.floats(), strict=True)), problem.lengths_B


def right(values, lengths_B, weight_B=None):
    """log Z and gradients by the definition, float64, on the CPU."""
    leaves = {name: value.detach().cpu().double().requires_grad_() for name, value in values.items()}
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B.cpu(), backend="naive")
    (log_z_B if weight_B is None else log_z_B * weight_B).sum().backward()
    grads = {
        name: leaf.new_zeros(leaf.shape) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()
    }
    return log_z_B.detach(), {name: grad.detach() for name, grad in grads.items()}


def on(device, values, lengths_B):
    """Leaves on a device that want gradients."""
    leaves = {name: value.detach().to(device).requires_grad_() for name, value in values.items()}
    return leaves, lengths_B.to(device)


def assert_right(log_z_B, leaves, expected, limit=1e-9):
    expected_B, grads = expected
    assert torch.allclose(log_z_B.detach().cpu(), expected_B, atol=limit)
    for name, leaf in leaves.items():
        if leaf.requires_grad:
            assert leaf.grad is not None and leaf.grad.dtype == leaf.dtype, name
            assert torch.allclose(leaf.grad.cpu().double(), grads[name], atol=limit), name
        else:
            assert leaf.grad is None, name


@on_each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 9, 1), (4, 40, 3, 2), (1, 65, 1, 7)])
def test_each_dtype_and_odd_shape(device, dtype, shape):
    values, lengths_B = inputs(3, shape, dtype)
    leaves, lengths_B = on(device, values, lengths_B)
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    log_z_B.sum().backward()
    assert_right(log_z_B, leaves, right(values, lengths_B), LIMITS[dtype])


@on_each
def test_inputs_that_are_expanded_transposed_and_strided(device):
    generator = torch.Generator().manual_seed(2)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    values = {
        "score_BTC": drawn(1, 5, 30).transpose(1, 2).expand(3, 30, 5),
        "transition_CC": drawn(5, 5).t(),
        "duration_KC": drawn(14, 10)[::2, ::2],
        "start_C": drawn(1).expand(5),
        "end_C": drawn(10)[1::2],
    }
    lengths_B = torch.tensor([30, 0, 17, 0, 1])[::2]
    bases = {name: value.to(device).requires_grad_() for name, value in values.items()}
    log_z_B = api.log_partition(**bases, lengths_B=lengths_B.to(device))
    log_z_B.sum().backward()
    assert_right(log_z_B, bases, right(values, lengths_B))


@on_each
def test_a_graph_that_is_kept_gives_the_same_gradients_for_each_weight(device):
    values, lengths_B = inputs(4)
    leaves, lengths_B = on(device, values, lengths_B)
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    for weight in (1.0, -2.5):
        for leaf in leaves.values():
            leaf.grad = None
        weight_B = torch.tensor([weight, 0.0, 1.0], dtype=torch.float64)
        (log_z_B * weight_B.to(device)).sum().backward(retain_graph=True)
        assert_right(log_z_B, leaves, right(values, lengths_B, weight_B))


@on_each
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_loss_that_is_kept_holds_no_messages_nor_does_a_checkpoint(monkeypatch, device, backend):
    values, lengths_B = inputs(4)
    leaves, lengths_B = on(device, values, lengths_B)
    problem = api.make_problem(**leaves)
    engine = api.engine_for(api.resolve_backend(backend, leaves["score_BTC"]), problem)
    states, forward = [], engine.forward

    def noted(problem, **more):
        state = forward(problem, **more)
        states.append(weakref.ref(state))
        return state

    def loss(score_BTC):
        given = {**leaves, "score_BTC": score_BTC}
        return api.log_partition(**given, lengths_B=lengths_B, backend=backend).sum()

    monkeypatch.setattr(engine, "forward", noted)
    total = loss(leaves["score_BTC"])
    total.backward(retain_graph=True)
    assert states[0]() is not None
    total.backward()
    assert len(states) == 1 and states[0]() is None and total.requires_grad
    for leaf in leaves.values():
        leaf.grad = None
    total = checkpoint(loss, leaves["score_BTC"], use_reentrant=False)
    assert states[1]() is None
    total.backward()
    assert_right(api.log_partition(**leaves, lengths_B=lengths_B), leaves, right(values, lengths_B))


@on_each
def test_a_log_z_that_was_changed_in_place_says_nothing_of_the_counts(device):
    values, lengths_B = inputs(5)
    leaves, lengths_B = on(device, values, lengths_B)
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    kept_B = log_z_B.detach().clone()
    log_z_B.mul_(3.0).sum().backward()
    weight_B = torch.full((3,), 3.0, dtype=torch.float64)
    expected = right(values, lengths_B, weight_B)
    assert_right(kept_B, leaves, expected)


@on_each
def test_an_alarm_that_raises_leaves_the_next_step_right(device):
    values, lengths_B = inputs(6)
    leaves, lengths_B = on(device, values, lengths_B)

    def alarm(found):
        raise RuntimeError("stop")

    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B, alarm=alarm)
    with pytest.raises(RuntimeError, match="stop"):
        log_z_B.sum().backward()
    assert all(leaf.grad is None for leaf in leaves.values())
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    log_z_B.sum().backward()
    assert_right(log_z_B, leaves, right(values, lengths_B))


@on_each
def test_threads_that_train_at_once_do_not_disturb_each_other(device):
    cases = [inputs(seed, (2, 20 + 7 * seed, 5 + seed, 4)) for seed in range(4)]
    expected = [right(*case) for case in cases]
    faults = []

    def train(case, wanted):
        try:
            for _ in range(10):
                leaves, lengths_B = on(device, *case)
                log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
                log_z_B.sum().backward()
                assert_right(log_z_B, leaves, wanted)
        except Exception as error:  # noqa: BLE001  for the main thread to see
            faults.append(error)

    threads = [threading.Thread(target=train, args=pair) for pair in zip(cases, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@on_each
def test_inference_autocast_and_deterministic_algorithms_change_nothing(device):
    values, lengths_B = inputs(7, dtype=torch.float32)
    leaves, lengths_B = on(device, values, lengths_B)
    with torch.inference_mode():
        quiet_B = api.log_partition(**leaves, lengths_B=lengths_B)
    with torch.autocast(device, dtype=torch.bfloat16):
        log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
        loss = log_z_B.sum()
    torch.use_deterministic_algorithms(True)
    try:
        loss.backward()
        again_B = api.log_partition(**leaves, lengths_B=lengths_B)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(quiet_B, log_z_B) and torch.equal(again_B, log_z_B)
    assert_right(log_z_B, leaves, right(values, lengths_B), 1e-4)


@on_each
@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="needs torch 2.0")
def test_a_default_device_moves_nothing_of_what_is_computed_elsewhere(device):
    """`meta` stands for any other: memory there has no address that C++ may write to."""
    values, lengths_B = inputs(6)
    leaves, lengths_B = on(device, values, lengths_B)
    given = {**leaves, "lengths_B": lengths_B}

    def answers():
        log_z_B = api.log_partition(**given)
        gradients = torch.autograd.grad(log_z_B.sum(), list(leaves.values()), create_graph=True)
        (again,) = torch.autograd.grad(gradients[0].square().sum(), leaves["duration_KC"])
        p = SegmentDistribution(*(given[name] for name in (*NAMES[:3], "lengths_B")))
        tensors = [log_z_B, *gradients, again, p.log_prob(p.argmax()), p.entropy()]
        seed = torch.Generator().manual_seed(1)
        draws = api.sample(**given, samples=2, generator=seed)
        found = [api.viterbi(**given)[1], api.kbest(**given), draws, p.topk(2)]
        naive_B, _ = api.viterbi(**given, backend="naive")
        return [one.detach().cpu() for one in (*tensors, naive_B)], [*map(list, found)]

    tensors, found = answers()
    with torch.device("meta"):
        tensors_there, found_there = answers()
    exact = {"rtol": 0 if device == "cpu" else 1e-12, "atol": 0 if device == "cpu" else 1e-12}
    for one, there in zip(tensors, tensors_there, strict=True):  # torch adds up on a GPU in any order
        torch.testing.assert_close(one, there, **exact)
    assert found == found_there


@on_each
def test_minus_infinity_forbids_and_an_infeasible_sequence_has_no_gradient(device):
    values, lengths_B = inputs(8)
    values["score_BTC"][0, 3, 1:] = -torch.inf
    values["score_BTC"][1, 0] = -torch.inf
    values["transition_CC"][2] = -torch.inf
    leaves, lengths_B = on(device, values, lengths_B)
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    log_z_B.sum().backward()
    assert torch.isneginf(log_z_B).tolist() == [False, True, False]
    expected_B, _ = right(values, lengths_B)
    assert torch.allclose(log_z_B.detach().cpu(), expected_B)
    assert not bool(leaves["score_BTC"].grad[1].any())
    assert all(bool(torch.isfinite(leaf.grad).all()) for leaf in leaves.values())


@on_each
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_a_batch_with_nothing_in_it_is_refused_in_words(device, shape):
    labels = shape[2]
    with pytest.raises(LabError, match="must not be empty"):
        api.log_partition(
            torch.zeros(shape, device=device),
            torch.zeros(labels, labels, device=device),
            torch.zeros(2, labels, device=device),
        )


@no_gpu
@on_gpu
def test_a_length_out_of_range_on_a_gpu_is_refused_by_every_form():
    values, _ = inputs(9, (4, 20, 6, 5))
    leaves, lengths_B = on("cuda", values, torch.tensor([0, 13, 21, 20]))
    for function in (api.log_partition, api.posteriors, api.viterbi):
        for backend in ("auto", "torch"):
            with pytest.raises(UsageError, match="lengths must be positive, got min=0"):
                function(**leaves, lengths_B=lengths_B, backend=backend)


@no_gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_on_a_gpu_the_door_is_that_of_the_cpu(dtype):
    lowest = float(torch.finfo(dtype).min)
    values, lengths_B = inputs(9, (4, 20, 6, 5), dtype)
    never = torch.rand(4, 20, 5) < 0.3
    never[1, 7] = True
    results = []
    for number in (-float("inf"), max(-1e20, lowest)):
        score = values["score_BTC"].masked_fill(never, number)
        leaves, lengths_B = on("cuda", {**values, "score_BTC": score}, lengths_B)
        log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
        log_z_B.sum().backward()
        results.append([log_z_B, *(leaf.grad for leaf in leaves.values())])
        results[-1] += [str(api.viterbi(**leaves, lengths_B=lengths_B)[1])]
    assert all(torch.equal(a, b) for a, b in zip(results[0][:-1], results[1][:-1], strict=True))
    assert results[0][-1] == results[1][-1]
    for bad in (float("nan"), float("inf")):
        score = values["score_BTC"].clone()
        score[2, 0, 0] = bad
        leaves, lengths_B = on("cuda", {**values, "score_BTC": score}, lengths_B)
        with pytest.raises(LabError, match="numbers must not be NaN"):
            api.log_partition(**leaves, lengths_B=lengths_B)


@no_gpu
@on_gpu
def test_streams_of_the_user_are_followed():
    cases = [inputs(seed, (4, 150, 40, 9), torch.float32) for seed in range(3)]
    expected = [right(*case) for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    found = []
    busy = torch.randn(3000, 3000, device="cuda")
    for case, stream in zip(cases, streams, strict=True):
        with torch.cuda.stream(stream):
            for _ in range(3):
                busy = (busy @ busy).clamp(-1, 1)  # what is queued before must not be overtaken
            leaves, lengths_B = on("cuda", *case)
            log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
            log_z_B.sum().backward()
            found.append((log_z_B, leaves))
    torch.cuda.synchronize()
    for (log_z_B, leaves), wanted in zip(found, expected, strict=True):
        assert_right(log_z_B, leaves, wanted, 1e-4)


@no_gpu
@on_gpu
def test_a_capture_is_refused_and_the_next_call_is_right():
    """In a process of its own: a capture that failed leaves torch's generator on that GPU unusable."""
    code = f"from {__name__} import a_refused_capture; a_refused_capture()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert not done.returncode, done.stderr


def a_refused_capture():
    values, lengths_B = inputs(2)
    leaves, lengths_B = on("cuda", values, lengths_B)
    api.log_partition(**leaves, lengths_B=lengths_B)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises((LabError, RuntimeError)), torch.cuda.graph(graph), torch.no_grad():
        api.log_partition(**leaves, lengths_B=lengths_B)
    torch.cuda.synchronize()
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    log_z_B.sum().backward()
    assert_right(log_z_B, leaves, right(values, lengths_B))


@on_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees fewer than two GPUs")
def test_a_second_gpu_computes_while_the_first_is_current():
    values, lengths_B = inputs(3)
    leaves, lengths_B = on("cuda:1", values, lengths_B)
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B.to("cuda:0"))
    log_z_B.sum().backward()
    assert_right(log_z_B, leaves, right(values, lengths_B))


@no_gpu
@on_gpu
def test_between_forward_and_backward_the_messages_are_given_up():
    leaves, lengths_B = on("cuda", *inputs(1, (8, 600, 40, 24), torch.float32))
    api.log_partition(**leaves, lengths_B=lengths_B).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    log_z_B = api.log_partition(**leaves, lengths_B=lengths_B)
    held = torch.cuda.memory_allocated() - before
    messages = 2 * 8 * 608 * 32 * 4 * 3  # both passes' rows of 32 labels, three of each frame
    assert held < messages / 2 and log_z_B.requires_grad


@no_gpu
@on_gpu
def test_planted_faults_of_the_kernels_are_noticed_and_mended():
    subject = Subject("auto", torch.device("cuda"), 1, 2025)
    rows = list(audit(subject))
    assert len(rows) > 1 and all(row["verdict"] == "pass" for row in rows)
    values, lengths_B = inputs(4)
    leaves, lengths_B = on("cuda", values, lengths_B)
    with pytest.warns(MendedCounts):
        stale_counts(
            **{name: leaves[name] for name in NAMES[:3]}, lengths_B=lengths_B, backend="auto"
        ).sum().backward()
