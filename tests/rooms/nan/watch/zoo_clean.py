"""Forty programs without a fault, of every kind that has once made a watch crash, lie or raise an alarm.

Each takes `around`, which surrounds a model by a watch or a guard (None: nothing does), and returns tensors.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

PROGRAMS = {}


def program(name, needs=()):
    """Register it under its name, where torch has what it needs."""

    def register(function):
        if all(_has(path) for path in (needs if isinstance(needs, tuple) else (needs,))):
            PROGRAMS[name] = function
        return function

    return register


def _has(path):
    found = torch
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            return False
    return True


def inside(around, model):
    return contextlib.nullcontext() if around is None else around(model)


def bits(tensor):
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        tensor = (
            tensor.to_dense() if tensor.layout is not torch.strided else tensor.resolve_conj().resolve_neg()
        )
    if tensor.device.type == "meta":
        return tuple(tensor.shape)
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same_bits(one, other):
    assert len(one) == len(other) > 0
    return all(bits(a) == bits(b) for a, b in zip(one, other, strict=True))


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def x(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def grads(model):
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def train(
    model,
    around,
    make=lambda: x(8, 4),
    steps=3,
    optimizer=torch.optim.AdamW,
    loss=lambda out: out.square().mean(),
):
    """Forward, backward and update; all weights, gradients and losses."""
    optimizer, found = optimizer(model.parameters(), lr=1e-2), []
    with inside(around, model):
        for _ in range(steps):
            optimizer.zero_grad()
            value = loss(model(make()))
            value.backward()
            found += [value.detach().clone(), *grads(model)]
            optimizer.step()
    return [*found, *(weight.detach().clone() for weight in model.parameters())]


def infer(model, around, *inputs, times=2, **kwargs):
    with inside(around, model), torch.no_grad():
        found = [model(*inputs, **kwargs) for _ in range(times)]
    return [leaf for one in found for leaf in (one if isinstance(one, (tuple, list)) else [one])]


@program("mlp, trained")
def _mlp(around):
    return train(small(), around)


@program("sgd with momentum")
def _sgd(around):
    return train(small(), around, optimizer=lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9))


@program("inference")
def _inference(around):
    return infer(small(), around, x(2, 4))


@program("inference mode")
def _inference_mode(around):
    model = small()
    with inside(around, model), torch.inference_mode():
        return [model(x(2, 4)) for _ in range(3)]


@program("in place relu")
def _inplace_relu(around):
    return train(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)), around)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        hidden, residual = self.a(x), self.b(x)
        hidden += residual
        return self.act(hidden)


@program("in place residual")
def _inplace_residual(around):
    return train(nn.Sequential(Residual(), Residual()), around)


@program("views of one tensor")
def _views(around):
    class Splits(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return self.out((q @ k.t()).softmax(-1) @ v)

    return train(Splits(), around)


@program("shared weights")
def _shared(around):
    one = nn.Linear(4, 4)
    return train(nn.Sequential(one, nn.Tanh(), one), around)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


@program("tied embeddings")
def _tied(around):
    return train(Tied(), around, make=lambda: torch.arange(8).view(2, 4))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.inner, self.reentrant = nn.Linear(4, 4), small(), reentrant

    def forward(self, x):
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


@program("checkpoint")
def _checkpoint(around):
    return train(Checkpointed(False), around)


@program("reentrant checkpoint")
def _reentrant(around):
    return train(Checkpointed(True), around)


@program("dropout and batch norm")
def _dropout(around):
    return train(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)), around)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        return given * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@program("custom function")
def _custom(around):
    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x):
            return Double.apply(self.inner(x))

    return train(Uses(), around)


@program("masks of minus infinity")
def _masks(around):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.softmax = nn.Linear(4, 4), nn.Softmax(dim=-1)

        def forward(self, x, attention_mask=None):
            return self.softmax(self.q(x) @ x.t() + attention_mask) @ x

    mask = torch.full((4, 4), float("-inf")).triu(1)
    return infer(Attention(), around, x(4, 4), attention_mask=mask, times=3)


@program("encoder layer", ("nn.TransformerEncoderLayer",))
def _encoder(around):
    return train(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), around, make=lambda: x(2, 3, 4)
    )


@program("recurrent")
def _lstm(around):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 4)

        def forward(self, x):
            return self.lstm(x)[0]

    return train(Last(), around, make=lambda: x(3, 2, 4))


@program("gradient accumulation")
def _accumulation(around):
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    with inside(around, model):
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(3):
                model(x(8, 4)).square().mean().backward()
            optimizer.step()
    return [*grads(model), *(one.detach() for one in model.parameters())]


@program("clipped")
def _clipped(around):
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    with inside(around, model):
        for _ in range(3):
            optimizer.zero_grad()
            model(x(8, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    return [*grads(model), *(one.detach() for one in model.parameters())]


@program("autocast")
def _autocast(around):
    model = small()
    with inside(around, model):
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x(8, 4)).float().square().mean()
            out.backward()
    return grads(model)


@program("sparse")
def _sparse(around):
    class Takes(nn.Module):
        def forward(self, given, dense):
            return torch.sparse.mm(given, dense)

    return infer(Takes(), around, x(4, 4).to_sparse(), x(4, 4))


@program("sparse gradients")
def _sparse_grads(around):
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Linear(4, 4))
    with inside(around, model):
        model(torch.tensor([[1, 2, 2]])).sum().backward()
    return [model[0].weight.grad.coalesce().values(), model[1].weight.grad]


@program("csr", ("Tensor.to_sparse_csr",))
def _csr(around):
    class Gives(nn.Module):
        def forward(self, given, dense):
            return given.to_sparse_csr() @ dense

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.gives = Gives()

        def forward(self, given):
            return self.gives(given, given), given.to_sparse_csr().values()

    return infer(Keeps(), around, x(4, 4))


@program("jagged", ("jagged",))
def _jagged(around):
    class Takes(nn.Module):
        def forward(self, nested):
            return nested.sin() * 2

    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return [one.values() for one in infer(Takes(), around, nested)]


@program("meta", ("compile",))
def _meta(around):
    model = small().to("meta")
    return infer(model, around, torch.empty(2, 4, device="meta"))


@program("conjugate and negative views", ("Tensor.resolve_conj",))
def _conj(around):
    class Conjugates(nn.Module):
        def forward(self, given):
            return given.conj(), given.conj().imag

    return infer(Conjugates(), around, torch.complex(x(4), x(4)))


@program("float8", ("float8_e4m3fn", "float8_e5m2"))
def _fp8(around):
    class Casts(nn.Module):
        def forward(self, given):
            return given.to(torch.float8_e4m3fn), given.to(torch.float8_e5m2)

    return [one.view(torch.uint8) for one in infer(Casts(), around, x(8))]


@program("vmap", ("func.vmap",))
def _vmap(around):
    model = small()
    with inside(around, model):
        return [torch.func.vmap(model)(x(6, 4)), torch.func.vmap(torch.func.vmap(model))(x(2, 6, 4))]


@program("torch.func.grad", ("func.grad",))
def _func_grad(around):
    model = small()
    with inside(around, model):
        one = torch.func.grad(lambda v: model(v).sum())(x(4))
        each = torch.func.vmap(torch.func.grad(lambda v: model(v).sum()))(x(6, 4))
    return [one, each]


@program("functional_call", ("func.functional_call",))
def _functional_call(around):
    model = small()
    doubled = {name: value.detach() * 2 for name, value in model.named_parameters()}
    with inside(around, model):
        return [torch.func.functional_call(model, doubled, (x(2, 4),)), model(x(2, 4))]


@program("jit.trace")
def _trace(around):
    model = small()
    with inside(around, model):
        traced = torch.jit.trace(model, x(2, 4))
        return [traced(x(3, 4)), model(x(3, 4))]


@program("scripted")
def _scripted(around):
    model = torch.jit.trace(small(), x(2, 4))
    return infer(model, around, x(3, 4), times=3)


@program("deepcopy, pickle and save inside")
def _copies(around):
    model = small()
    with inside(around, model):
        model(x(2, 4))
        copied, stream = copy.deepcopy(model), io.BytesIO()
        torch.save(model.state_dict(), stream)
        pickled = pickle.loads(pickle.dumps(model))
        with torch.no_grad():
            copied[0].weight.zero_()
        return [copied(x(2, 4)), model(x(2, 4)), pickled(x(2, 4))]


@program("four threads")
def _threads(around):
    model, found = small(), [None] * 4

    def work(at):
        with torch.no_grad():
            found[at] = torch.stack([model(x(2, 4) * (at + 1)) for _ in range(20)])

    with inside(around, model):
        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return found


@program("an exception that is caught")
def _caught(around):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, given):
            with contextlib.suppress(RuntimeError):
                self.inner(given[..., :3])
            return self.inner(given)

    return train(Fails(), around)


@program("double backward")
def _double(around):
    model, given = small(), x(8, 4).requires_grad_()
    with inside(around, model):
        (grad,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
        grad.square().sum().backward()
    return [grad.detach(), *grads(model)]


@program("hooks of its own")
def _hooks(around):
    model = small()
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    (model.register_full_backward_hook if hasattr(model, "register_full_backward_hook") else print)(
        lambda module, into, out: None
    )
    return train(model, around)


@program("numpy inside")
def _numpy(around):
    class Passes(nn.Module):
        def forward(self, given, array):
            return given + torch.from_numpy(array)

    return infer(Passes(), around, x(4), array=x(4).numpy())


@program("an objects tensor")
def _object(around):
    class Box:
        def __init__(self, value):
            self.value = value

    class Boxes(nn.Module):
        def forward(self, given):
            return Box(given * 2)

    model = Boxes()
    with inside(around, model):
        return [model(x(4)).value for _ in range(3)]


@program("compiled elsewhere", ("compile",))
def _compiled_elsewhere(around):
    model = small()
    compiled = torch.compile(model, backend="eager")
    with inside(around, model), torch.no_grad():
        return [compiled(x(2, 4)) for _ in range(2)]


@program("compiled before", ("compile",))
def _compiled_before(around):
    return train(torch.compile(small(), backend="eager"), around)


@program("module.compile", ("nn.Module.compile",))
def _module_compile(around):
    model = nn.Sequential(small(), nn.Linear(4, 4))
    model[0].compile(backend="eager")
    return train(model, around)


@program("compile inside the block", ("nn.Module.compile",))
def _compile_inside(around):
    model = small()
    with inside(around, model):
        first = model(x(2, 4))
        model.compile(backend="eager")
        return [first, model(x(2, 4)), model(x(2, 4))]


@program("fake tensors", ("_subclasses.fake_tensor.FakeTensorMode",))
def _fake(around):
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = small()
    with inside(around, model):
        with FakeTensorMode(allow_non_fake_inputs=True), contextlib.suppress(Exception):
            model(torch.empty(2, 4))
        return [model(x(2, 4))]


@program("a dispatch mode of its own", ("_C._len_torch_dispatch_stack",))
def _mode(around):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    model = small()
    with inside(around, model), Counts() as counts:
        out = model(x(2, 4))
    return [out, torch.tensor(counts.seen)]


@program("a graph module", ("fx",))
def _fx(around):
    from torch import fx

    model = fx.symbolic_trace(small())
    return train(model, around)


@program("functional loss on two calls")
def _two_calls(around):
    model = small()
    return train(model, around, loss=lambda out: F.mse_loss(model(out), out))
