"""Programs of many shapes: equal runs are bitwise, repeats are made where they are right, nothing crashes."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from lab.compare.same.steps import gather, judge_steps  # noqa: E402
from lab.compare.same.steps_text import notes_of, sentences  # noqa: E402
from lab.rooms.trials.workload.replay import training as recorder_module  # noqa: E402
from lab.rooms.trials.workload.replay.training import Training  # noqa: E402
from lab.workload.recorder.bits import dense, host_sum  # noqa: E402
from lab.workload.recorder.format import files_of, read  # noqa: E402
from lab.workload.recorder.recorder import Recorder  # noqa: E402
from tests.workload.recorder.test_record import network, step  # noqa: E402

pytestmark = pytest.mark.torch


def twice(tmp_path, job, *, level="op", repeats=1, runs=2):
    for run in range(runs):
        torch.manual_seed(0)
        random.seed(0)
        recorder = Training(tmp_path / f"run-{run}", steps=2, repeats=repeats, level=level, leave=False)
        recorder.start()
        try:
            job()
        finally:
            recorder.stop(ended=True)
    records, _ = gather((f"run-{n}", tmp_path / f"run-{n}") for n in range(runs))
    return judge_steps(records), records


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 2))


def loop(model, loss, *, optimizer=None, micro=1):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        for _ in range(micro):
            loss().backward()
        optimizer.step()
        optimizer.zero_grad()


def x(rows=4):
    return torch.randn(rows, 6)


class WithLoss(nn.Module):
    """Gives its loss and, beside it, the logits that the loss came from."""

    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, *, inputs):
        logits = self.body(inputs)
        return {"loss": logits.square().mean(), "logits": logits}


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = mlp(), nn.Linear(2, 6)

    def forward(self, value):
        return checkpoint(self.a, self.b(checkpoint(self.a, value, use_reentrant=False)), use_reentrant=False)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.r, self.out = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 1)

    def forward(self, value):
        return self.out(self.r(value)[0])


def loss_beside_logits():
    model = WithLoss()
    loop(model, lambda: model(inputs=x())["loss"])


def micro_batches():
    model = mlp()
    loop(model, lambda: model(x()).sum(), micro=3)


def checkpoints():
    model = Checkpointed()
    loop(model, lambda: model(x()).sum())


def recurrent():
    model = Recurrent()
    loop(model, lambda: model(torch.randn(2, 3, 6)).sum())


def compiled():
    torch._dynamo.reset()
    model = torch.compile(mlp(), backend="eager")
    loop(model, lambda: model(x()).sum())


def autocast():
    model = mlp()

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x()).float().square().mean()

    loop(model, loss)


def evaluation_between():
    model = mlp()

    def loss():
        with torch.no_grad():
            model(x())
        return model(x()).sum()

    loop(model, loss)


@pytest.mark.parametrize(
    "job",
    [loss_beside_logits, micro_batches, checkpoints, recurrent, compiled, autocast, evaluation_between],
    ids=lambda job: job.__name__,
)
def test_equal_runs_agree_and_every_step_repeats(job, tmp_path):
    finding, records = twice(tmp_path, job)
    assert finding.outcome == "bitwise" and finding.repeats == 2 * 2, (
        finding.first_place,
        records[0].recording.end,
    )
    assert finding.repeats_agree and finding.steps == 2


def test_two_recordings_of_compiled_models_in_one_process_do_not_disturb_each_other(tmp_path):
    """Dynamo had given up the frame of the first's patch, and compiled the second recorder's own code."""
    twice(tmp_path, compiled)
    model = network()
    step(model, tmp_path / "eager.gz")
    assert step(torch.compile(model, backend="eager"), tmp_path / "compiled.gz", level="ends").lacks == ()


def two_models():
    maker, judge = mlp(), nn.Linear(2, 1)
    first, second = (torch.optim.Adam(one.parameters()) for one in (judge, maker))
    for _ in range(2):
        (judge(maker(x()).detach()).mean() - judge(torch.randn(4, 2)).mean()).backward()
        first.step()
        first.zero_grad()
        (-judge(maker(x())).mean()).backward()
        second.step()
        second.zero_grad()


def gradient_penalty():
    model = mlp()

    def loss():
        value = x().requires_grad_()
        out = model(value).sum()
        return out + torch.autograd.grad(out, value, create_graph=True)[0].square().sum()

    loop(model, loss)


def no_optimizer():
    model = mlp()
    for _ in range(3):
        model(x()).sum().backward()
        with torch.no_grad():
            for one in model.parameters():
                one -= 0.1 * one.grad
                one.grad = None


@pytest.mark.parametrize(
    "job, why",
    [
        (two_models, "several forwards"),
        (gradient_penalty, "several backward"),
        (no_optimizer, "no optimizer"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_step_that_cannot_run_again_alone_is_not_repeated_and_that_is_said(job, why, tmp_path):
    finding, records = twice(tmp_path, job)
    assert finding.outcome == "bitwise" and finding.repeats == 0
    assert any(why in text for text in notes_of(records[0]))


def test_a_program_that_calls_its_model_from_threads_is_not_disturbed(tmp_path, monkeypatch):
    """A step that one thread had begun by half was ended by another, with its record."""
    from concurrent.futures import ThreadPoolExecutor

    digests = recorder_module.digests
    monkeypatch.setattr(recorder_module, "digests", lambda state: time.sleep(0.05) or digests(state))
    model = nn.Linear(6, 2)

    def loss():
        with ThreadPoolExecutor(4) as pool:
            return sum(pool.map(lambda value: model(value).sum(), [x() for _ in range(8)]))

    _, records = twice(tmp_path, lambda: loop(model, loss), runs=1)
    assert records[0].recording.end["steps"] == 2 and not records[0].recording.lacks
    assert not any("no optimizer" in note for note in records[0].recording.end["notes"])


def test_gradients_without_dense_bits_are_counted_and_the_verdict_is_incomplete(tmp_path):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, ids):
            return self.out(self.table(ids))

    def job():
        model = Sparse()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop(model, lambda: model(torch.randint(0, 10, (3,))).sum(), optimizer=optimizer)

    _, records = twice(tmp_path, job)
    (lack,) = records[0].recording.lacks
    assert "without readable bits" in lack and "sparse_coo" in lack


def test_another_process_records_nothing(tmp_path, monkeypatch):
    """A forked worker of a data loader has the recorder in its memory: it must neither write nor close."""
    recorder = Training(tmp_path, steps=2, repeats=1, level="op", leave=False)
    recorder.start()
    try:
        recorder._pid += 1  # as if this were the child
        model = mlp()
        model(x()).sum().backward()
        recorder.stop(ended=True)
        assert nn.Module.__call__.__qualname__.startswith("Recorder")
    finally:
        recorder._pid -= 1
        recorder.stop(ended=True)
    assert not files_of(tmp_path)


@pytest.mark.parametrize(
    "op, args, read",
    [
        ("aten.scatter_.value", (0, 1), [0, 1]),  # keeps what it does not write
        ("aten.copy_.default", (0, 1), [1]),
        ("aten.add_.Tensor", (0, 1), [0, 1]),
        ("c10d._allgather_base_.default", (0, 1), [1]),
        ("c10d.allreduce_.default", ([0],), [0]),
        ("c10d.scatter_.default", ([0], [[1]]), [1]),
        ("fsdp.all_gather_copy_in.default", ([0], 1), [0]),
    ],
)
def test_an_operator_reads_its_inputs_and_not_what_it_only_writes(op, args, read):
    tensors = [torch.zeros(2), torch.ones(2)]

    def of(value):
        return [of(one) for one in value] if isinstance(value, list) else tensors[value]

    found = Recorder.read_by(SimpleNamespace(_unwritten={}), object(), op, tuple(of(one) for one in args), {})
    assert [next(at for at, one in enumerate(tensors) if one is each) for each in found] == read


class Halves(nn.Module):
    """Two views of one tensor, which is changed after it was split: torch takes no hook on them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.split = Split()

    def forward(self, given):
        made = self.inner(given)
        one, _ = self.split(made)
        return made.sum() + 0 * one.detach().sum()


class Split(nn.Module):
    def forward(self, given):
        halves = given.unbind(0)
        with torch.no_grad():
            given.mul_(2)
        return halves[0], halves[1]


def test_outputs_whose_gradients_cannot_be_seen_are_named(tmp_path):
    model = Halves()
    _, records = twice(tmp_path, lambda: loop(model, lambda: model(x(2))), runs=1)
    (note,) = [one for one in notes_of(records[0]) if "were not seen" in one]
    assert note.startswith("the gradients of 2 outputs were not seen: torch refuses a hook on split:0")


def test_a_factor_that_changes_is_an_input_and_no_fault_of_the_operator(tmp_path):
    """As a clock, an address or numpy gives one: the product differs, and its tensors do not."""
    factor = iter([1.5, 1.5, 1.25, 1.25])

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, value):
            return self.body(value) * next(factor)

    def job():
        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(x()).sum().backward()
            optimizer.step()

    finding, _ = twice(tmp_path, job, repeats=0)
    assert finding.first_place.op == "aten.mul.Tensor" and finding.first_place.equal_inputs is False


def test_weights_that_something_else_changes_between_steps_are_named_as_weights(tmp_path):
    poke = iter([0.0, 0.0, 0.5, 0.5])

    def job():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(x()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model[3].weight += next(poke)

    finding, _ = twice(tmp_path, job)
    first = finding.first_place
    assert (first.step, first.kind, first.op, first.direction) == (2, "weight", "3.weight", "start")
    assert any("something other than the optimizer" in text for text in sentences(finding))


class Chain(nn.Module):
    """A container that gives what its last module gave, once changed in place and once not."""

    def __init__(self, changes):
        super().__init__()
        self.inner, self.head, self.changes = (
            nn.Sequential(nn.Linear(6, 6), nn.GELU()),
            nn.Linear(6, 1),
            changes,
        )

    def forward(self, value):
        value = self.inner(value)
        return self.head(value.mul_(2) if self.changes else value)


@pytest.mark.parametrize("changes", [False, True])
def test_without_operators_every_checksum_is_that_of_its_tensor(changes, tmp_path, monkeypatch):
    """Gradients are read many at a time: the bits are those that were there."""
    monkeypatch.setattr(recorder_module, "TOGETHER", 2)
    model, wanted = Chain(changes), {}
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, out, name=name: wanted.setdefault(("module", name), []).append(text_of(out))
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Training(tmp_path, steps=2, repeats=0, level="module", leave=False)
    recorder.start()
    for _ in range(2):
        for _ in range(2):  # micro-batches: gradients are added to
            model(x()).sum().backward()
            for name, weight in model.named_parameters():
                wanted.setdefault(("grad", name), []).append(text_of(weight.grad))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    recorder.stop(ended=True)
    record = read(files_of(tmp_path)[0])
    found = {}
    for one in record.rows:
        if (one.kind, one.phase) in (("module", "fwd"), ("grad", "bwd")):
            name = one.module if one.kind == "module" else one.op
            found.setdefault((one.kind, name), []).append(one.ck)
    assert found == wanted and not record.end["unseen"] and record.end["steps"] == 2


def text_of(tensor):
    return f"{host_sum(dense(tensor)):016x}"


@pytest.mark.parametrize("level", ["op", "module"])
def test_a_teacher_in_inference_mode_does_not_end_the_program(level, tmp_path):
    class Taught(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher, self.student = nn.Sequential(nn.Linear(6, 2)), mlp()

        def forward(self, value):
            with torch.inference_mode():
                wanted = self.teacher(value)
            return (self.student(value) - wanted.clone()).square().mean()

    model = Taught()
    finding, records = twice(tmp_path, lambda: loop(model, lambda: model(x())), level=level, runs=1)
    assert finding.outcome == "bitwise" and finding.repeats == 2, records[0].recording.end


def test_a_gradient_that_changes_before_it_is_read_is_unseen_and_not_another_number(tmp_path):
    """A hook of a module changes it, which no hook of the weight shows."""
    first, second = nn.Linear(6, 6), nn.Linear(6, 1)
    model = nn.Sequential(first, second)

    def double(*_):
        second.weight.grad.mul_(2)

    first.register_full_backward_hook(double)
    recorder = Training(tmp_path, steps=1, repeats=0, level="module", leave=False)
    recorder.start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x().requires_grad_()).sum().backward()
    optimizer.step()
    recorder.stop(ended=True)
    record = read(files_of(tmp_path)[0])
    assert record.end["unseen"] == {"gradients that were changed inside the backward": 1}
    assert [one.ck for one in record.rows if (one.kind, one.op) == ("grad", "1.weight")] == [""]
