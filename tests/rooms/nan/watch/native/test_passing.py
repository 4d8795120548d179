"""The short cuts in C give the answers of the Python beside them, are seen by nobody, and hold nothing."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import threading
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch.count import plain_counts  # noqa: E402
from lab.rooms.nan.watch.native import passing  # noqa: E402
from lab.rooms.nan.watch.native.passing import Passing, looks  # noqa: E402

if looks() is None:
    pytest.skip("no short cuts here: no C compiler, or torch 1.12", allow_module_level=True)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["exchange", "attributes"])
def look(request, monkeypatch):
    """A guard's memory; tensors are described by DLPack's table, or as before torch 2.10."""
    if request.param == "attributes":
        monkeypatch.setattr(passing, "_exchange", lambda: None)
        looks.cache_clear()
    yield Passing(looks())
    monkeypatch.undo()
    looks.cache_clear()
    looks()


LAYOUTS = {
    "dense": lambda x: x.clone(),
    "scalar": lambda x: x[0, 0].clone(),
    "transposed": lambda x: x.t(),
    "with gaps": lambda x: x[:, ::3],
    "spread": lambda x: x[:1].expand(7, 12),
    "negative": lambda x: torch._neg_view(x.neg()),
    "a weight": lambda x: nn.Parameter(x.clone()),
    "with a history": lambda x: x.clone().requires_grad_() * 1,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", passing.DTYPES, ids=passing.NAMES)
def test_it_finds_what_the_predicates_find_and_the_largest_magnitude(look, dtype, layout):
    for bad in (None, NAN, INF, -INF):
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
        if bad is not None:
            x[0, 0] = bad
        tensor = LAYOUTS[layout](x)
        expected = plain_counts([tensor.detach().resolve_neg()])[0]
        assert (look.clean("loss", [tensor]) >= 0) == (bad is None) == (not expected[:3].any())
        peaks = [("loss", str(dtype)[6:], expected[4])] if bad is None else []
        assert look.take_peaks() == peaks
    assert look.take_seen() == [("loss", 1)]


def test_low_memory_is_read_unless_it_was_freed(look):
    """The heaps of Debian's Pythons lie low, where the offsets of freed tensors are, too."""
    offset = 1 << 28  # numbers: a freed tensor seems to lie at 1 GiB
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
    libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 4, ctypes.c_long]
    at = libc.mmap(1 << 33, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 2**64 - 1, 0)
    low = torch.frombuffer((ctypes.c_float * 64).from_address(at), dtype=torch.float32)
    if low.data_ptr() >> 40:
        pytest.skip("the kernel gives no low memory here")
    low.copy_(torch.arange(64))
    assert look.clean("loss", [low]) >= 0 and look.take_peaks() == [("loss", "float32", 63.0)]
    assert look.clean("loss", [low[2:].view(2, 31).t()]) >= 0
    low[5] = NAN
    assert look.clean("loss", [low]) == look.clean("loss", [low[5]]) == -1
    del low
    freed = torch.empty(offset + 64)[offset:]
    with_gaps = freed[::2]
    freed.untyped_storage().resize_(0)
    assert freed.data_ptr() == 4 * offset
    assert look.clean("loss", [freed]) == look.clean("loss", [with_gaps]) == -1
    libc.munmap(at, 4096)


def test_what_is_no_dense_tensor_of_this_process_is_not_certain(look):
    class Own(torch.Tensor):
        pass

    x = torch.randn(4, 4)
    freed = torch.randn(64)
    freed.untyped_storage().resize_(0)
    with torch.inference_mode():
        inference = torch.randn(4)
    odd = [
        x.to_sparse(),
        x.to_sparse_csr(),
        x.as_subclass(Own),
        torch.empty(4, device="meta"),
        torch.complex(x, x),
        torch.arange(4),
        torch.nested.nested_tensor([x, x[:2]]),
        x.to(torch.float8_e5m2),
        freed,
        inference,
        "no tensor",
    ]
    assert [look.clean("forward", [x, one]) for one in odd] == [-1] * len(odd)
    assert look.clean("forward", [x, torch.empty(0)]) == 0
    x.add_(1)
    assert look.clean("forward", [x, x]) == 2  # written to


def test_modes_of_the_program_see_no_look(look):
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    slow = []
    hook = look.entered(slow.append)
    for mode in (Functions(), Operators()):
        with mode:
            look.clean("forward", [torch.randn(4)] and [GAPS, DENSE])
            hook(GAPS)
    assert len(slow) == 2 and not [one for one in seen if "randn" not in str(one)]
    hook(GAPS)
    assert len(slow) == 2


DENSE, GAPS = torch.ones(4, 4), torch.ones(8, 4)[::2]


def test_a_hook_calls_the_long_way_for_what_is_bad_and_after_the_end(look):
    slow = []
    hook = look.entered(slow.append)
    hook(DENSE)
    assert not slow
    hook(DENSE * NAN)
    look.end()
    hook(DENSE)
    hook(None)
    assert len(slow) == 2


def test_an_error_of_the_long_way_passes_on(look):
    def stops(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look.entered(stops)(DENSE * NAN)


def test_what_passed_is_told_by_thread(look):
    hook = look.entered(lambda _: None)
    threads = [threading.Thread(target=hook, args=(DENSE,)) for _ in range(3)]
    for one in threads:
        one.start()
        one.join()
    hook(DENSE)
    hook(DENSE)
    assert look.passed(True) == 5 and look.passed(False) >= 2


def test_the_identity_of_a_gradient_is_more_than_its_place(look):
    weight, counted = nn.Parameter(torch.zeros(4)), {}
    hook = look.accumulated(lambda _: None, counted)

    def gave(grad):
        weight.grad = grad
        hook(weight)

    gave(torch.ones(4))
    assert look.looks.as_counted([weight], counted)
    weight.grad.mul_(1)
    assert not look.looks.as_counted([weight], counted)
    gave(torch.ones(4))
    weight.grad.data = torch.full((4,), NAN)  # neither another object nor another version
    assert not look.looks.as_counted([weight], counted)
    for _ in range(50):  # another object, as a rule at the same place
        gave(torch.ones(4))
        weight.grad = None
        weight.grad = torch.ones(4)
        assert not look.looks.as_counted([weight], counted)
    weight.grad = None
    assert look.looks.as_counted([weight], counted)  # the update takes nothing


def test_below_zero_is_found_wherever_it_stands():
    none = looks().none_below_zero
    for dtype in passing.DTYPES:
        for size in (1, 3, 8, 33, 100):
            for at in range(size):
                x = torch.rand(size).to(dtype)
                x[at] = -0.0
                assert none([x]) == 1
                x[at] = -1e-7
                assert none([torch.ones(2), x]) == 0


@pytest.mark.long
def test_nothing_is_held_and_nothing_leaks(look):
    weight, tensors = nn.Parameter(torch.ones(4)), [torch.ones(3, 3).t() for _ in range(3)]
    weight.grad = torch.ones(4)
    counted = {}
    hook, border = look.accumulated(print, counted), look.entered(print)
    model, entered, hidden = nn.LayerNorm(4), [], [weight * 2]
    model.weight = weight
    optimizer = torch.optim.Adam([weight])
    optimizer.state[weight] = {"step": torch.tensor(1.0), "exp_avg_sq": torch.ones(4), "own": None}
    begins = look.began(print, border, entered)
    objects = (weight, weight.grad, *tensors, counted, tensors, None, *hidden, model, optimizer, border)

    def use():
        hook(weight)
        border(tensors[0])
        look.clean("forward", tensors)
        look.looks.as_counted([weight], counted)
        versions = {}
        assert look.looks.note_versions([weight], versions) and look.looks.unwritten([weight], versions)
        look.looks.none_below_zero(tensors)
        assert look.looks.usual({id(weight): ""}, versions, counted, optimizer) == [weight]
        assert look.whole("forward")(hidden, [(0, "border", None)]) == [(hidden[0], "border")]
        assert look.looks.calm((weight, None, True), {"x": X})
        assert look.sound({"exp_avg_sq": True}, [optimizer], [("", model)])
        begins((tensors[0],))
        entered.clear()

    def grown():
        """How much each object's references, and all memory, grew by over a thousand uses."""
        gc.collect()
        before = [*map(sys.getrefcount, objects), sys.getallocatedblocks()]
        for _ in range(1000):
            use()
        gc.collect()
        now = [*map(sys.getrefcount, objects), sys.getallocatedblocks()]
        return [abs(one - was) for one, was in zip(now, before, strict=True)]

    use()
    # What others let go of meanwhile changes the counts of None and of memory once; a leak grows each time.
    least = [min(times) for times in zip(*(grown() for _ in range(3)), strict=True)]
    assert max(least) < 250, least


def test_an_update_is_usual_only_if_nothing_came_in_between(look):
    weight, other = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    optimizer, counted, versions, names = torch.optim.SGD([weight], lr=1.0), {}, {}, {id(weight): "weight"}
    hook = look.accumulated(lambda _: None, counted)

    def is_usual():
        return look.looks.usual(names, versions, counted, optimizer) is not None

    def begins():
        weight.grad = torch.ones(4)
        hook(weight)
        assert look.looks.note_versions([weight, other], versions) and is_usual()

    begins()
    for change in (
        lambda: weight.add_(0),
        lambda: weight.grad.mul_(2),
        lambda: setattr(weight, "grad", torch.ones(4)),
        lambda: names.clear(),
        lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4))]}),
        lambda: setattr(optimizer, "param_groups", None),
    ):
        with torch.no_grad():
            change()
        assert not is_usual()
        if isinstance(optimizer.param_groups, list):
            names[id(weight)] = "weight"
            del optimizer.param_groups[1:]
            begins()


def test_what_is_kept_is_sound_only_if_all_of_it_was_read_and_is_finite(look):
    model = nn.BatchNorm1d(4)  # with a buffer of whole numbers
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    state, squares = optimizer.state[model.bias], {"exp_avg_sq": True}

    def is_sound():
        return look.sound(squares, [optimizer], [*model.named_modules()])

    whole = looks() is not None and passing._exchange() is not None
    assert is_sound() == whole, "only DLPack's table tells whole numbers from others"
    del model.num_batches_tracked
    assert is_sound() and dict(look.take_seen())["weights_after"] >= 4
    for spoilt, at in (
        (model.weight, 0),
        (model.running_mean, 1),
        (state["exp_avg"], 2),
        (state["step"], ()),
    ):
        for bad in (NAN, INF, -INF):
            before = spoilt.detach().clone()
            spoilt.data[at] = bad
            assert not is_sound()
            spoilt.data.copy_(before)
    assert is_sound()
    state["exp_avg"][0] = -1.0
    assert is_sound()
    state["exp_avg_sq"][0] = -1.0
    assert not is_sound()
    state["exp_avg_sq"][0] = 1.0
    for odd in (torch.ones(4).to_sparse(), torch.complex(DENSE, DENSE), torch.ones(4).as_subclass(Strange)):
        state["more"] = odd
        assert not is_sound()
    for read_elsewhere in ([1.0], {"inner": DENSE}, (DENSE,), {1.0}, NAN, object()):
        state["more"] = read_elsewhere
        assert not is_sound()
    for number in (1.0, 1 << 2000, True, None):
        state["more"] = number
        assert is_sound()
    optimizer.state["own"] = [1.0]
    assert not is_sound()


class Strange(torch.Tensor):
    pass


def test_a_forward_is_calm_only_while_nothing_special_goes_on():
    calm, x, seen = looks().calm, torch.ones(2, 2), []
    written = torch.ones(2).add_(1)
    assert calm((x,), {}) and calm((), {"x": x, "flag": True, "mask": None})
    assert not calm((written,), {}) and not calm((), {"x": written})
    assert not calm(((x,),), {}) and not calm((1.5,), {})
    with torch.inference_mode():
        assert not calm((x,), {})
    with TorchFunctionMode():
        seen.append(calm((x,), {}))
    with TorchDispatchMode():
        seen.append(calm((x,), {}))
    torch.func.grad(lambda one: seen.append(calm((x,), {})) or one.sum())(x)
    torch.jit.trace(lambda one: seen.append(calm((x,), {})) or one * 1, (x,), check_trace=False)
    y = x.clone().requires_grad_()
    y.register_hook(lambda _: seen.append(calm((x,), {})))
    y.sum().backward()
    assert seen == [0] * 5 and calm((x,), {})


def test_a_calm_forward_may_have_a_cache_and_a_gpu_that_captures_nothing(monkeypatch):
    captured, x = [], torch.ones(2, 2)
    asks = partial(looks().calm_anywhere, lambda: bool(captured), {"past_key_values": None})
    assert asks((x,), {"past_key_values": object()}) and asks((x,), {"past_key_values": [x]})
    assert not asks((x,), {"past": object()}) and not asks((object(),), {})
    with torch.inference_mode():
        made = torch.ones(2)
    assert not asks((x,), {"past_key_values": made})
    assert asks((x,), {}) and looks().calm((x,), {})
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    assert asks((x,), {}) and not looks().calm((x,), {})
    captured.append(True)
    assert not asks((x,), {})
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    assert asks((x,), {})
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    assert not partial(looks().calm_anywhere, lambda: 1 / 0, {})((x,), {})


class Shapes(nn.Module):
    """Gives out what the test says."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.gives = lambda hidden: hidden

    def forward(self, *args, **kwargs):
        return self.gives(self.inner(args[0]))


X = torch.ones(2, 2)
SHARED = torch.ones(2)
# What is called and given out at first, and then something that differs from it in one way only.
DIFFERS = {
    "another length": (lambda h: (h, SHARED), lambda h: (h, SHARED, X * NAN)),
    "another name": (lambda h: {"a": h}, lambda h: {"b": h, "c": X * NAN}),
    "another type": (lambda h: [h, 1.0], lambda h: [h, X * NAN]),
    "a bad number of Python": (lambda h: [h, 1.0], lambda h: [h, NAN]),
    "one tensor for two": (lambda h: [h, h.clone()], lambda h: [h * NAN] * 2),
    "two tensors for one": (lambda h: [h, h], lambda h: [h, h * NAN]),
    "whole numbers no longer": (lambda h: [h, torch.arange(2)], lambda h: [h, X * NAN]),
    "a row no longer empty": (lambda h: (h, []), lambda h: (h, [X * NAN])),
    "a mapping no longer empty": (lambda h: (h, {}), lambda h: (h, {"a": X * NAN})),
    "one row for two": (lambda h: ((h,), (SHARED,)), lambda h: ((h,), (X * NAN,))),
}


@pytest.mark.parametrize("plain", [False, True], ids=["in C", "in Python"])
@pytest.mark.parametrize("way", DIFFERS)
def test_a_forward_that_differs_from_those_before_is_read_anew(way, plain, monkeypatch):
    if plain:
        monkeypatch.setattr("lab.rooms.nan.watch.template.reading", lambda: None)
    model, (before, then) = Shapes(), DIFFERS[way]
    for around in (nan.watch, nan.guard):
        with torch.no_grad(), around(model) as found:
            model.gives = before
            for _ in range(4):
                model(X, mask=None, also=(X, [1]))
            model.gives = then
            model(X, mask=None, also=(X, [1]))
            model.gives = before
            model(X, mask=None, also=(X, [1]))
        assert found.status == "bad", (way, around, found.not_seen())


@pytest.mark.parametrize("plain", [False, True], ids=["in C", "in Python"])
def test_an_empty_container_that_fills_is_read_anew(plain, monkeypatch):
    if plain:
        monkeypatch.setattr("lab.rooms.nan.watch.template.reading", lambda: None)
    model = Shapes()
    with torch.no_grad(), nan.watch(model) as w:
        for number in range(5):
            model(X, also=([], {}) if number < 3 else ([X * NAN], {}))
    assert w.status == "bad"
