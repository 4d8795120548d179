"""The short way around a call, in C, sees what the way through Python sees; a program runs as without it."""

from __future__ import annotations

import contextlib
import copy
import io
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from lab import nan  # noqa: E402
from lab.rooms.nan.watch import seam  # noqa: E402
from lab.rooms.nan.watch.count import Counted, plain_counts  # noqa: E402
from lab.rooms.nan.watch.native import layout  # noqa: E402
from lab.rooms.nan.watch.native.calls import reading, unpacked  # noqa: E402
from lab.rooms.nan.watch.recorder import Recorder  # noqa: E402

if reading() is None:
    pytest.skip("no C compiler here, or another Python", allow_module_level=True)
NAN, ERRORS = float("nan"), (ArithmeticError, TypeError)


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def x():
    return torch.arange(6.0).reshape(2, 3)


class Own(nn.Module):
    """`forward` runs a function of (module, arguments); `inner` is its only child."""

    def __init__(self, function, inner=None):
        super().__init__()
        self.function, self.inner = function, inner if inner is not None else linear()

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def names_of_frames():
    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


class Bare(nn.Module):
    def forward(self, value=None, *more, scale=1):
        return None if value is None else value * scale


class Fails(nn.Module):
    def forward(self, value):
        raise ArithmeticError("of the model")


class ByCall(nn.Linear):
    def __call__(self, value):
        return super().__call__(value + 1)


class ByImpl(nn.Linear):
    def _call_impl(self, value):
        return super()._call_impl(value - 1)


class Static(nn.Module):
    @staticmethod
    def forward(value):
        return value * 2


class Looked(nn.Module):
    def __getattribute__(self, name):
        return super().__getattribute__(name)

    def forward(self, value):
        return value + 3


class Hiding(nn.Module):
    """A class may say by itself what its hooks are."""

    @property
    def _forward_hooks(self):
        return OrderedDict({0: lambda module, args, output: output + 1})

    @_forward_hooks.setter
    def _forward_hooks(self, value):
        pass

    def forward(self, value):
        return value


def catches(module, value):
    try:
        module.inner(value)
    except ArithmeticError:
        return value + 1


def again(module, value, depth=0):
    return module.inner(value) if depth == 2 else module(value, depth=depth + 1)


def in_threads(module, value):
    found = {}

    def work(n):
        found[n] = module.inner(value + n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for one in threads:
        one.start()
        one.join()
    return found[0] + found[1] + found[2]


def hooked_meanwhile(module, value):
    handle = module.inner.register_forward_hook(lambda _, args, output: output * 10)
    out = module.inner(value)
    handle.remove()
    return out + module.inner(value)


def hooked_everywhere(module, value):
    handle = nn.modules.module.register_module_forward_hook(lambda _, args, output: output + 10)
    out = module.inner(value)
    handle.remove()
    return out + module.inner(value)


def own_forward_meanwhile(module, value):
    module.inner.forward = lambda given: given * 7
    out = module.inner(value)
    del module.inner.forward
    return out + module.inner(value)


def own_impl_meanwhile(module, value):
    module.inner.__dict__["_call_impl"] = lambda given: given * 5
    out = module.inner(value)
    del module.inner.__dict__["_call_impl"]
    return out + module.inner(value)


def class_changed_meanwhile(module, value):
    before = nn.Linear.forward
    nn.Linear.forward = lambda self, given: given * 11
    try:
        return module.inner(value)
    finally:
        nn.Linear.forward = before


def impl_of_all_changed_meanwhile(module, value):
    before = nn.Module._call_impl
    nn.Module._call_impl = lambda self, *args, **kwargs: before(self, *args, **kwargs) * 2
    try:
        return module.inner(value)
    finally:
        nn.Module._call_impl = before


def traces(module, value):
    if torch._C._get_tracing_state() is not None:
        return module.inner(value)
    return torch.jit.trace(module.inner, value, check_trace=False)(value) + module.inner(value)


def maps(module, value):
    return torch.func.vmap(lambda row: module.inner(row))(value)


def compiles(module, value):
    return torch.compile(lambda given: module.inner(given) * 2, backend="eager")(value)


def compiled_inside(module, value):
    module.inner.compile(backend="eager")
    return module.inner(value)


def copies(module, value):
    return copy.deepcopy(module.inner)(value) + module.inner(value)


def writes(module, value):
    return module.inner(value).mul_(2)


def gives_a_generator(module, value):
    out = module.inner(value)
    return (out for _ in range(2))


def replaces(module, value):
    module.inner = linear() if module.training else nn.Identity()
    return module.inner(value)


def with_profile(module, value):
    sys.setprofile(lambda *_: None)
    try:
        return module.inner(value)
    finally:
        sys.setprofile(None)


def hidden_child(leaf):
    """A leaf that calls a module which is no child of it, but watched."""
    parent = nn.Sequential(OrderedDict(leaf=leaf, other=linear()))
    leaf.__dict__["other"] = parent.other
    return parent


class CallsAnother(nn.Module):
    def forward(self, value):
        return self.other(value)


PROGRAMS = {
    "usual": lambda: nn.Sequential(linear(), nn.ReLU(), nn.Sequential(linear(), nn.Dropout(0.0))),
    "by keyword": lambda: Own(lambda m, value: m.inner(input=value)),
    "keywords too": lambda: Own(lambda m, value: m.inner(value, scale=3), Bare()),
    "no arguments": lambda: Own(lambda m, value: (m.inner(), value)[1], Bare()),
    "several arguments": lambda: Own(lambda m, value: m.inner(value, 1, value, scale=2), Bare()),
    "an exception inside": lambda: Own(catches, Fails()),
    "an exception": lambda: Own(lambda m, value: m.inner(value), Fails()),
    "an exception deeper": lambda: Own(catches, Own(lambda m, value: m.inner(value), Fails())),
    "wrong arguments": lambda: Own(lambda m, value: m.inner(value, value, value)),
    "inside itself": lambda: Own(again),
    "twice": lambda: Own(lambda m, value: m.inner(m.inner(value))),
    "threads": lambda: Own(in_threads),
    "a hook": lambda: Own(hooked_meanwhile),
    "a hook on all": lambda: Own(hooked_everywhere),
    "a forward of its own": lambda: Own(own_forward_meanwhile),
    "a call of its own": lambda: Own(own_impl_meanwhile),
    "another class' forward": lambda: Own(class_changed_meanwhile),
    "another call of all": lambda: Own(impl_of_all_changed_meanwhile),
    "__call__ of a subclass": lambda: Own(lambda m, value: m.inner(value), ByCall(3, 3)),
    "_call_impl of a subclass": lambda: Own(lambda m, value: m.inner(value), ByImpl(3, 3)),
    "static": lambda: Own(lambda m, value: m.inner(value), Static()),
    "attributes asked for": lambda: Own(lambda m, value: m.inner(value), Looked()),
    "hooks of a class": lambda: Own(lambda m, value: m.inner(value), Hiding()),
    "lazy": lambda: Own(lambda m, value: m.inner(value), nn.LazyLinear(3)),
    "scripted": lambda: Own(lambda m, value: m.inner(value), torch.jit.script(linear())),
    "traced inside": lambda: Own(traces),
    "vmap": lambda: Own(maps),
    "compiled around": lambda: Own(compiles),
    "compiled": lambda: Own(compiled_inside),
    "copied": lambda: Own(copies),
    "in place": lambda: Own(writes),
    "a generator": lambda: Own(gives_a_generator),
    "replaced": lambda: Own(replaces),
    "profiled": lambda: Own(with_profile),
    "a child that is hidden": lambda: hidden_child(CallsAnother()),
    "containers": lambda: Own(
        lambda m, value: m.inner([value], k={"v": [value]})[0].pop(), Own(lambda m, a, k: (a, k))
    ),
    "checkpoint": lambda: Own(lambda m, value: checkpoint(m.inner, value, use_reentrant=False)),
}


def is_wrapped(value):
    """By a transform of torch.func, which old torch has not."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and functorch.is_functorch_wrapped_tensor(value)


def shown(value, met):
    """A value of an event: what it is, and which earlier one it is."""
    if isinstance(value, torch.Tensor):
        traced = type(value) is not torch.Tensor or is_wrapped(value)
        numbers = [] if traced else value.detach().flatten().tolist()
        return tuple(value.shape), met.setdefault(id(value), len(met)), numbers
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [shown(one, met) for one in value]
    if isinstance(value, dict):
        return {name: shown(one, met) for name, one in value.items()}
    return type(value).__name__


def seen_by(monkeypatch, make, in_c, **options):
    """Events, outputs, and all that a watch tells of some forwards."""
    events, real = [], Recorder._finish

    def spied(self, lane, at, output, returned):
        met = {}
        events.append((lane.mode, returned, [shown(one, met) for one in lane.events]))
        real(self, lane, at, output, returned)

    monkeypatch.setattr(Recorder, "_finish", spied)
    if not in_c:
        monkeypatch.setattr(seam, "_calls", lambda: None)
    torch.manual_seed(1)
    model, outputs = make(), []
    with nan.watch(model, counter="plain", **options) as w:
        assert nn.Module.__call__ is (seam._patched if in_c else seam._in_python)
        for step in range(6):
            try:
                given = x() * (NAN if step == 4 else 1)
                outputs.append(repr(shown(model(given.requires_grad_()), {})))
            except ERRORS as error:
                outputs.append(f"{type(error).__name__}: {error}")
    assert not seam.is_open()
    monkeypatch.undo()
    told = [w.status, w.not_seen(), w.notes, w.never_called(), repr(w.first), repr(w.steps), repr(w.totals())]
    return repr(events), outputs, told


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_ways_see_the_same_calls(monkeypatch, name):
    if name in ("compiled", "compiled around", "copied"):
        torch._dynamo.reset()
    in_c = seen_by(monkeypatch, PROGRAMS[name], True)
    assert in_c == seen_by(monkeypatch, PROGRAMS[name], False)
    assert len(in_c[1]) == 6


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_gives_what_it_gives_unwatched(monkeypatch, name):
    _, outputs, _ = seen_by(monkeypatch, PROGRAMS[name], True)
    torch.manual_seed(1)
    model, expected = PROGRAMS[name](), []
    for step in range(6):
        try:
            given = x() * (NAN if step == 4 else 1)
            expected.append(repr(shown(model(given.requires_grad_()), {})))
        except ERRORS as error:
            expected.append(f"{type(error).__name__}: {error}")
    assert outputs == expected


@pytest.mark.long
def test_both_ways_weigh_what_they_hold(monkeypatch):
    def make():
        return nn.Sequential(*(nn.Sequential(linear(), nn.ReLU()) for _ in range(80)))

    few = {"budget_bytes": 1000}
    assert seen_by(monkeypatch, make, True, **few) == seen_by(monkeypatch, make, False, **few)


@pytest.mark.parametrize("in_c", [True, False])
def test_a_watch_may_end_inside_a_forward(monkeypatch, in_c):
    if not in_c:
        monkeypatch.setattr(seam, "_calls", lambda: None)

    def work(module, value):
        out = module.inner(value)
        if module.ends:
            watch.__exit__(None, None, None)
        return out + module.inner(value)

    model = Own(work)
    model.ends = False
    watch = nan.watch(model).__enter__()
    model(x()), model(x())
    model.ends = True
    model(x())
    assert not seam.is_open() and watch.status == "clean"
    model.ends = False
    assert model(x()).shape == (2, 3)


def straight_calls(model, value):
    """Whether torch's own frames stand around the outermost forward alone."""
    frames = []
    with nan.watch(model):
        for _ in range(3):
            model(value)
        model.spy = frames.append
        model(value)
    return frames[0][: frames[0].index("_outermost")].count("_call_impl") == 1


class Spied(nn.Module):
    spy = None

    def __init__(self):
        super().__init__()
        self.inner = Own(lambda m, value: (self.spy and self.spy(names_of_frames()), value)[1])

    def forward(self, value):
        return self.inner(value)


def test_forward_is_called_straight_only_where_torch_would_do_nothing_else():
    assert straight_calls(Spied(), x())
    hooked = Spied()
    hooked.inner.register_forward_pre_hook(lambda *_: None)
    assert not straight_calls(hooked, x())
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    try:
        assert not straight_calls(Spied(), x())
    finally:
        handle.remove()
    sys.setprofile(lambda *_: None)
    try:
        assert not straight_calls(Spied(), x())
    finally:
        sys.setprofile(None)


def test_what_a_class_gets_while_it_is_watched_is_asked_too():
    """A compiled call, and another way to find `forward`: torch would take both."""

    def other(module, name):
        return triple if name == "forward" else object.__getattribute__(module, name)

    def triple(value):
        return 3 * value

    for name, own in (("_compiled_call_impl", lambda _, value: 3 * value), ("__getattribute__", other)):
        kind = type("Late", (nn.Identity,), {})
        model = Own(lambda m, value: m.inner(value), kind())
        with nan.watch(model):
            for _ in range(3):
                assert torch.equal(model(x()), x())
            setattr(kind, name, own)
            assert torch.equal(model(x()), 3 * x()), name


def test_a_patch_of_the_program_below_is_called(monkeypatch):
    """It was there before the watch: then nothing goes straight."""
    real, calls = nn.Module.__call__, []

    def own(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", own)
    model = Own(lambda m, value: m.inner(value))
    with nan.watch(model) as w:
        for _ in range(4):
            model(x())
    assert calls == ["Own", "Linear"] * 4 and w.forwards == 4 and nn.Module.__call__ is own


def test_many_lanes_at_once_see_their_own_forwards():
    """More than calls.c keeps: the others go the way through Python."""
    count = 40
    barrier = threading.Barrier(count)

    def work(module, value):
        if len(module.waits) > 3:
            barrier.wait(600)
        return module.inner(value)

    model = Own(work)
    model.waits = []
    with nan.watch(model) as w:
        for _ in range(4):
            model(x())
            model.waits.append(1)
        threads = [threading.Thread(target=model, args=(x(),)) for _ in range(count)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert w.forwards == 4 + count and w.status == "clean"
    assert {total.calls for total in w.totals()} == {4 + count}


def test_nothing_is_held_after_a_forward_whether_it_failed_or_not():
    for inner in (Fails(), linear()):
        model, held = Own(lambda m, value: m.inner(value), inner), []
        with nan.watch(model, counter=on_gpu, on_bad="raise") as w:
            for _ in range(6):
                value = x()
                held.append(weakref.ref(value))
                with contextlib.suppress(ArithmeticError):
                    model(value)
                del value
            assert w.waits and not any(one() is not None for one in held[2:])


def test_pickled_inside_a_model_carries_nothing():
    model, file = nn.Sequential(linear(), nn.ReLU()), io.BytesIO()
    with nan.watch(model):
        for _ in range(3):
            model(x())
        torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x()), model(x()))


DENSE = {
    "dense": lambda: x(),
    "empty": lambda: torch.zeros(0, 3),
    "scalar": lambda: torch.ones(()),
    "a weight": lambda: nn.Parameter(x()),
    "whole numbers": lambda: torch.ones(3, dtype=torch.int64),
    "one wide": lambda: torch.ones(4, 1).t(),
}
NOT_DENSE = {
    "gaps": lambda: x()[:, ::2],
    "turned": lambda: x().t(),
    "the other sign": lambda: torch._neg_view(x()),
    "sparse": lambda: x().to_sparse(),
    "meta": lambda: torch.empty(3, device="meta"),
    "a subclass": lambda: x().as_subclass(type("Mine", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_tensors_are_described_as_torch_does(name):
    tensor = DENSE[name]()
    found = reading().described([tensor, x()])
    if found is None:
        pytest.skip("torch before 2.10")
    layout, addresses = (memoryview(one).cast("q").tolist() for one in found)
    dims = tensor.dim()
    assert layout[1 : 2 + dims] == [dims, *tensor.shape] and layout[3 + dims :] == [2, *x().shape]
    assert addresses[0] == tensor.data_ptr()
    assert reading().described([tensor.reshape(1, -1)])[0] != reading().described([tensor.reshape(-1, 1)])[
        0
    ] or (tensor.numel() == 1)
    assert reading().described([tensor])[0] != reading().described([tensor.double().half()])[0]
    shapes = reading().shapes([tensor, x()])
    if tensor.is_floating_point():
        assert unpacked(shapes) == [(tensor.shape, tensor.dtype), (x().shape, torch.float32)]
    else:
        assert shapes is None


@pytest.mark.parametrize("name", NOT_DENSE)
def test_what_needs_a_copy_or_another_way_is_not_described(name):
    assert reading().described([x(), NOT_DENSE[name]()]) is None


needs_places = pytest.mark.skipif(
    reading() is None or layout.body_at() == layout.NO_BODY or reading().described([torch.ones(4)]) is None,
    reason="not known how this torch keeps tensors",
)


@needs_places
@pytest.mark.parametrize("name", DENSE)
def test_equal_tensors_are_found_anew_without_a_question(name):
    first, again = [DENSE[name](), x()], [x(), DENSE[name]()][::-1]
    noted = reading().noted(first)
    if name == "empty":  # it lies nowhere
        assert reading().moved(again, noted, 1) is None
        return
    addresses = reading().moved(again, noted, 1)
    assert memoryview(addresses).cast("q").tolist() == [one.data_ptr() for one in again]
    assert reading().moved(again, noted, min(one.data_ptr() for one in again) + 1) is None
    assert reading().moved(again[:1], noted, 1) is None and reading().moved([*again, x()], noted, 1) is None


def part_of(base, begin):
    return base[begin : begin + 8].view(2, 4)


@needs_places
def test_a_part_of_another_tensor_is_found_where_it_begins():
    for dtype in (torch.float16, torch.float32, torch.float64, torch.complex64):
        base, aligned = torch.zeros(400, dtype=dtype), 16 // torch.zeros(1, dtype=dtype).element_size()
        noted = reading().noted([part_of(base, 0)])
        for begin in range(0, 300, max(1, aligned)):
            (address,) = memoryview(reading().moved([part_of(base, begin)], noted, 1)).cast("q")
            assert address == part_of(base, begin).data_ptr() == base.data_ptr() + begin * base.element_size()
        if aligned > 1:
            assert reading().moved([part_of(base, 1)], noted, 1) is None
    given = torch.frombuffer(bytearray(4096), dtype=torch.float32)
    begin = -given.data_ptr() % 16 // 4
    noted = reading().noted([part_of(torch.zeros(8), 0)])
    (address,) = memoryview(reading().moved([part_of(given, begin)], noted, 1)).cast("q")
    assert address == given.data_ptr() + 4 * begin


OTHERS = {
    **NOT_DENSE,
    "its shape": lambda: x().view(-1),
    "its sizes": lambda: torch.ones(1 + len(x()), *x().shape[1:]),
    "its type": lambda: x().double(),
    "its type of that size": lambda: x().view(torch.int32),
    "freed": lambda: freed(x()),
}


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


@needs_places
@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_not_taken_for_what_was_noted(name):
    noted = reading().noted([x(), x()])
    assert reading().moved([x(), x()], noted, 1) is not None
    assert reading().moved([x(), OTHERS[name]()], noted, 1) is None
    assert name in ("its shape", "its sizes", "its type", "its type of that size", "freed") or (
        reading().noted([x(), OTHERS[name]()]) is None
    )


@needs_places
def test_more_dimensions_than_stand_in_the_tensor_itself_are_not_noted():
    assert reading().noted([torch.ones(1, 2, 1, 2, 1)]) and not reading().noted(
        [torch.ones(1, 2, 1, 2, 1, 2)]
    )
    noted = reading().noted([torch.ones(1, 2, 1, 2, 1)])
    assert reading().moved([torch.ones(1, 2, 1, 2, 1, 1)], noted, 1) is None


def test_a_written_tensor_is_not_unwritten():
    one, other = x(), x()
    assert reading().unwritten([one, other])
    other.add_(1)
    assert not reading().unwritten([one, other])
    with torch.inference_mode():
        assert not reading().unwritten([torch.ones(3)])  # which refuses to say


class OnGpu(Counted):
    """Counts as a GPU's would be: known only when asked for."""

    by_gpu = True

    def __init__(self, tensors):
        self._rows = plain_counts(tensors)

    def bad(self):
        return bool((self._rows[:, :3] > 0).any())

    def known_clean(self):
        return False

    def rows(self):
        return self._rows


def on_gpu(tensors):
    return plain_counts(tensors)


on_gpu.begin = OnGpu


def test_a_clean_forward_on_a_gpu_is_taken_later_and_a_bad_one_at_once():
    model, stopped = nn.Sequential(linear(), nn.ReLU()), []
    with nan.watch(model, counter=on_gpu, on_bad=stopped.append) as w:
        waited = []
        for step in range(7):
            model(x() * (NAN if step == 5 else 1))
            waited.append(w.waits)
        held = [batch.tensors for one in w._waiting for batch, _ in one._parts]
    assert waited == [True] * 5 + [False, True] and held == [[]]
    assert [step.number for step in w.steps] == [*range(7)] and [step.number for step in stopped] == [5]
    assert w.first_step.number == 5 and w.forwards == 7


class Described(OnGpu):
    """As the kernel's counts, which know what equal lists share."""

    def __init__(self, tensors):
        super().__init__(tensors)
        found = reading().described([*tensors])
        self.layout = found and found[0]


@pytest.mark.skipif(reading() is None, reason="no C here")
def test_shapes_that_a_layout_tells_are_those_of_the_forward():
    def rows_of(begin):
        def count(tensors):
            return plain_counts(tensors)

        count.begin = begin
        with nan.watch(nn.Sequential(nn.ReLU(), nn.ReLU()), counter=count, on_bad=lambda _: None) as w:
            for shape in [(2, 3)] * 4 + [(3, 2), (6,), (1, 6), (2, 3), (6,)]:
                w.model(torch.full(shape, float(len(w._waiting))))
                w.model(torch.full(shape, NAN))
        layouts = w._templates["forward"].layouts
        totals = [
            (one.module, one.side, one.calls, one.numel, one.dtype, one.first_bad_step) for one in w.totals()
        ]
        return [[row.shape for row in step.rows] for step in w.steps], totals, layouts

    rows, totals, layouts = rows_of(Described)
    assert (rows, totals) == rows_of(OnGpu)[:2] and len({str(some) for some in rows}) >= 4
    if reading().described([x()]) is not None:
        assert len(layouts) == 4


@pytest.mark.skipif(sys.version_info < (3, 9), reason="this Python does not name its functions' own way")
def test_a_call_needs_no_frame_of_the_patch():
    frames = []
    model = Own(lambda self, value: (frames.append(names_of_frames()), self.inner(value))[1])
    with nan.watch(model):
        for _ in range(3):
            model(x())
    assert len(frames) == 3 and not any("_patched" in names for names in frames)


@pytest.mark.skipif(reading() is None, reason="no C here")
def test_the_other_sign_and_writes_are_told_from_memory_as_torch_tells_them():
    assert layout.negative_at() != (0, 0) and layout.version_at() != (0, 0)
    usual = [
        torch.ones(4),
        torch.ones(4)[1:],
        torch.ones(2, 2).t(),
        torch.ones(3).requires_grad_(),
        torch.ones(3).half(),
    ]
    for one in (*usual, torch.ones(3, dtype=torch.cfloat).conj().real, nn.Parameter(torch.ones(2))):
        negative = torch._neg_view(one.detach())
        assert reading().unwritten([one]) and not one.is_neg() and negative.is_neg()
        assert (reading().described([one]) is not None) == one.is_contiguous()
        assert reading().described([negative]) is None and reading().described([one, negative]) is None
    written = torch.ones(3).add_(1)
    assert written._version == 1 and not reading().unwritten([written])


UNUSUAL = {
    "inference": "torch.inference_mode()",
    "fake": "torch._subclasses.fake_tensor.FakeTensorMode()",
    "meta": "torch.device('meta')",
    "modes": "torch.utils.flop_counter.FlopCounterMode(display=False)",
    "doubles": "contextlib.nullcontext(torch.set_default_dtype(torch.float64))",
}


@pytest.mark.long
@pytest.mark.skipif(reading() is None, reason="no C here")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_read_from_memory_is_found_under_whatever_is_switched_on(kind):
    code = f"""
import contextlib, torch, torch.utils.flop_counter, torch._subclasses.fake_tensor
from lab.rooms.nan.watch.native import layout
with {UNUSUAL[kind]}:
    print(layout.inner_at(), layout.version_at(), layout.negative_at(), layout.body_at(), layout.type_at())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    places = layout.inner_at(), layout.version_at(), layout.negative_at(), layout.body_at(), layout.type_at()
    assert found.split("\n")[0] == " ".join(map(str, places))
