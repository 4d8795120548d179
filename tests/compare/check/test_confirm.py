"""What one set of processes proves has to show in a second one, or it is not proven."""

from __future__ import annotations

import json
import sys

import numpy as np
from click.testing import CliRunner

from lab.compare.check import confirmed, judge, sentences
from lab.compare.cli import check
from lab.compare.whole import IDLE
from lab.errors import BusyError
from tests.compare.test_signatures import KEYS, drawn


def sets(slow_first, slow_second, n=6, spread=0.002):
    """Two verdicts' worth of processes: (base, head) of the first set and of the second."""
    generator = np.random.default_rng(3)
    return [
        (drawn(generator, n, spread), drawn(generator, n, spread, slow=slow))
        for slow in (slow_first, slow_second)
    ]


def test_a_slowdown_that_both_sets_show_stays_proven():
    """One kernel of 7 % of the step, 5 % slower: the step alone would not show it."""
    first, second = sets([(49, 1.05)], [(49, 1.05)])
    found = confirmed(judge(*first, 0.02), *second)
    assert found.outcome == "regression" and [one.kernel for one in found.signatures.slower] == ["kernel_49"]
    assert "A second set of 6 processes per side, judged by itself, agrees." in sentences(found)


def test_what_the_second_set_does_not_show_is_undecided_and_told():
    first, second = sets([(49, 1.05), (48, 1.06)], [(48, 1.06)])
    found = confirmed(judge(*first, 0.02), *second)
    assert [one.kernel for one in found.signatures.slower] == ["kernel_48"]
    assert [one.kernel for one in found.signatures.unconfirmed] == ["kernel_49"]
    assert found.outcome == "regression"
    told = "\n".join(sentences(found))
    assert "Slower by the first set, not by the second: aten::op49" in told
    assert "proven for 1, not confirmed for 1" in told
    none = confirmed(judge(*first, 0.02), *sets([], [])[1])
    assert none.outcome == "undecided" and sentences(none)[0].startswith("Cannot tell")
    assert "does not: not confirmed" in sentences(none)[1]


def test_of_the_whole_step_as_of_its_kernels():
    everything = [(at, 1.06) for at in range(50)]
    first, second = sets(everything, [])
    found = confirmed(judge(*first, 0.02), *second)
    assert {one.outcome for one in found.metrics if one.name != IDLE and one.decides} == {"unconfirmed"}
    assert found.outcome == "undecided"
    assert any("slower by the first set, not by the second" in line for line in sentences(found))
    both = confirmed(judge(*first, 0.02), *sets(everything, everything)[1])
    assert both.outcome == "regression"
    assert {one.outcome for one in both.metrics if one.name != IDLE and one.decides} == {"regression"}


def test_a_second_set_without_the_kernel_confirms_nothing_of_it():
    first, second = sets([(49, 1.05)], [(49, 1.05)])
    for one in second[1]:
        del one.signatures_ns[KEYS[49]]
    assert confirmed(judge(*first, 0.02), *second).outcome == "undecided"


def test_of_sides_that_the_first_set_called_slower_by_chance_a_twentieth_at_most_is_confirmed():
    generator = np.random.default_rng(5)
    first = judge(drawn(generator, 6, 0.002), drawn(generator, 6, 0.002, slow=[(49, 1.05)]), 0.0)
    again = 0
    for _ in range(200):
        slower = [one for one in first.signatures.slower if one.kernel == "kernel_49"]
        signatures = type(first.signatures)(**{**vars_of(first.signatures), "slower": slower})
        verdict = type(first)(**{**vars_of(first), "signatures": signatures, "metrics": []})
        for one in slower:
            one.outcome, one.limit = "regression", 0.0
        equal = drawn(generator, 6, 0.01), drawn(generator, 6, 0.01)
        again += confirmed(verdict, *equal).outcome == "regression"
    assert again <= 0.09 * 200


def vars_of(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


PROGRAM = """
import json, os, sys, zlib
label = os.path.basename(sys.argv[1])
later = label.startswith("second") and os.path.exists("fine_later")
scale = (10.0 if later else float(open("scale").read())) * (1 + 1e-4 * (zlib.crc32(label.encode()) % 97))
json.dump({"step_ms": [scale, scale * 1.001]}, open(sys.argv[1], "w"))
"""


def test_the_command_runs_the_second_set_and_its_folders_alone_are_one_set(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.compare.check.repeat.LOOKS", (3, 6))
    for name, scale in (("b", "10.0"), ("h", "11.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scale").write_text(scale)
        (tmp_path / name / "work.py").write_text(PROGRAM)

    def run(out):
        words = [str(tmp_path / "b"), str(tmp_path / "h"), "--json", "-o", str(out)]
        return CliRunner().invoke(check, [*words, "--", sys.executable, "-S", "work.py", "{out}"])

    done = run(tmp_path / "one")
    assert done.exit_code == 1 and json.loads(done.stdout)["second"].endswith("agrees")
    assert len(list((tmp_path / "one" / "second" / "head").glob("*.json"))) == 3
    (tmp_path / "h" / "fine_later").touch()  # every look proves it, and no second set shows it
    done = run(tmp_path / "two")
    assert done.exit_code == 3 and json.loads(done.stdout)["metrics"][0]["outcome"] == "unconfirmed"
    assert [one[:14] for one in json.loads(done.stdout)["notes"]][:1] == ["the look at 3 "]
    again = CliRunner().invoke(check, [str(tmp_path / "one" / "base"), str(tmp_path / "one" / "head")])
    assert again.exit_code == 1 and "no second one confirms it" in again.stdout
    recorded = json.loads((tmp_path / "two" / "check.json").read_text())
    assert recorded == json.loads(done.stdout)
    assert isinstance(run(tmp_path / "two").exception, BusyError)


def test_a_real_slowdown_that_three_more_do_not_show_is_proven_by_more_of_both_sets(tmp_path):
    """The second set's first three are no slower, all others are: the check goes on."""
    program = PROGRAM.replace('os.path.exists("fine_later")', "int(label[-7:-5]) < 2")
    for name, scale in (("b", "10.0"), ("h", "11.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scale").write_text(scale)
        (tmp_path / name / "work.py").write_text(program.replace("97)", "97 + 300 * later)"))
    words = [str(tmp_path / "b"), str(tmp_path / "h"), "--json", "-o", str(tmp_path / "out")]
    command = [*words, "--", sys.executable, "-S", "work.py", "{out}"]
    done = CliRunner().invoke(check, command)
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and found["second"].startswith("A second set of 6 processes per side")
    assert found["notes"][0].startswith(
        "the look at 3 processes per side proved a slowdown that a second set"
    )
    assert len(list((tmp_path / "out" / "second" / "base").glob("*.json"))) == 6
