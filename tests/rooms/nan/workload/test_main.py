"""Each experiment changes one thing, proves it, and leaves a result that says what really ran."""

from __future__ import annotations

import csv
import json
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from lab.errors import BadDataError, GpuError, MissingError, UsageError  # noqa: E402
from lab.rooms.nan.workload import __main__ as workload  # noqa: E402
from tests.rooms.nan.workload.runs import config, run  # noqa: E402


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


def test_a_provoked_run_leaves_births_calls_and_bad_logits(tmp_path):
    result = run(tmp_path, "eager", provoke="scores", provoke_layer=1)
    assert result["watch"]["first"]["module"] == result["planted"]["expected"] == "model.layers.1.self_attn"
    assert result["logits"]["bad_steps"] == [0, 1, 2]
    with (tmp_path / "steps/eager/calls.csv").open() as file:
        assert {row["role"] for row in csv.DictReader(file)} >= {"producer", "propagator", "clean"}
    assert (
        json.loads((tmp_path / "steps/eager/environment.json").read_text())["versions"]["torch"]
        == torch.__version__
    )


def test_without_hooks_only_the_text_and_the_logits_are_told(tmp_path):
    result = workload.run(config(), "baseline", tmp_path, watched=False)
    assert result["level"] == "sass" and "watch" not in result and result["logits"]["steps"] == 3


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
    with pytest.raises(BadDataError, match="cannot read the configuration of this workload"):
        workload.main(words)
    assert not (tmp_path / "out").exists()
    with pytest.raises(MissingError, match="cannot be loaded"):
        run(tmp_path, "baseline", model=str(tmp_path), layers=None)
    with pytest.raises(UsageError, match="no layer 9"):
        run(tmp_path, "baseline", provoke="scores", provoke_layer=9)
    if not torch.cuda.is_available():
        with pytest.raises(GpuError, match="sees no GPU"):
            run(tmp_path, "baseline", device="cuda")
