"""Recording a model, and what the comparison says of real plants in it."""

from __future__ import annotations

import copy
import gzip
import json
import threading
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from lab import same  # noqa: E402
from lab.compare.same.judge import judge  # noqa: E402
from lab.compare.same.text import text  # noqa: E402
from lab.errors import UsageError  # noqa: E402
from lab.same import facts_of, sample_places  # noqa: E402
from lab.workload.recorder.format import read  # noqa: E402
from lab.workload.recorder.recorder import aliases  # noqa: E402
from tests.workload.attention import Attention, efficient_attention_on_a_cpu  # noqa: E402


class Plant(TorchDispatchMode):
    """Cuts results of the float32 calls of `op` with these numbers to 10 mantissa bits."""

    def __init__(self, op, *numbers):
        super().__init__()
        self.op, self.numbers, self.count = op, numbers, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if str(func) == self.op and result.dtype == torch.float32:
            if self.count in self.numbers:
                result = (result.view(torch.int32) & ~0x1FFF).view(torch.float32)
            self.count += 1
        return result


def network():
    torch.manual_seed(0)
    block = [torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)]
    return torch.nn.Sequential(*block, torch.nn.Linear(32, 32), torch.nn.Linear(32, 8))


def step(model, path, **options):
    torch.manual_seed(1)
    x = torch.randn(4, 6, 32)
    model.zero_grad(set_to_none=True)
    with same.record(model, path, **options):
        model(x).softmax(-1).pow(2).sum().backward()
    return read(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One network recorded, recorded again, and three times with nudged weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder, model = tmp_path_factory.mktemp("same"), network()
    floors = []
    for seed in range(3):
        with same.nudged(model, seed):
            floors.append(step(model, folder / f"floor{seed}.gz"))
    yield folder, model, step(model, folder / "a.gz"), floors
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_numbers_without_a_sign_are_sampled_where_nothing_picks_them(name):
    """As on a GPU, where flash attention gives its random state as uint64."""
    if not hasattr(torch, name):
        pytest.skip("this torch has no such type")

    class NoIndex(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "index" in str(func) and str(args[0].dtype) == f"torch.{name}":
                raise NotImplementedError(f'"index_cuda" not implemented for {name}')
            return func(*args, **(kwargs or {}))

    most = 2 ** int(name[4:]) - 1
    tensor = torch.tensor([7, most, 3], dtype=getattr(torch, name))
    with NoIndex():
        assert facts_of(tensor)["sample"] == [7.0, float(most), 3.0]


def test_a_recording_has_every_weight_module_gradient_and_op_and_the_recorders_own_ops_are_not_in_it(runs):
    _, model, a, _ = runs
    kinds = {kind: [row for row in a.rows if row.kind == kind] for kind in ("weight", "module", "grad", "op")}
    names = [name for name, _ in model.named_parameters()]
    assert [row.op for row in kinds["weight"]] == [row.op for row in kinds["grad"]] == names
    assert [row.module for row in kinds["module"][:6]] == ["0", "1", "2", "3", "4", ""]
    forward = [row.op for row in kinds["op"] if row.phase == "fwd" and row.module]
    assert forward == [
        *["aten.addmm.default", "aten.gelu.default", *["aten.native_layer_norm.default"] * 3],
        *["aten.addmm.default"] * 2,
    ]
    assert {row.node for row in kinds["op"] if row.op.startswith("aten.gelu_backward")} == {"GeluBackward0"}
    assert a.lacks == ()


def test_the_ops_of_a_backward_belong_to_the_module_whose_forward_made_their_node(runs):
    _, _, a, _ = runs
    ops = [(row.op, row.module) for row in a.rows if row.kind == "op" and row.phase == "bwd" and row.module]
    linear = [("aten.mm.default", 2), ("aten.sum.dim_IntList", 1)]
    assert [op for op, module in ops if module == "3"] == [op for op, n in linear for _ in range(n)]
    assert {m for op, m in ops if op == "aten.gelu_backward.default"} == {"1"}
    assert [m for op, m in ops if op.startswith("aten.native_layer_norm_backward")] == ["2"] * 3
    came = [row.module for row in a.rows if row.kind == "module" and row.phase == "bwd"]
    assert came[:2] in (["4", ""], ["", "4"]) and came[2:] == ["3", "2", "1", "0"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_runs_again_in_the_backward_keeps_its_module(tmp_path, reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = network(), torch.nn.Linear(8, 3)

        def forward(self, x):
            return self.last(checkpoint(self.inner, x, use_reentrant=reentrant))

    model, x = Checkpointed(), torch.randn(4, 32, requires_grad=True)
    with same.record(model, tmp_path / "a.gz"):
        model(x).sum().backward()
    rows = [row for row in read(tmp_path / "a.gz").rows if row.kind == "op" and row.phase == "bwd"]
    again = [row.module for row in rows if row.op == "aten.gelu.default"]
    back = [row.module for row in rows if row.op == "aten.gelu_backward.default"]
    assert again == back == ["inner.1"]
    assert {row.module for row in rows if row.node == "NativeLayerNormBackward0"} <= {"inner.2", "inner"}


def test_a_backward_inside_a_forward_and_a_forward_in_another_thread_name_no_wrong_module(tmp_path):
    class Penalty(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.twice, self.once = torch.nn.Linear(4, 3), torch.nn.Linear(3, 5)

        def forward(self, x):
            y = self.twice(x.requires_grad_())
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return self.once(self.twice(y @ torch.ones(3, 4) + slope))

    model, outs = Penalty(), []
    with same.record(model, tmp_path / "a.gz"):
        run = threading.Thread(target=lambda: outs.append(model(torch.ones(2, 4))))
        run.start()
        run.join()
        outs[0].sum().backward()
    rows = [row for row in read(tmp_path / "a.gz").rows if row.kind == "op" and row.phase == "bwd"]
    of_weights = {(row.module, row.shape) for row in rows if row.op == "aten.mm.default" and row.module}
    assert of_weights >= {("once", (5, 3)), ("once", (2, 3)), ("twice", (3, 4))}
    assert ("once", (3, 4)) not in of_weights and ("twice", (5, 3)) not in of_weights


def test_a_graph_that_outlives_its_recording_runs_backward_as_if_nothing_had_been(tmp_path):
    model = network()
    with same.record(model, tmp_path / "a.gz"):
        out = model(torch.ones(2, 32))
    rows = len(read(tmp_path / "a.gz").rows)
    out.sum().backward()
    assert len(read(tmp_path / "a.gz").rows) == rows and all(
        one.grad is not None for one in model.parameters()
    )


def test_a_module_that_raises_inside_leaves_its_name_to_nobody(tmp_path):
    class Fails(torch.nn.Module):
        def forward(self, x):
            raise ValueError

    class Tries(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fails, self.works = Fails(), torch.nn.Linear(4, 4)

        def forward(self, x):
            try:
                return self.fails(x)
            except ValueError:
                return self.works(x).tanh()

    model = torch.nn.Sequential(Tries(), torch.nn.Sigmoid(), Tries())
    with same.record(model, tmp_path / "a.gz"):
        model(torch.ones(2, 4)).exp().sum().backward()
    named = {(row.op, row.module) for row in read(tmp_path / "a.gz").rows if row.kind == "op"}
    assert {("aten.sigmoid.default", "1"), ("aten.exp.default", "")} <= named
    assert ("aten.addmm.default", "0.works") in named and ("aten.sigmoid_backward.default", "1") in named


def test_hooks_on_outputs_change_no_gradient_also_where_modules_work_in_place(tmp_path):
    def block():
        torch.manual_seed(3)
        parts = [torch.nn.Conv2d(3, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(inplace=True)]
        return torch.nn.Sequential(*parts, torch.nn.Flatten(), torch.nn.Linear(48, 4))

    plain, seen, x = block(), block(), torch.randn(2, 3, 6, 6)
    plain(x).square().sum().backward()
    with same.record(seen, tmp_path / "a.gz"):
        seen(x).square().sum().backward()
    for a, b in zip(plain.parameters(), seen.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


class Split(torch.nn.Module):
    """Its outputs are views of what it changes afterwards: torch takes no hook on them."""

    def __init__(self):
        super().__init__()
        self.halves = torch.nn.Identity()
        self.halves.forward = self._halves

    def _halves(self, given):
        halves = given.unbind(0)
        with torch.no_grad():
            given.mul_(2)
        return halves

    def forward(self, given):
        made = given * torch.ones_like(given).requires_grad_()
        self.halves(made)
        return made.sum()


def test_gradients_that_no_hook_can_see_are_named_beside_the_verdict(tmp_path):
    model, x = Split(), torch.ones(2, 4)
    with same.record(model, tmp_path / "a.gz"):
        model(x).backward()
    a = read(tmp_path / "a.gz")
    found = judge(a, a, [], None)
    note = "the gradients of 2 outputs were not seen: torch refuses a hook on halves:0, halves:1"
    assert found.notes == [f"A: {note}", f"B: {note}"] and found.outcome == "same bits"
    assert note in found.reason and f"! B: {note}" in text(found, a, a, 5)


def test_equal_runs_are_equal_and_nothing_stays_on_the_model(runs, tmp_path):
    _, model, a, floors = runs
    found = judge(a, step(model, tmp_path / "b.gz"), floors, None)
    assert (found.outcome, found.bits.differ) == ("same bits", 0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_nudged_weights_are_noise_and_go_back(runs, tmp_path):
    _, model, a, floors = runs
    before = [one.clone() for one in model.parameters()]
    with same.nudged(model, 7):
        noisy = step(model, tmp_path / "b.gz")
    assert all(map(torch.equal, before, model.parameters()))
    found = judge(a, noisy, floors, None)
    assert found.bits.differ > 20
    assert found.outcome == "within noise"


def test_a_floor_over_steps_of_training_may_end_at_other_weights(tmp_path):
    def train(seed):
        model, path = network(), tmp_path / str(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with same.nudged(model if seed else torch.nn.Identity(), seed), same.record(model, path):
            for number in range(2):
                model(torch.full((4, 32), 0.1 * number)).square().sum().backward()
                optimizer.step()
        return read(path)

    a, b, *floors = map(train, range(4))
    assert judge(a, b, floors, None).outcome == "within noise"


@pytest.mark.parametrize("noise", [False, True])
def test_planted_ops_are_the_first_named_each_of_them_also_under_upstream_noise(runs, tmp_path, noise):
    """Forward addmm 1 of 3, and the last mm of the backward."""
    _, model, a, floors = runs
    mms = sum(row.op == "aten.mm.default" for row in a.rows)
    with Plant("aten.addmm.default", 1), Plant("aten.mm.default", mms - 1):
        if noise:
            with same.nudged(model, 9):
                b = step(model, tmp_path / "b.gz")
        else:
            b = step(model, tmp_path / "b.gz")
    found = judge(a, b, floors, None)
    assert found.outcome == "differs"
    assert (found.values.first_place.op, found.values.first_place.module) == ("aten.addmm.default", "3")
    assert [(one.op, one.module, one.side) for one in found.made_by] == [
        ("aten.addmm.default", "3", "B"),
        ("aten.mm.default", "0", "B"),
    ]
    if not noise:
        assert [one.op for one in found.on_equal_inputs] == ["aten.addmm.default"]
    assert (found.modules[-1].module, found.modules[-1].phase) == ("0", "bwd")


def test_a_compiled_model_compares_at_its_ends_with_the_eager_one(runs, tmp_path):
    _, model, a, floors = runs
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(UsageError, match="compiled"):
        step(compiled, tmp_path / "no.gz")
    b = step(compiled, tmp_path / "b.gz", level="ends")
    found = judge(a, b, floors, None)
    assert (found.level, found.outcome, found.n_only_a, found.n_only_b) == ("ends", "same bits", 0, 0)
    assert found.paired == 2 * len(list(model.parameters())) + 3  # the input, the output and its gradient
    assert found.values.unknown == 0


def test_a_program_that_fails_leaves_a_recording_that_says_so(tmp_path):
    model = network()
    with pytest.raises(RuntimeError), same.record(model, tmp_path / "a.gz"):
        model(torch.zeros(1, 5))
    assert read(tmp_path / "a.gz").lacks == ("the recorded program ended with RuntimeError",)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]


def test_another_precision_is_judged_by_own_errors(runs, tmp_path):
    _, _, a, floors = runs
    model = network().double()
    x = torch.zeros(0)
    with same.record(model, tmp_path / "b.gz"):
        torch.manual_seed(1)
        x = torch.randn(4, 6, 32).double()
        model(x).softmax(-1).pow(2).sum().backward()
    found = judge(a, read(tmp_path / "b.gz"), floors, None)
    assert (found.outcome, found.precision) == ("undecided", "float32 against float64")
    assert judge(a, a, [], read(tmp_path / "b.gz")).values.unknown == 0


def test_sampled_places_are_the_same_for_a_size_distinct_and_spread():
    assert sample_places(5) == [0, 1, 2, 3, 4]
    places = sample_places(10**9)
    assert places == sample_places(10**9) and len(set(places)) == 32
    assert max(b - a for a, b in pairwise(places)) < 10**8
    assert places == sorted(places) and places[0] >= 0 and places[-1] < 10**9


def test_lines_are_json_without_nan(tmp_path):
    model = torch.nn.Linear(2, 2)
    with same.record(model, tmp_path / "a.gz"):
        model(torch.tensor([[float("nan"), float("inf")]]))
    row = json.loads(gzip.decompress((tmp_path / "a.gz").read_bytes()).splitlines()[3])
    assert (row["kind"], row["nan"], row["inf"], row["sample"], row["l2"]) == (
        "input",
        1,
        1,
        [None, None],
        None,
    )


def test_norms_cover_all_elements_of_a_tensor_larger_than_a_part(monkeypatch):
    monkeypatch.setattr("lab.same.CHUNK", 7)
    torch.manual_seed(5)
    x = torch.randn(5, 10)
    x[4, 9] = -50.0
    found = facts_of(x)
    assert found["l2"] == pytest.approx(float(x.double().norm()), rel=1e-12)
    assert (found["absmax"], found["nan"], found["inf"]) == (50.0, 0, 0)
    parts = found["signed"]
    monkeypatch.setattr("lab.same.CHUNK", 1000)
    assert facts_of(x)["signed"] == pytest.approx(parts)
    x[0, 0], x[0, 1] = float("nan"), float("inf")
    found = facts_of(x)
    assert (found["nan"], found["inf"]) == (1, 1)
    assert found["absmax"] != found["absmax"] and found["l2"] != found["l2"]


class Swap(TorchDispatchMode):
    """Swaps two elements, which no sample shows, of the result of the calls of `op`."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if str(func) == self.op:
            flat = result.view(-1)
            here = [
                at for at in range(flat.numel()) if flat[at] != 0 and at not in sample_places(flat.numel())
            ]
            there = next(at for at in reversed(here) if abs(flat[at] - flat[here[0]]) > 0.01)
            flat[[here[0], there]] = flat[[there, here[0]]]
        return result


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(5000, 8), torch.nn.Linear(8, 3)

    def forward(self, ids):
        return self.out(self.table(ids))


def test_elements_that_swap_places_outside_the_samples_are_no_noise(tmp_path):
    """A sparse gradient: its norms stay, its samples are zeros, and without ops there are no own errors."""
    torch.manual_seed(0)
    model, ids = Words(), torch.arange(7, 47)

    def run(name):
        model.zero_grad(set_to_none=True)
        with same.record(model, tmp_path / name, level="ends"):
            model(ids).pow(2).sum().backward()
        return read(tmp_path / name)

    a = run("a")
    floors = []
    for seed in range(3):
        with same.nudged(model, seed):
            floors.append(run(f"f{seed}"))
    with same.nudged(model, 9):
        assert judge(a, run("noise"), floors, None).outcome == "within noise"
    with Swap("aten.embedding_dense_backward.default"):
        b = run("b")
    first, second = (next(row for row in one.rows if row.kind == "grad") for one in (a, b))
    assert first.l2 == pytest.approx(second.l2, rel=1e-12) and set(first.sample) == set(second.sample) == {
        0.0
    }
    found = judge(a, b, floors, None)
    assert (found.outcome, found.values.beyond, found.values.first_place.op) == ("differs", 1, "table.weight")


def test_sums_under_signs_estimate_the_change_whatever_elements_changed():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(100_000, generator=generator, dtype=torch.float64)
    for count, share in ((1, 2.0), (100, 0.5), (100_000, 1e-6)):
        y = x.clone()
        y[torch.randperm(100_000, generator=generator)[:count]] *= 1 + share
        one, two = facts_of(x), facts_of(y)
        off = [(b - a) ** 2 for a, b in zip(one["signed"], two["signed"], strict=True)]
        estimate, true = (sum(off) / len(off)) ** 0.5, float((y - x).norm())
        assert 0.2 < estimate / true < 3
    assert facts_of(x[:0])["signed"] == [0.0] * 4


def test_a_floor_or_reference_of_other_inputs_or_draws_is_refused(runs, tmp_path):
    _, model, a, _ = runs

    def run(name, x, module=model):
        with same.record(module, tmp_path / name):
            module(x).softmax(-1).pow(2).sum().backward()
        return read(tmp_path / name)

    other = run("other", torch.randn(4, 6, 32))
    with pytest.raises(UsageError, match="recorded with other inputs"):
        judge(a, a, [other], None)
    twin = network().double()
    with pytest.raises(UsageError, match="reference"):
        judge(a, a, [], run("exact", torch.randn(4, 6, 32).double(), twin))
    torch.manual_seed(1)
    assert judge(a, a, [], run("right", torch.randn(4, 6, 32).double(), twin)).outcome == "same bits"
    dropping, x = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5)), torch.randn(4, 32)
    torch.manual_seed(5)
    first = run("drop", x, dropping)
    torch.manual_seed(6)
    with pytest.raises(UsageError, match="drew other random numbers"):
        judge(first, first, [run("redrawn", x, dropping)], None)


@pytest.mark.parametrize("off", [0.01, 1e-5])
def test_a_floor_or_reference_of_other_weights_is_refused(runs, tmp_path, off):
    """A fault as large as the difference of the weights would be within such a floor."""
    _, model, a, floors = runs
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].weight.mul_(1 + off * torch.randn_like(other[3].weight))
    with pytest.raises(UsageError, match=r"recorded with other weights than A \(first: 3.weight\)"):
        judge(a, a, [floors[0], step(other, tmp_path / "floor")], None)

    def exact(model, name):
        torch.manual_seed(1)
        x = torch.randn(4, 6, 32).double()
        with same.record(model, tmp_path / name):
            model(x).softmax(-1).pow(2).sum().backward()
        return read(tmp_path / name)

    with pytest.raises(UsageError, match=r"the reference .* with other weights"):
        judge(a, a, [], exact(other.double(), "other"))
    assert judge(a, a, floors, exact(network().double(), "right")).outcome == "same bits"


def test_statistics_that_a_forward_moves_are_no_other_weights(tmp_path):
    """In training mode a batch norm's buffers are others at the second recording."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Flatten(0, 1), torch.nn.BatchNorm1d(32))
    a = step(model, tmp_path / "a")
    with same.nudged(model, 1):
        floor = step(model, tmp_path / "floor")
    assert judge(a, a, [floor], None).outcome == "same bits"


def test_the_text_of_a_schema_says_what_its_alias_marks_say():
    """torch 1.12 has the text alone."""
    ops = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if not name.startswith("_")]
    overloads = [getattr(op, name) for op in ops if hasattr(op, "overloads") for name in op.overloads()]
    seen = set()
    for one in overloads:
        returns, given = (
            [part.alias_info for part in parts if part.alias_info is not None]
            for parts in (one._schema.returns, one._schema.arguments)
        )
        marks = any(not alias.is_write for alias in returns), any(alias.is_write for alias in given)
        assert aliases(one) == marks, str(one._schema)
        seen.add(marks)
    assert len(overloads) > 1000 and {(False, False), (True, False), (False, True)} <= seen


def recorded(model, path):
    torch.manual_seed(1)
    x = torch.randn(2, 5, 8)
    model.zero_grad(set_to_none=True)
    with same.record(model, path):
        model(x).square().sum().backward()
    return read(path)


def test_seeds_that_no_attention_wrote_are_left_out_and_named_in_the_verdict(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Attention())
    with efficient_attention_on_a_cpu():
        a, b = recorded(model, tmp_path / "a"), recorded(model, tmp_path / "b")
    found = judge(a, b, [], None)
    names = [f"_scaled_dot_product_efficient_attention philox_{one}" for one in ("seed", "offset")]
    assert (found.outcome, found.bits.differ) == ("same bits", 0)
    assert found.unwritten == {side: dict.fromkeys(names, 1) for side in ("A", "B")}
    said = text(found, a, b, 5)
    assert "same bits: every output that is written is equal bit by bit" in said
    assert f"in each run 2 outputs that need not be written were not compared: 1 of {names[0]}, 1 of" in said
    rows = [row.out for row in a.rows if row.op == "aten._scaled_dot_product_efficient_attention.default"]
    assert rows == [0, 1]
    assert judge(a, b, [], None, level="module").unwritten == {}  # where no operator is compared


def test_a_backward_that_differs_on_equal_inputs_is_seen_whatever_its_seeds_hold(tmp_path):
    op = "aten._scaled_dot_product_efficient_attention_backward.default"
    torch.manual_seed(0)
    model = Attention()
    with efficient_attention_on_a_cpu():
        a = recorded(model, tmp_path / "a")
        with PlantFirst(op):
            b = recorded(model, tmp_path / "b")
    assert [(one.op, one.out) for one in judge(a, b, [], None).on_equal_inputs] == [(op, 0)]


class PlantFirst(TorchDispatchMode):
    """Changes the first output of `op`."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return (result[0] * 1.001, *result[1:]) if str(func) == self.op else result


def test_seeds_of_an_attention_that_drops_out_are_compared(tmp_path):
    torch.manual_seed(0)
    model = Attention(dropout=0.1)
    with efficient_attention_on_a_cpu():
        a, b = recorded(model, tmp_path / "a"), recorded(model, tmp_path / "b")
        assert (found := judge(a, b, [], None)).outcome == "same bits" and not found.unwritten
        torch.manual_seed(1)
        x = torch.randn(2, 5, 8)
        torch.manual_seed(7)
        model.zero_grad(set_to_none=True)
        with same.record(model, tmp_path / "c"):
            model(x).square().sum().backward()
    first = judge(a, read(tmp_path / "c"), [], None).bits.first_place
    assert (first.op, first.out) == ("aten._scaled_dot_product_efficient_attention.default", 2)


def test_a_floor_that_equals_a_but_for_what_nobody_wrote_shows_no_noise(tmp_path):
    model = Attention()
    with efficient_attention_on_a_cpu():
        a, floor = recorded(model, tmp_path / "a"), recorded(model, tmp_path / "f")
    with pytest.raises(UsageError, match="shows no noise"):
        judge(a, a, [floor], None)


class Grows(torch.nn.Module):
    """Works in memory that it makes itself, and never reads what it did not write."""

    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.inside(x)
        with torch.no_grad():
            spare = torch.empty_like(y).new_empty(y.shape).resize_(3 * y.numel())
            spare[: y.numel()] = y.reshape(-1)
        return y + spare[: y.numel()].view_as(y)


@pytest.mark.parametrize("garbage", [1.0, float("nan")])
def test_memory_that_was_made_and_not_written_is_no_output(tmp_path, garbage):
    torch.manual_seed(0)
    model = Grows()
    a = recorded(model, tmp_path / "a")
    with Fills(garbage):
        b = recorded(model, tmp_path / "b")
    assert judge(a, b, [], None).outcome == "same bits"


class Fills(TorchDispatchMode):
    """New memory holds one number."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = str(func).startswith(("aten.empty", "aten.new_empty", "aten.resize"))
        return result.fill_(self.value) if made and result.is_floating_point() else result
