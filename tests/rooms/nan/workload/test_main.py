"""Each experiment changes one thing, proves it, and leaves a result that says what really ran."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from lab.errors import BadDataError, GpuError, MissingError, UsageError  # noqa: E402
from lab.rooms.nan.config import NanConfig  # noqa: E402
from lab.rooms.nan.workload import main as workload  # noqa: E402
from lab.rooms.nan.workload.cell import choose_cell  # noqa: E402
from lab.rooms.nan.workload.changes import attention_modules, clip_attention, scale_attention, set_epsilon  # noqa: E402
from lab.rooms.nan.workload.generate import first_logits, generate  # noqa: E402
from lab.rooms.nan.workload.model import load  # noqa: E402
from lab.rooms.nan.workload.quality import compare  # noqa: E402
from lab.rooms.nan.workload.tokenizers import ByteTokenizer  # noqa: E402


def config(**more):
    return NanConfig(
        **{
            "experiments": ("baseline",),
            "device": "cpu",
            "max_new_tokens": 3,
            "timing": 0,
            "layers": 2,
            **more,
        }
    )


def run(tmp_path, experiment, **more):
    return workload.run(config(**more), experiment, tmp_path / "steps" / experiment)


def tiny(**more):
    made = config(**more)
    return load(made, choose_cell(made, "baseline")).model


def prompt():
    return ByteTokenizer()(("dizzy",))


@pytest.mark.parametrize(
    "experiment", ["bfloat16", "attention_scale", "attention_clip", "layernorm_eps", "eager"]
)
def test_each_experiment_proves_its_change(tmp_path, experiment):
    more = {"clip": 0.01} if experiment == "attention_clip" else {"scale": 4.0}
    applied = run(tmp_path, experiment, **more)["applied"]
    assert applied["status"] == "applied" and applied["count"] == applied["expected"] > 0
    if experiment == "attention_clip":
        assert applied["values_changed"] > 0
    if experiment in ("attention_scale", "attention_clip", "layernorm_eps"):
        assert applied["logits_moved"] > 0


def test_a_clip_that_nothing_reaches_has_no_effect_and_says_so(tmp_path):
    applied = run(tmp_path, "attention_clip", clip=1e6)["applied"]
    assert (applied["status"], applied["values_changed"], applied["logits_moved"]) == ("no-effect", 0, 0.0)


def test_a_change_that_touches_nothing_is_invalid():
    assert set_epsilon(nn.Linear(2, 2), 1e-3).applied.status == "invalid"
    assert scale_attention(nn.Linear(2, 2), 0.5).applied.status == "invalid"


def test_scaling_by_one_is_the_baseline_and_scaling_the_queries_is_scaling_the_scores():
    model, (ids, mask) = tiny(dtype="float32"), prompt()
    plain = first_logits(model, ids, mask)
    change = scale_attention(model, 1.0)
    assert torch.equal(first_logits(model, ids, mask), plain)
    change.restore()
    change = scale_attention(model, 0.5)
    scaled = first_logits(model, ids, mask)
    change.restore()
    for module in attention_modules(model).values():
        del module.scaling
    by_query = scale_attention(model, 0.5)
    for module in attention_modules(model).values():
        module.scaling = module.head_dim**-0.5
    assert torch.allclose(first_logits(model, ids, mask), scaled, atol=1e-6)
    by_query.restore()
    assert torch.equal(first_logits(model, ids, mask), plain), "the change leaves nothing behind"


def test_clipping_keeps_the_structure_at_any_batch_size():
    model = tiny(dtype="float32")
    ids, mask = ByteTokenizer()(("dizzy", "a longer prompt"))
    plain = first_logits(model, ids, mask)
    change = clip_attention(model, 1e9)
    assert torch.equal(first_logits(model, ids, mask), plain)
    change.restore()


def test_the_baseline_that_cannot_be_quantized_here_runs_as_its_twin_and_says_so(tmp_path):
    told = run(tmp_path, "baseline")
    assert "4bit" in told["skipped_quant"] and told["effective"]["quant"] == "none"
    assert "8bit" in run(tmp_path, "8bit")["skipped_quant"]


def test_generation_is_exactly_as_long_as_asked_and_left_padding_changes_no_token():
    model = tiny(dtype="float32")
    alone = generate(model, *ByteTokenizer()(("dizzy",)), 5, None)
    batch = generate(model, *ByteTokenizer()(("dizzy", "a much longer prompt")), 5, None)
    assert [len(row) for row in batch.tokens] == [5, 5] and batch.tokens[0] == alone.tokens[0]


def test_the_same_seed_gives_the_same_model_in_every_dtype():
    wide, narrow = tiny(dtype="float32"), tiny(dtype="bfloat16")
    for a, b in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)


def test_a_provoked_run_leaves_births_calls_and_bad_logits(tmp_path):
    told = run(tmp_path, "eager", provoke="scores", provoke_layer=1)
    assert told["watch"]["first"]["module"] == told["planted"]["expected"] == "model.layers.1.self_attn"
    assert told["logits"]["bad_steps"] == [0, 1, 2]
    with (tmp_path / "steps/eager/calls.csv").open() as file:
        assert {row["role"] for row in csv.DictReader(file)} >= {"producer", "propagator", "clean"}
    assert (
        json.loads((tmp_path / "steps/eager/environment.json").read_text())["versions"]["torch"]
        == torch.__version__
    )


def test_quality_is_measured_on_the_baselines_own_tokens(tmp_path):
    run(tmp_path, "baseline")
    told = run(tmp_path, "bfloat16")["quality"]
    assert told["positions"] == 3 and 0 <= told["kl_mean"] < 0.01 and told["reason"] == ""
    assert (
        run(tmp_path / "elsewhere", "bfloat16")["quality"]["reason"]
        == "no result of the baseline beside this one"
    )


def test_the_distance_of_equal_logits_is_zero_and_infinite_ones_are_left_out():
    logits = np.random.default_rng(0).normal(size=(4, 9))
    broken = logits.copy()
    broken[1] = np.nan
    assert compare(logits, logits)["kl_max"] == pytest.approx(0)
    assert compare(logits, broken)["finite_positions"] == 3
    assert compare(logits, np.full_like(logits, np.nan))["kl_mean"] is None


def test_without_hooks_only_the_text_and_the_logits_are_told(tmp_path):
    told = workload.run(config(), "baseline", tmp_path, watched=False)
    assert told["level"] == "sass" and "watch" not in told and told["logits"]["steps"] == 3


def test_a_tool_is_hidden_from_children_once_it_is_in(monkeypatch):
    made = []
    monkeypatch.setattr(torch, "zeros", lambda *_, device: made.append(device))
    for name in workload.INJECTED:
        monkeypatch.setenv(name, "x")
    workload.attach_tools()
    assert made == ["cuda"] and not set(workload.INJECTED) & set(os.environ)


def test_bad_input_ends_in_words(tmp_path):
    (tmp_path / "nan.json").write_text("{}")
    words = ["--config", "nan.json", "--experiment", "eager", "--out", "out", "--root", str(tmp_path)]
    with pytest.raises(BadDataError, match="not a configuration"):
        workload.main(words)
    assert not (tmp_path / "out").exists()
    with pytest.raises(MissingError, match="cannot be loaded"):
        run(tmp_path, "baseline", model=str(tmp_path), layers=None)
    with pytest.raises(UsageError, match="no layer 9"):
        run(tmp_path, "baseline", provoke="scores", provoke_layer=9)
    if not torch.cuda.is_available():
        with pytest.raises(GpuError, match="sees no GPU"):
            run(tmp_path, "baseline", device="cuda")
