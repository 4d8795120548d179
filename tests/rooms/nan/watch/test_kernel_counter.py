"""Launch memory of the kernel's counter belongs to one launch at a time, and to one stream.

The kernel is a stand-in that runs on a CPU, at once.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

from lab.rooms.nan.watch import kernel_counter  # noqa: E402

MOST_INSTRUCTIONS = 2000


@pytest.fixture
def runs(monkeypatch):
    """The tables of each launch, which count NaN only."""
    found = []

    def run(pieces, tables, places, piece, dtype, *, pairs):
        addresses, words, _, _, counts = tables
        assert places == tuple(one.data_ptr() for one in tables)
        for at, size in enumerate(words.tolist()):
            memory = (ctypes.c_char * (4 * size)).from_address(int(addresses[at]))
            counts[5 * at] += int(np.isnan(np.frombuffer(memory, np.float32)).sum())
        found.append(tables)

    monkeypatch.setattr(kernel_counter, "run", run)
    return found


def group_of(count):
    return kernel_counter.Group(torch.float32, range(count), [16] * count, torch.device("cpu"))


def tensors_with(*nans):
    """One tensor each, that holds so many NaN."""
    return [torch.tensor([float("nan")] * some + [1.0] * (16 - some)) for some in nans]


def launch(group, tensors):
    return group.launch(np.array([one.data_ptr() for one in tensors]))


def nans(found):
    return found.rows()[:, 0].tolist()


def switched(work, other, instruction):
    """(what `work` gives, what `other` does at this instruction of the counter's code within `work`)"""
    passed, of_other = 0, []

    def look(frame, event, arg):
        nonlocal passed
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed += 1
            if passed == instruction:
                of_other.append(other())
        return look

    def enter(frame, event, arg):
        return look(frame, event, arg) if frame.f_code.co_filename == kernel_counter.__file__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        found = work()
    finally:
        sys.settrace(before)
    return found, of_other


@pytest.mark.parametrize("free", [0, 1, 2])
def test_threads_that_switch_at_any_instruction_get_counts_of_their_own(runs, free):
    mine, others, group = tensors_with(3, 0), tensors_with(0, 5), group_of(2)
    kept = [launch(group, mine) for _ in range(free)]
    assert all(nans(one) == [3, 0] for one in kept)
    for instruction in range(1, MOST_INSTRUCTIONS):
        (found, of_other) = switched(lambda: launch(group, mine), lambda: launch(group, others), instruction)
        if not of_other:
            break
        assert (nans(found), nans(of_other[0])) == ([3, 0], [0, 5]), instruction
    assert 10 < instruction < MOST_INSTRUCTIONS - 1


def test_counts_that_are_read_while_another_thread_launches_stay_what_they_were(runs):
    mine, others, group = tensors_with(3, 0), tensors_with(0, 5), group_of(2)
    for instruction in range(1, MOST_INSTRUCTIONS):
        found = launch(group, mine)
        rows, of_other = switched(lambda one=found: nans(one), lambda: launch(group, others), instruction)
        if not of_other:
            break
        assert (rows, nans(of_other[0])) == ([3, 0], [0, 5]), instruction
    assert 10 < instruction < MOST_INSTRUCTIONS - 1


def test_counts_that_were_read_twice_give_their_memory_back_once(runs):
    mine, others, group = tensors_with(3), tensors_with(5), group_of(1)
    found = launch(group, mine)
    assert found.bad() and nans(found) == nans(found) == [3]
    one, other = launch(group, mine), launch(group, others)
    assert (nans(one), nans(other)) == ([3], [5])


def test_memory_of_a_launch_that_nobody_waits_for_is_not_used_again(runs):
    group = group_of(1)
    launch(group, tensors_with(3))
    launch(group, tensors_with(5))
    gc.collect()
    first, second = (tables[0] for tables in runs)
    assert first.data_ptr() != second.data_ptr()  # `runs` holds both


def test_memory_that_a_wait_has_freed_serves_the_next_launch_of_its_stream(runs):
    group = group_of(1)
    for some in (3, 5, 0):
        assert nans(launch(group, tensors_with(some))) == [some]
    assert len({tables[0].data_ptr() for tables in runs}) == 1


def test_each_stream_has_memory_and_tables_of_its_own(runs, monkeypatch):
    """What one stream uploads has no order with what another does, nor has memory that is let go of there."""
    now, owner = 0, {}
    monkeypatch.setattr(kernel_counter, "_stream", lambda device: now)
    counter, pending = kernel_counter.KernelCounter(), []
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    for turn, now in enumerate((1, 1, 2, 2, 1, 3, 2, 1)):
        tensors = tensors_with(turn, 0)
        pending.append((turn, tensors, counter.begin(tensors)))
        for table in runs[-1]:
            assert owner.setdefault(table.untyped_storage().data_ptr(), now) == now, turn
        if turn % 2:  # some are waited for late, on whatever stream is current then
            assert [one.rows()[:, 0].tolist() for _, _, one in pending] == [[n, 0] for n, _, _ in pending]
            pending.clear()
    assert {*owner.values()} == {1, 2, 3}


@pytest.mark.parametrize("first", [True, False])
def test_memory_made_in_inference_mode_serves_outside_of_it_and_the_other_way_round(runs, first):
    group = group_of(1)
    for some, mode in ((3, first), (5, not first), (0, first)):
        with torch.inference_mode(mode):
            assert nans(launch(group, tensors_with(some))) == [some]
    assert len({tables[0].data_ptr() for tables in runs}) == 1
