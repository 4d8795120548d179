"""A crash never wins, and each verdict is the furthest link of its chain."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

pytest.importorskip("matplotlib")
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.verdict import Chain, chain_of, ranks, verdict_of
from tests.rooms.nan.folders import rows, tables
from tests.rooms.nan.made import birth, result


def test_what_crashed_was_skipped_or_changed_nothing_has_no_rank(tmp_path):
    found = rows(
        tables(
            tmp_path / "r",
            {
                "baseline": result("baseline"),
                "bfloat16": None,
                "attention_clip": result("attention_clip", applied="no-effect"),
                "layernorm_eps": result("layernorm_eps", applied="invalid"),
                "eager": result("eager", applied="applied", first=birth(), bad_steps=(0,)),
            },
            failed={"bfloat16": "exit code 1"},
        )
    )
    assert found["baseline"]["rank"] == 1 and found["eager"]["rank"] == 2
    for name, status in {
        "bfloat16": "failed",
        "attention_clip": "no-effect",
        "layernorm_eps": "invalid",
    }.items():
        assert pd.isna(found[name]["rank"]) and found[name]["status"] == status
    assert (
        found["eager"]["verdict"] == "reached-logits"
        and found["bfloat16"]["verdict"] == "inconclusive (failed)"
    )


def evidence(name="one", **more):
    return Evidence(experiment=name, label=name, **more)


def seen(*, contexts=True, error_lines=0, memory=None, report=None, **types):
    """What the verdict reads of a log: lines by type and kind."""
    counts = {**types, "memory": memory or {}}
    return SimpleNamespace(counts=counts, report=report, context_seen=contexts, error_lines=error_lines)


def chain(**links):
    names = ("instruction", "stored", "module", "logits", "text")
    return Chain(*((links.get(name, "no"), "") for name in names))


@pytest.mark.parametrize(
    ("links", "verdict"),
    [
        ({}, "clean"),
        ({"text": "yes"}, "clean"),
        ({"instruction": "yes"}, "masked-intermediate"),
        ({"instruction": "yes", "stored": "yes"}, "stored"),
        ({"stored": "yes", "module": "?", "logits": "?"}, "stored"),
        ({"instruction": "yes", "module": "?", "logits": "?"}, "masked-intermediate"),
        ({"stored": "yes", "module": "yes"}, "reached-module"),
        ({"module": "yes", "logits": "yes"}, "reached-logits"),
        ({"logits": "yes"}, "reached-logits"),
        ({"module": "?"}, "clean"),
        ({"logits": "?"}, "clean"),
        ({"instruction": "?", "stored": "?"}, "clean"),
    ],
)
def test_the_verdict_is_the_furthest_link_that_holds(links, verdict):
    for status in ("ok", "no-effect"):
        assert verdict_of(evidence(status=status), chain(**links)) == verdict


def test_nothing_seen_where_modules_and_logits_were_not_watched_is_no_health():
    assert verdict_of(evidence(), chain(module="?", logits="?")).startswith("inconclusive (zero events")


@pytest.mark.parametrize("status", ["failed", "oom", "invalid", "skipped"])
def test_what_did_not_finish_is_inconclusive_whatever_was_seen(status):
    assert verdict_of(evidence(status=status), chain(logits="yes")) == f"inconclusive ({status})"


def test_subnormals_alone_are_told_apart_from_nothing():
    assert verdict_of(evidence(log=seen(f16={"subnormal": 1})), chain()) == "subnormal-only"
    assert verdict_of(evidence(log=seen(f16={"subnormal": 0})), chain()) == "clean"


def test_a_rank_counts_those_that_are_better_and_equals_share_it():
    verdicts = {
        "worst": "reached-logits",
        "bad": "reached-module",
        "stored": "stored",
        "clean": "clean",
        "masked": "masked-intermediate",
        "subnormal": "subnormal-only",
        "unknown": "inconclusive (zero events)",
    }
    found = ranks([evidence(name) for name in verdicts], verdicts)
    assert found == {"worst": 6, "bad": 5, "stored": 4, "clean": 1, "masked": 1, "subnormal": 1}


def test_only_what_ran_to_its_end_and_had_an_effect_is_ranked():
    all_of_it = [evidence("a"), evidence("b", status="no-effect"), evidence("c", status="failed")]
    assert ranks(all_of_it, dict.fromkeys("abc", "clean")) == {"a": 1}


@pytest.mark.parametrize(
    ("contexts", "error_lines", "attached"),
    [(True, 0, True), (False, 1, True), (True, 5, True), (False, 0, False)],
)
def test_a_log_counts_if_the_tool_attached_or_wrote_one_line(contexts, error_lines, attached):
    links = chain_of(evidence(log=seen(contexts=contexts, error_lines=error_lines)), None)
    assert links.instruction[0] == links.stored[0] == ("no" if attached else "?")
    if attached:
        assert links.instruction[1].startswith("no line") and links.stored[1].startswith("0 stored")
    else:
        assert links.instruction[1] == links.stored[1] == "not run under nixnan"


def test_a_log_that_cannot_be_read_says_why():
    for log in (None, seen(contexts=False)):
        links = chain_of(evidence(log=log, log_error="cut short"), None)
        assert links.instruction == links.stored == ("?", "cut short")
    assert chain_of(evidence(), None).stored == ("?", "not run under nixnan")


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"NaN": 1}, "NaN in 1 line, infinity in 0 lines"),
        ({"-infinity": 1}, "NaN in 0 lines, infinity in 1 line"),
        ({"NaN": 2, "infinity": 3, "-infinity": 4}, "NaN in 2 lines, infinity in 7 lines"),
        ({"subnormal": 3, "div0": 2}, "no line, in what nixnan can see"),
    ],
)
def test_nan_and_both_infinities_in_operands_are_counted(kinds, words):
    state = "no" if "div0" in kinds else "yes"
    assert chain_of(evidence(log=seen(f16=kinds)), None).instruction == (state, words)


def test_lines_of_stored_nan_are_counted():
    log = seen(f16={"NaN": 9}, memory={"f16": {"NaN": 2}, "f32": {"NaN": 1}})
    assert chain_of(evidence(log=log), None).stored == ("yes", "3 lines")
    log = seen(report={"memory": {"f16": {"NaN": {"unique": 4}}}})
    assert chain_of(evidence(log=log), None).stored == ("yes", "0 lines")


def of_result(baseline=None, **content):
    return chain_of(evidence(result=content or None), baseline)


@pytest.mark.parametrize(
    ("bad_leaves", "link"),
    [((0, 0), ("no", "0 in 10 modules")), ((2, 1), ("yes", "3 bad leaves"))],
)
def test_one_bad_leaf_of_a_watched_module_is_enough(bad_leaves, link):
    steps = [{"bad_leaves": bad, "subnormal": 0} for bad in bad_leaves]
    assert of_result(watch={"modules": 10, "steps": steps}).module == link


@pytest.mark.parametrize(
    ("bad", "link"),
    [([], ("no", "0 in 1 module")), (["a", "b"], ("yes", "2 modules"))],
)
def test_modules_of_a_published_folder_are_counted_where_none_was_watched(bad, link):
    assert of_result(published={"bad_modules": bad, "modules": 1, "rows": {}}).module == link


def test_modules_that_nobody_watched_are_unknown():
    assert of_result().module == ("?", "no result") and of_result().logits == ("?", "no result")
    assert of_result(text=["x"]).module == ("?", "not watched")


@pytest.mark.parametrize(
    ("bad_steps", "steps", "link"),
    [([], 2, ("no", "0 in 2 steps")), ([1], 2, ("yes", "1 of 2 steps"))],
)
def test_one_step_with_bad_logits_is_enough(bad_steps, steps, link):
    assert of_result(logits={"bad_steps": bad_steps, "steps": steps}).logits == link


@pytest.mark.parametrize(
    ("rows", "link"),
    [
        ({"lm_head": (0, 0)}, ("no", "0 in lm_head, last call")),
        ({"lm_head": (2, 3)}, ("yes", "5 in lm_head")),
        ({"model": (2, 3)}, ("?", "no result")),
    ],
)
def test_logits_of_a_published_folder_are_those_of_its_head(rows, link):
    assert of_result(published={"bad_modules": [], "modules": 1, "rows": rows}).logits == link


def test_logits_that_were_kept_go_before_published_ones():
    published = {"bad_modules": [], "modules": 1, "rows": {"lm_head": (1, 0)}}
    assert of_result(logits={"bad_steps": [], "steps": 2}, published=published).logits[0] == "no"


def test_a_text_is_compared_with_the_baselines():
    base = evidence("baseline", result={"text": ["a", "b"]})
    assert of_result(base, text=["a", "b"]).text == ("no", "same text as the baseline")
    assert of_result(base, text=["a", "c"]).text == ("yes", "differs from the baseline's text")
    assert of_result(base, logits=None).text[0] == of_result(None, text=["a"]).text[0] == "?"
    assert "no text" in of_result(base, logits=None).text[1]
    assert "no text" in of_result(None, text=["a"]).text[1]
    assert chain_of(base, base).text == ("?", "this is the baseline")


def test_an_inventory_of_kernels_says_nothing_of_their_numbers():
    log = seen(f32={}, bf16={}, f16={}, f64={})
    listed, looked = (chain_of(evidence(log=log, inventory=flag), None) for flag in (True, False))
    assert listed.instruction == listed.stored == ("?", "no kernel was instrumented")
    assert looked.instruction[0] == looked.stored[0] == "no"


def test_kernels_that_were_chosen_bound_what_no_line_means():
    log = seen(f32={}, bf16={}, f16={}, f64={})
    log.kernels = []
    none = chain_of(evidence(log=log, only_kernels=("void tpyo",)), None)
    assert none.instruction[0] == none.stored[0] == "?" and "are the names exact?" in none.stored[1]
    log.kernels = ["void softmax"]
    some = chain_of(evidence(log=log, only_kernels=("void softmax",)), None)
    assert some.instruction == ("no", "no line, in what nixnan can see of 1 kernel that --only-kernel names")
    assert chain_of(evidence(log=log, not_kernels=("k",)), None).stored[1].endswith("but for 1 kernel")
