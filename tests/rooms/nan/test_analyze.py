"""A crash never wins, ties are ties, and each verdict is the furthest link of its chain."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")

from lab.cli.main import cli
from lab.errors import MissingError
from lab.rooms.nan.analyze import analyze
from lab.rooms.nan.findings import analyse_nan
from lab.rooms.nan.gather import gather
from lab.rooms.nan.layers import layer_of
from lab.rooms.nan.published import experiment_of, is_published
from lab.rooms.nan.sentences import sentences
from tests.rooms.nan.made import birth, call, result, run_of

LINE = "#nixnan: error [{kinds}] detected in operand 0 of instruction FADD R{n}, R1, R2 ; in function void kernel of type f32\n"


def tables(root: Path, results, failed=None):
    run = run_of(root, results, failed)
    return analyze(gather([root], [run], lambda _: None))


def rows(found) -> dict[str, pd.Series]:
    return {row["experiment"]: row for _, row in found.experiments.iterrows()}


def log(folder: Path, name: str, lines: int, kinds: str = "NaN", report: bool = True) -> None:
    """A small log of nixnan whose lines equal its report."""
    words = {"NaN": lines if "NaN" in kinds else 0, "Infinity": lines if "infinity" in kinds else 0}
    told = ["#nixnan: Initializing GPU context...\n", *(LINE.format(kinds=kinds, n=n) for n in range(lines))]
    if report:
        told += ["#nixnan: ------------ nixnan Report -----------\n", "#nixnan: --- FP32 Operations ---\n"]
        told += [
            f"#nixnan: {kind}: {words.get(kind, 0)} (7 repeats)\n"
            for kind in ("NaN", "Infinity", "-Infinity", "Subnormal")
        ]
        told += ["#nixnan: Division by 0: 0 (0 repeats)\n", "#nixnan: Finalizing GPU context...\n"]
    (folder / f"claude_{name}.nixnan").write_text("".join(told))


def published(
    folder: Path, name: str, nans: int = 0, text: str = "the same answer", gz: bool = False
) -> None:
    told = {
        "timestamp": "t",
        "experiment": name,
        "config": {},
        "model_output": text,
        "statistics": {
            "total_nans": nans,
            "total_infs": 0,
            "layers_with_nans": 0,
            "layers_with_infs": 0,
            "problematic_layers": {},
            "all_layer_stats": {
                "model.layers.0.mlp": {"nans": nans, "infs": 0},
                "lm_head": {"nans": 0, "infs": 0},
            },
        },
    }
    data = json.dumps(told).encode()
    (folder / f"claude_{name}.json{'.gz' if gz else ''}").write_bytes(gzip.compress(data) if gz else data)


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


def test_a_quantized_experiment_that_cannot_run_here_is_skipped_beside_its_twin(tmp_path):
    found = rows(
        tables(
            tmp_path / "r",
            {name: result(name, skipped_quant="no bitsandbytes") for name in ("baseline", "8bit", "eager")},
        )
    )
    assert found["baseline"]["rank"] == found["eager"]["rank"] == 1
    for name in ("baseline (4-bit)", "8bit"):
        assert found[name]["status"] == "skipped" and pd.isna(found[name]["rank"])
        assert found[name]["reason"] == "no bitsandbytes; its unquantized twin ran"


def test_equals_share_a_rank_and_that_is_said(tmp_path):
    found = tables(tmp_path / "r", {name: result(name) for name in ("baseline", "bfloat16", "eager")})
    assert list(found.experiments["rank"]) == [1, 1, 1]
    assert any("share the first rank" in sentence for sentence in sentences(found))


def test_equals_at_the_logits_are_not_called_equal_at_zero(tmp_path):
    bad = {
        name: result(name, applied="applied", first=birth(), bad_steps=(0,)) for name in ("baseline", "eager")
    }
    said = " ".join(sentences(tables(tmp_path / "r", bad)))
    assert "bad numbers get as far in each" in said and "over zero" not in said
    clean = {name: result(name, applied="applied") for name in ("baseline", "eager")}
    assert "no improvement over zero" in " ".join(sentences(tables(tmp_path / "s", clean)))


def test_a_nan_that_stays_in_a_module_is_told_apart_from_one_in_the_logits(tmp_path):
    found = rows(tables(tmp_path / "r", {"baseline": result("baseline", first=birth())}))
    assert found["baseline"]["verdict"] == "reached-module"


def test_the_story_names_birth_cause_and_what_keeps_it_away(tmp_path):
    module = "model.layers.2.self_attn"
    calls = [
        call(0, f"{module}.q_proj", "out", absmax=2000.0),
        call(1, f"{module}.k_proj", "out", absmax=1500.0),
        call(2, f"{module}.v_proj", "out"),
        call(3, f"{module}.o_proj", "in", nan=7),
    ]
    bad = result("eager", applied="applied", first=birth(), bad_steps=(0, 1), _calls=calls)
    told = " ".join(sentences(tables(tmp_path / "r", {"baseline": result("baseline"), "eager": bad})))
    assert "NaN or infinity reaches the logits in eager" in told
    assert (
        "after v_proj, before o_proj" in told and "overflow of half in the attention scores (likely" in told
    )
    assert "sdpa cures it" in told


def test_scores_that_fit_point_to_a_masked_row_with_less_confidence(tmp_path):
    module = "model.layers.2.self_attn"
    calls = [
        call(0, f"{module}.q_proj", "out", absmax=3.0),
        call(1, f"{module}.k_proj", "out", absmax=3.0),
        call(2, f"{module}.o_proj", "in", nan=7),
    ]
    found = tables(
        tmp_path / "r",
        {"eager": result("eager", applied="applied", first=birth(), bad_steps=(0,), _calls=calls)},
    )
    assert found.causes["eager"][:2] == ("a fully masked row in the softmax: (-inf) - (-inf)", "possible")


def test_a_product_that_the_type_cannot_hold_is_an_overflow(tmp_path):
    mlp = "model.layers.1.mlp"
    calls = [
        call(0, f"{mlp}.act_fn", "out", absmax=200.0),
        call(1, f"{mlp}.up_proj", "out", absmax=20000.0),
        call(2, f"{mlp}.down_proj", "in", posinf=3),
    ]
    first = {**birth(mlp), "after": f"{mlp}.up_proj", "before": f"{mlp}.down_proj"}
    found = tables(
        tmp_path / "r", {"baseline": result("baseline", first=first, bad_steps=(0,), _calls=calls)}
    )
    assert found.causes["baseline"][0] == "overflow of half in the product of act_fn and up_proj"


def test_in_the_published_layout_the_crashed_run_does_not_win_though_it_has_fewest_lines(tmp_path):
    for name in ("baseline_4bit_fp16", "bfloat16_compute", "layernorm_eps_0_001"):
        published(tmp_path, name, gz=name.startswith("b"))
    for name, lines in {"baseline": 9, "bfloat16": 5, "attention_clip": 1}.items():
        log(tmp_path, name, lines)
    assert is_published(tmp_path)
    found = analyze(gather([tmp_path], [None], lambda _: None))
    by = rows(found)
    assert pd.isna(by["attention_clip"]["rank"]) and by["attention_clip"]["status"] == "failed"
    assert [by[name]["rank"] for name in ("baseline", "bfloat16", "layernorm_eps")] == [1, 1, 1]
    assert by["baseline"]["verdict"] == "masked-intermediate" and by["baseline"]["sass_nan_lines"] == 9
    told = " ".join(sentences(found))
    assert "would make attention_clip (1) the best" in told and "stars bfloat16" in told and "RMSNorm" in told


def test_both_levels_of_an_experiment_are_joined_though_each_has_its_own_name():
    assert experiment_of("baseline_4bit_fp16") == experiment_of("baseline") == "baseline"
    assert experiment_of("8bit_quantization") == "8bit" and experiment_of("baselines") is None


def test_a_broken_result_is_a_row_with_its_reason_and_the_rest_is_analysed(tmp_path):
    published(tmp_path, "baseline")
    (tmp_path / "claude_eager.json").write_text("{")
    (tmp_path / "claude_bfloat16.json.gz").write_bytes(b"\x1f\x8b broken")
    by = rows(analyze(gather([tmp_path], [None], lambda _: None)))
    assert by["eager"]["status"] == by["bfloat16"]["status"] == "broken" and by["baseline"]["rank"] == 1


def test_two_runs_of_one_experiment_become_one_row_with_both_levels(tmp_path):
    python = run_of(tmp_path / "p", {"baseline": result("baseline")})
    unwatched = result("baseline")
    del unwatched["watch"]
    sass = run_of(tmp_path / "s", {"baseline": unwatched}, sass=True)
    log(tmp_path / "s/steps/baseline", "x", 4)
    (tmp_path / "s/steps/baseline/claude_x.nixnan").rename(tmp_path / "s/steps/baseline/nixnan.log")
    (one,) = gather([tmp_path / "p", tmp_path / "s"], [python, sass], lambda _: None)
    assert one.watch and one.log is not None and one.log.error_lines == 4


def test_the_whole_analysis_leaves_a_page_tables_and_figures(tmp_path):
    run = run_of(
        tmp_path / "r",
        {
            "baseline": result(
                "baseline",
                _modules=[
                    [
                        "model.layers.0.mlp",
                        "MLP",
                        "out",
                        "output",
                        "prefill",
                        "float16",
                        1,
                        64,
                        0,
                        0,
                        0,
                        2,
                        3.5,
                        -1,
                    ]
                ],
            ),
            "eager": result(
                "eager",
                applied="applied",
                first=birth(),
                bad_steps=(0,),
                text="<script>alert(1)</script>",
                _modules=[
                    [
                        "model.layers.2.self_attn",
                        "Attention",
                        "out",
                        "output[0]",
                        "prefill",
                        "float16",
                        1,
                        64,
                        64,
                        0,
                        0,
                        0,
                        0,
                        0,
                    ]
                ],
            ),
        },
    )
    found = analyse_nan([tmp_path / "r"], tmp_path / "out", [run], lambda _: None)
    assert all(path.exists() for path in found.files) and found.lacking == [] and found.status == "warn"
    page = (tmp_path / "out/report.html").read_text()
    assert "First producer, eager" in page and "layer 2" in page and "<script>alert" not in page
    assert {path.name for path in (tmp_path / "out/tables").iterdir()} >= {
        "experiments.csv",
        "births.csv",
        "chain.csv",
        "layers.csv",
    }


def test_asking_for_the_instruction_level_makes_its_absence_lacking(tmp_path):
    run = run_of(tmp_path / "r", {"baseline": result("baseline")})
    found = analyse_nan([tmp_path / "r"], tmp_path / "out", [run], lambda _: None, sass=True)
    assert found.lacking == ["baseline: no log of nixnan"]


def test_the_command_leaves_a_recording_alone_and_says_where_its_page_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    published(tmp_path / "theirs", "baseline")
    before = sorted((tmp_path / "theirs").iterdir())
    done = CliRunner().invoke(cli, ["nan", "analyze", "theirs", "--json", "-q"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"][-1] == "experiments/theirs_analysis/report.html"
    assert sorted((tmp_path / "theirs").iterdir()) == before
    assert isinstance(CliRunner().invoke(cli, ["nan", "analyze", "nowhere"]).exception, MissingError)


def test_a_folder_without_experiments_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="no experiment of the nan room"):
        analyse_nan([tmp_path], tmp_path / "out", [None], lambda _: None)


@pytest.mark.parametrize(
    "module, layer",
    [
        ("model.layers.12.self_attn.q_proj", "layer 12"),
        ("transformer.h.3.mlp", "layer 3"),
        ("lm_head", "lm_head"),
        ("", "(the model)"),
    ],
)
def test_modules_are_grouped_by_their_layer(module, layer):
    assert layer_of(module) == layer


REFERENCE = {  # lines, sites, NaN lines, half NaN unique and repeats, FP32 NaN unique and repeats, half subnormal unique and repeats
    "baseline": (10232, 3638, 7035, 2092, 28737328, 4943, 213324749, 2650, 571300636),
    "bfloat16": (9614, 2154, 5816, 1272, 11572324, 4544, 104598986, 1098, 11334686),
    "eager": (2816, 644, 1800, 464, 22750512, 1336, 191306408, 780, 570571076),
    "attention_clip": (1073, 881, 602, 144, 1360, 458, 4623, 355, 1405369),
}
COLUMNS = [
    "sass_lines",
    "sass_sites",
    "sass_nan_lines",
    "half_nan_unique",
    "half_nan_repeats",
    "float_nan_unique",
    "float_nan_repeats",
    "half_subnormal_unique",
    "half_subnormal_repeats",
]


@pytest.mark.data
def test_the_published_experiments_give_the_reference_table(shared_data):
    found = analyze(gather([shared_data / "nixnan"], [None], lambda _: None))
    by = rows(found)
    for name, expected in REFERENCE.items():
        assert tuple(by[name][COLUMNS]) == expected, name
    assert (found.layers[["nan", "posinf"]].to_numpy() == 0).all() and (
        found.experiments["memory_nan_lines"].dropna() == 0
    ).all()
    assert (
        pd.isna(by["attention_clip"]["rank"])
        and by["layernorm_eps"]["same_text"] == by["eager"]["same_text"] == "yes"
    )
