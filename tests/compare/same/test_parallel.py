"""Two ranks of gloo against their one-rank twin: planted faults are named at their module, equal runs not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
tensor = pytest.importorskip("torch.distributed.tensor")
pytestmark = pytest.mark.torch

from torch import distributed, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from lab import same  # noqa: E402
from lab.compare.same.parallel import judge_parallel  # noqa: E402
from lab.compare.same.text import parallel_text  # noqa: E402
from lab.workload.recorder.format import OF_RANKS, files_of, read  # noqa: E402
from tests.conftest import free_port  # noqa: E402

WORLD, WIDTH, HIDDEN, ROWS, STEPS = 2, 16, 32, 8, 2


class Copy(torch.autograd.Function):
    """To every rank; in the backward the sum over ranks."""

    @staticmethod
    def forward(ctx, value, reduces):
        ctx.reduces = reduces
        return value.view_as(value)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.reduces:
            distributed.all_reduce(grad)
        return grad, None


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        value = value.clone()
        distributed.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx, grad):
        return grad


def sharded(weight, mesh, dimension):
    if mesh is None:
        return nn.Parameter(weight.detach())
    place = tensor.Replicate() if dimension is None else tensor.Shard(dimension)
    return nn.Parameter(tensor.distribute_tensor(weight.detach(), mesh, [place]))


def local(weight):
    return weight.to_local() if isinstance(weight, tensor.DTensor) else weight


class Column(nn.Module):
    def __init__(self, mesh, plant):
        super().__init__()
        whole = nn.Linear(WIDTH, HIDDEN)
        self.weight, self.bias = sharded(whole.weight, mesh, 0), sharded(whole.bias, mesh, 0)
        self.mesh, self.plant = mesh, plant
        if plant == "wrong_slice" and mesh is not None:
            with torch.no_grad():
                self.weight.to_local().copy_(whole.weight[: HIDDEN // WORLD])

    def forward(self, x):
        if self.mesh is not None:
            x = Copy.apply(x, self.plant != "no_backward_reduce")
        return functional.linear(x, local(self.weight), local(self.bias))


class Middle(nn.Module):
    """Divides by the RMS of all hidden numbers, of which a rank has a part."""

    def __init__(self, mesh, plant):
        super().__init__()
        self.mesh, self.plant = mesh, plant

    def forward(self, x):
        squares = x.square().sum(-1, keepdim=True)
        if self.mesh is not None and self.plant != "local_norm":
            squares = Copy.apply(Reduce.apply(squares), True)
        count = HIDDEN // WORLD if self.mesh is not None and self.plant == "local_norm" else HIDDEN
        return x * (squares / count + 1e-6).rsqrt()


class Down(nn.Module):
    def __init__(self, mesh, plant):
        super().__init__()
        whole = nn.Linear(HIDDEN, WIDTH)
        self.weight, self.bias = sharded(whole.weight, mesh, 1), sharded(whole.bias, mesh, None)
        self.mesh, self.plant = mesh, plant

    def forward(self, x):
        y = functional.linear(x, local(self.weight))
        if self.mesh is None:
            return y + self.bias
        if self.plant == "double_bias":
            y = y + local(self.bias)
        if self.plant != "no_reduce":
            y = Reduce.apply(y)
        y = y / WORLD if self.plant == "wrong_scale" else y
        return y if self.plant == "double_bias" else y + local(self.bias)


class Head(nn.Module):
    """Its outputs are gathered from all ranks."""

    def __init__(self, mesh, plant):
        super().__init__()
        self.weight, self.mesh, self.plant = sharded(nn.Linear(WIDTH, 4).weight, mesh, 0), mesh, plant

    def forward(self, x):
        if self.mesh is None:
            return functional.linear(x, self.weight)
        part = functional.linear(Copy.apply(x, True), local(self.weight))
        parts = [torch.empty_like(part) for _ in range(WORLD)]
        distributed.all_gather(parts, part.detach().contiguous())
        parts[distributed.get_rank()] = part
        return torch.cat(parts[::-1] if self.plant == "wrong_order" else parts, -1)


class Block(nn.Module):
    def __init__(self, mesh, plant):
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(WIDTH), Column(mesh, plant), nn.GELU()
        self.middle, self.down = Middle(mesh, plant), Down(mesh, plant)

    def forward(self, x):
        return x + self.down(self.middle(self.act(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, mesh=None, plant="", block=0):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(mesh, plant if at == block else "") for at in range(2))
        self.head = Head(mesh, plant)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batches():
    generator = torch.Generator().manual_seed(1000)
    return [torch.randn(2 * ROWS, WIDTH, generator=generator) for _ in range(STEPS)]


def tensor_parallel(path, plant, block, mesh=None):
    """Every rank has the whole batch and a part of the weights; without a mesh the twin."""
    model = Net(mesh, plant, block)
    stale = plant == "stale_weight" and mesh is not None and distributed.get_rank() == 1
    left_out = f"blocks.{block}.norm.weight" if stale else ""
    updated = [weight for name, weight in model.named_parameters() if name != left_out]
    optimizer = torch.optim.SGD(updated, lr=0.05)
    with same.record(model, path, level="module"):
        for x in batches():
            model(x).square().mean().backward()
            optimizer.step()
            model.zero_grad()


def data_parallel(path, plant, rank=None, wrap=None):
    """Every rank has its part of each of two micro-batches; without a rank the twin."""
    model = Net()
    whole_model, model = model, wrap(model) if wrap else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with same.record(model, path, level="module"):
        for batch in batches():
            for number, micro in enumerate(batch.split(ROWS)):
                if rank is not None:
                    part = 0 if plant == "wrong_batch" else rank
                    micro = micro.chunk(WORLD)[part]
                    if plant == "dropped_batch" and rank == 1 and number == 1:
                        continue
                loss = model(micro).square().mean()
                loss = loss * (len(micro) if plant == "summed_loss" and rank == 1 else 1)
                loss.backward()
            if rank is not None and wrap is None:
                for name, weight in whole_model.named_parameters():
                    if plant != "no_gradient_reduce" or name != "blocks.1.up.weight":
                        distributed.all_reduce(weight.grad)
                        weight.grad /= 1 if plant == "summed_gradients" else WORLD
            optimizer.step()
            optimizer.zero_grad()


# Plant -> what is named: (kind, module, phase).
OF_TENSORS = {
    "no_reduce": ("module", "blocks.{}.down", "fwd"),
    "wrong_scale": ("module", "blocks.{}.down", "fwd"),
    "double_bias": ("module", "blocks.{}.down", "fwd"),
    "local_norm": ("module", "blocks.{}.middle", "fwd"),
    "wrong_order": ("module", "head", "fwd"),
    "wrong_slice": ("weight", "blocks.{}.up", "start"),
    "stale_weight": ("weight", "blocks.{}.norm", "update"),
    "no_backward_reduce": ("module", "blocks.{}.norm", "bwd"),
}
OF_DATA = {
    "no_gradient_reduce": ("grad", "blocks.1.up", "end"),
    "summed_gradients": ("grad", "head", "end"),
    "dropped_batch": ("input", "", "fwd"),
    "wrong_batch": ("input", "", "fwd"),
    "summed_loss": ("module", "head", "bwd"),
}


def colwise(mesh):
    """Megatron's layout by torch's own parallelize_module: sequential, its outputs plain tensors."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH), nn.Tanh()
    )
    plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    return model if mesh is None else parallelize_module(model, mesh, plan)


def torchs_own(path, mesh=None):
    model = colwise(mesh)
    with same.record(model, path, level="module"):
        for x in batches():
            model(x).square().mean().backward()


def fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def _rank(rank, port, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (WORLD,))
    for number, plant in enumerate(OF_TENSORS):
        tensor_parallel(folder / plant, plant, number % 2, mesh)
    for plant in OF_DATA:
        data_parallel(folder / plant, plant, rank)
    tensor_parallel(folder / "tensor", "", 0, mesh)
    data_parallel(folder / "data", "", rank)
    torchs_own(folder / "torch", mesh)
    data_parallel(folder / "ddp", "", rank, nn.parallel.DistributedDataParallel)
    data_parallel(folder / "fsdp", "", rank, fsdp)
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All recordings; of one rank in `twins`."""
    folder = tmp_path_factory.mktemp("parallel")
    torch.multiprocessing.spawn(_rank, args=(free_port(), folder), nprocs=WORLD)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tensor_parallel(folder / "twin_tensor", "", 0)
    data_parallel(folder / "twin_data", "")
    torchs_own(folder / "twin_torch")
    torch.set_num_threads(threads)
    return folder


def judged(folder, name, twin):
    ranks = [read(path) for path in files_of(folder / name, OF_RANKS)]
    return judge_parallel(read(folder / f"twin_{twin}"), ranks, [], None)


@pytest.mark.parametrize("plant", [*OF_TENSORS, *OF_DATA])
def test_a_planted_fault_is_named_at_its_module(runs, plant):
    verdict = judged(runs, plant, "tensor" if plant in OF_TENSORS else "data")
    kind, module, phase = OF_TENSORS.get(plant) or OF_DATA[plant]
    module = module.format(list(OF_TENSORS).index(plant) % 2) if plant in OF_TENSORS else module
    place = verdict.first_place
    assert verdict.outcome == "differs"
    assert (place.kind, place.module, place.phase, place.step) == (kind, module, phase, 1), parallel_text(
        verdict, 5
    )


@pytest.mark.parametrize("name", ["tensor", "data", "torch", "ddp", "fsdp"])
def test_equal_runs_are_within_rounding(runs, name):
    twin = "data" if name in ("ddp", "fsdp") else name
    verdict = judged(runs, name, twin)
    assert verdict.outcome == "within rounding", parallel_text(verdict, 5)
    assert not verdict.not_compared and verdict.compared > 20


def test_what_is_wrong_is_said(runs):
    assert "rank 1 never computed it" in parallel_text(judged(runs, "dropped_batch", "data"), 3)
    assert "2 times the twin's" in parallel_text(judged(runs, "summed_gradients", "data"), 3)
    stale = judged(runs, "stale_weight", "tensor").first_place
    assert stale.ranks == (1,) and stale.explanation == "weights differ after the update"


def test_a_rank_without_a_recording_is_no_all_clear(runs):
    ranks = [read(path) for path in files_of(runs / "tensor", OF_RANKS)]
    verdict = judge_parallel(read(runs / "twin_tensor"), ranks[:1], [], None)
    assert verdict.outcome != "within rounding" and "no recording of rank 1" in verdict.problems
