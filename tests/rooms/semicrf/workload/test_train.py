"""Training as a user runs it: results, page, two ranks, a training that was cut short."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.core.run import Run  # noqa: E402
from lab.errors import StepFailed  # noqa: E402
from lab.rooms import semicrf  # noqa: E402
from lab.rooms.semicrf.workload import train as workload_train  # noqa: E402
from tests.command import lab  # noqa: E402
from tests.rooms.semicrf.workload.least import LEAST  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def train(config, out, model="semicrf", backend="torch"):
    workload_train.run(config, model, backend, out, CPU)
    return json.loads((out / "result.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One run of `lab run semicrf train` with both heads."""
    folder = tmp_path_factory.mktemp("train")
    done = lab(
        "run",
        "-q",
        "-o",
        "run",
        "semicrf",
        "train",
        "--preset",
        "smoke",
        "--phones",
        "3",
        "--utterances",
        "8",
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run", done.stdout


def test_a_training_leaves_results_a_page_and_the_benchmarks_json(trained):
    root, said = trained
    assert "has the lowest test PER" in said and "The corpus is synthetic" in said
    document = json.loads((root / "tables" / "compare.json").read_text())
    assert document["task"] == "timit" and set(document) >= {
        "linear_crf_triton",
        "semi_crf",
        "config",
        "timestamp",
    }
    assert {
        "phone_error_rate",
        "boundary_f1_tolerances",
        "segment_f1",
        "training_time_per_epoch",
        "inference_time",
        "duration_stats",
    } <= set(document["semi_crf"])
    page = (root / "report.html").read_text()
    assert "Convergence" in page and "SYNTHETIC" in page.upper()


def test_the_manifest_knows_the_versions_and_every_file(trained):
    manifest = Run.open(trained[0]).manifest
    assert manifest.versions["torch"] == str(torch.__version__)
    assert all(record.outcome.ok and "result.json" in "".join(record.files) for record in manifest.steps)


def test_a_training_that_was_cut_short_is_a_row_with_its_reason_and_the_rest_is_analysed(trained, tmp_path):
    import shutil

    root = tmp_path / "run"
    shutil.copytree(trained[0], root)
    run = Run.open(root)
    record = run.manifest.steps[0]
    from lab.core.step import Outcome, Status

    record.outcome = Outcome(status=Status.oom, reason="out of memory")
    journal = root / record.step.folder / "epochs.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    found = semicrf.analyse(root, tmp_path / "out", run, print)
    assert found.status == "warn" and any("out of memory" in text for text in found.lacking)
    assert any("cut short" in text for text in found.lacking)
    assert "out of memory" in (tmp_path / "out" / "tables" / "results.csv").read_text()


def test_the_same_seed_gives_the_same_losses_and_other_backends_the_same_model(tmp_path):
    found = {}
    for name, backend in (("a", "torch"), ("b", "torch"), ("c", "naive")):
        train(LEAST, tmp_path / name, backend=backend)
        found[name] = json.loads((tmp_path / name / "epochs.jsonl").read_text())["loss"]
    assert found["a"] == found["b"] and found["a"] == pytest.approx(found["c"], rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "guide"},
        {"crf_reg": 0.1},
        {"over_long": "mask"},
        {"fixed_length": 12},
    ],
    ids=str,
)
def test_every_variant_trains(changes, tmp_path):
    result = train(msgspec.structs.replace(LEAST, **changes), tmp_path)
    assert 0 <= result["test"]["boundary_f1"] <= 1


def test_training_learns(tmp_path):
    config = msgspec.structs.replace(LEAST, epochs=12, utterances=24, validate=False)
    train(config, tmp_path, model="linear")
    rows = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert (
        rows[-1]["loss"] < 0.8 * rows[0]["loss"]
        and rows[-1]["phone_error_rate"] < rows[0]["phone_error_rate"] + 0.1
    )


def test_a_gradient_that_is_not_finite_is_never_applied_and_ends_the_training_with_its_utterances(
    tmp_path, monkeypatch
):
    """Without the validation points nothing else stands between it and the weights."""
    sound, made = workload_train.load_corpus, workload_train.make_tagger
    taggers = []

    def broken(config):
        corpus = sound(config)
        corpus.train[3].features[1, 2] = np.nan
        return corpus

    monkeypatch.setattr(workload_train, "load_corpus", broken)
    monkeypatch.setattr(workload_train, "make_tagger", lambda *a: taggers.append(made(*a)) or taggers[0])
    config = msgspec.structs.replace(LEAST, validate=False, batch_size=2, epochs=3)
    with pytest.raises(StepFailed, match="score is nan, and numbers must not be NaN") as caught:
        train(config, tmp_path)
    assert "epoch 1, step " in caught.value.location and "train_00003" in caught.value.location
    assert all(bool(torch.isfinite(value).all()) for value in taggers[0].state_dict().values())
    assert not (tmp_path / "result.json").exists()


def test_numpy_metrics_and_the_head_agree_on_what_a_segment_is():
    from lab.rooms.semicrf.metrics import segments_of
    from lab.rooms.semicrf.model.head import run_starts

    labels = np.random.default_rng(0).integers(0, 2, 30)
    starts = run_starts(torch.from_numpy(labels)[None])[0]
    assert starts.nonzero()[:, 0].tolist() == [start for start, _, _ in segments_of(labels)]
