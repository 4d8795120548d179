"""Every instant has one label: parts sum to the step, and the golden accounts come out in ns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.recordings.kineto import read_kineto
from lab.recordings.ranks import Account, account_of, work_of
from tests.recordings.ranks.made import Job

GOLDEN = {
    "compute_ns": "compute",
    "contention_ns": "contention",
    "transfer_ns": "transfer",
    "wait_ns": "wait",
    "copy_ns": "copy",
    "launch_late_ns": "launch_late",
    "launch_gap_ns": "launch_gap",
    "tail_ns": "idle_tail",
    "unexplained_ns": "unexplained",
}
SWEEP = ("256t_28ch", "256t_42ch", "512t_28ch", "512t_42ch")
PLANTED = ("base", "host_late", "slow_gemm", "two", "slow_link")
# A kernel's usual time is a median over few instances: it may differ from the sheet's by so much.
CONTENTION_NS = 110_000


def folder_of(shared_data: Path, name: str) -> Path:
    if name in SWEEP:
        threads, channels = name.split("_")
        return shared_data / f"sweep_h200/{threads[:-1]}thread/nccl_{channels[:-2]}channels/torch_profiler"
    return shared_data / "ranks/planted" / name


def account_in(folder: Path) -> Account:
    works = (work_of(read_kineto(path)) for path in sorted(folder.glob("rank*/trace_step7.json.gz")))
    return account_of({work.rank: work for work in works})


def golden_of(shared_data: Path, name: str) -> dict:
    file = "golden_sweep.json" if name in SWEEP else "planted/golden.json"
    return json.loads((shared_data / "ranks" / file).read_text())[name]


@pytest.mark.data
@pytest.mark.parametrize("name", [*SWEEP, *PLANTED])
def test_the_golden_accounts_come_out_in_ns(shared_data, name):
    golden = golden_of(shared_data, name)
    account = account_in(folder_of(shared_data, name))
    assert len(account.rows) == len(golden["parts_ns"]) == 16
    for row in account.rows:
        wanted = golden["parts_ns"][f"{row.step},{row.rank}"]
        assert sum(row.parts.values()) == row.step_ns == wanted["step"]
        exact = [name for name in GOLDEN if name not in ("compute_ns", "contention_ns")]
        assert {name: row.parts[name] for name in exact} == {name: wanted[GOLDEN[name]] for name in exact}
        busy = row.parts["compute_ns"] + row.parts["contention_ns"]
        assert busy == wanted["compute"] + wanted["contention"]
        assert row.parts["contention_ns"] == pytest.approx(wanted["contention"], abs=CONTENTION_NS)


@pytest.mark.data
@pytest.mark.parametrize("name", [*SWEEP, *PLANTED])
def test_who_waits_for_whom_is_golden_in_ns(shared_data, name):
    golden = golden_of(shared_data, name)["wait_ns"]
    account = account_in(folder_of(shared_data, name))
    waits: dict[str, int] = {}
    for wait in account.waits:
        key = f"{wait.step},{wait.rank}->{wait.awaited}"
        waits[key] = waits.get(key, 0) + wait.ns
    assert waits == golden
    of_row = {(row.step, row.rank): row.parts["wait_ns"] for row in account.rows}
    sums: dict[tuple[int, int], int] = {}
    for wait in account.waits:
        sums[wait.step, wait.rank] = sums.get((wait.step, wait.rank), 0) + wait.ns
    assert sums == {key: ns for key, ns in of_row.items() if ns}


@pytest.mark.data
@pytest.mark.parametrize("name", SWEEP)
def test_why_the_last_rank_was_late_is_golden(shared_data, name):
    golden = golden_of(shared_data, name)["last_rank_state_during_wait_ms"]
    words = {
        "idle": "launch",
        "compute": "work",
        "outside_its_step": "entered_late",
        "transfer": "link",
        "copy": "copy",
    }
    found: dict[str, float] = {}
    for wait in account_in(folder_of(shared_data, name)).waits:
        found[wait.because] = found.get(wait.because, 0) + wait.ns / 1e6
    assert found == {words[name]: pytest.approx(ms, abs=0.006) for name, ms in golden.items()}


@settings(max_examples=15)
@given(
    st.dictionaries(st.integers(0, 3), st.floats(-50, 50), max_size=2),
    st.dictionaries(st.integers(0, 3), st.floats(1, 2), max_size=2),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 1)), st.floats(0, 20), max_size=2),
    st.integers(0, 5),
)
def test_parts_sum_to_the_step_whatever_happens(clock, slower, late, seed):
    account = account_of(Job(ranks=4, steps=2, clock=clock, slower=slower, late=late, seed=seed).play())
    for row in account.rows:
        assert sum(row.parts.values()) == row.step_ns and min(row.parts.values()) >= 0
        waits = sum(w.ns for w in account.waits if (w.step, w.rank) == (row.step, row.rank))
        assert waits == row.parts["wait_ns"]
