"""A diagnosis names each planted fault, and finds nothing in a sound model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.semicrf import verdict  # noqa: E402
from lab.rooms.semicrf.config import PLAINER, DiagnoseConfig  # noqa: E402
from lab.rooms.semicrf.model.api import resolve_backend  # noqa: E402
from lab.rooms.semicrf.workload import diagnose as workload_diagnose  # noqa: E402
from lab.rooms.semicrf.workload.probes import kernel, linter  # noqa: E402
from tests.rooms.semicrf.workload.least import LEAST  # noqa: E402
from tests.rooms.semicrf.workload.probes.planted import faulty  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.fixture
def brief(monkeypatch):
    """A diagnosis that looks at less of the same."""
    monkeypatch.setattr(workload_diagnose, "FRAMES", 12)
    monkeypatch.setattr(linter, "DRIFT_STEPS", 3)
    monkeypatch.setattr(kernel, "GROWTH", (20, 40))
    monkeypatch.setattr(kernel, "ENUMERATED", 100)


@pytest.fixture
def plant(monkeypatch):
    """A function that puts a fault into a backend's trainings and probes; the other ones stay sound."""
    make_tagger, lab_kernel = workload_diagnose.make_tagger, workload_diagnose.lab_kernel

    def put(fault, tested):
        def tagger(config, corpus, model, backend):
            made = make_tagger(config, corpus, model, backend)
            made.head.partition = faulty(fault if backend == tested else None)
            return made

        def probed(backend, device, case):
            kernel = lab_kernel(backend, device, case)
            return replace(kernel, partition=faulty(fault if backend == tested else None, kernel.partition))

        monkeypatch.setattr(workload_diagnose, "make_tagger", tagger)
        monkeypatch.setattr(workload_diagnose, "lab_kernel", probed)

    return put


def diagnosed(out, objective="consistent"):
    """The parts of a diagnosis of the default backend, as the room runs them."""
    train = msgspec.structs.replace(LEAST, models=["semicrf"], objective=objective)
    config = DiagnoseConfig(train=train, repeats=1, orders=1, steps=2)
    (out / "config.json").write_bytes(msgspec.json.encode(config))
    found = {}
    for part in ("cells", "reference", "probes"):
        words = ["--config", str(out / "config.json"), "--part", part, "--backend", "auto", "--out", str(out)]
        workload_diagnose.main(words)
        found[part] = json.loads((out / f"{part}.json").read_text(), parse_constant=refuse)
    told = found["probes"]
    pair = (told["tested"], told["reference"])
    assert pair == (resolve_backend("auto", torch.zeros(1, 1, 1)), PLAINER[pair[0]])
    assert {row["backend"] for row in found["reference"]["cells"]} == {pair[1]}
    cells = [*found["cells"]["cells"], *found["reference"]["cells"]]
    return verdict.diagnose(cells, told["probes"], *pair), told


def refuse(word):
    raise AssertionError(f"JSON has no {word}")


RIGHT = {
    "overread": ("boundary", "reads beyond the mask"),
    "race": ("race", "different bits for the same input"),
    "stale": ("kernel", "is wrong in the same way every time"),
    "drift": ("objective", "a probability sums to 1"),
}


@pytest.mark.parametrize("fault", RIGHT)
def test_each_planted_fault_is_named_rightly(fault, plant, tmp_path, brief):
    if fault != "drift":
        plant(fault, resolve_backend("auto", torch.zeros(1, 1, 1)))
    found, told = diagnosed(tmp_path, "guide" if fault == "drift" else "consistent")
    cause, words = RIGHT[fault]
    assert found.cause == cause and words in found.sentences[0], found.sentences
    if fault != "drift":
        assert told["reproducer"]["sequences"] == 1 and (tmp_path / "reproducer" / "case.npz").exists()


def test_a_fault_that_leaves_everything_finite_fails_the_trainings_by_its_mass(plant, tmp_path, brief):
    plant("stale", "torch")
    config = DiagnoseConfig(
        train=msgspec.structs.replace(LEAST, models=["semicrf"], backends=["torch"]),
        repeats=1,
        orders=1,
        steps=2,
    )
    cells = workload_diagnose.cells(config, "torch", CPU, tmp_path)["cells"]
    told = (
        "RuntimeError: Posterior mass is not 1 in CRF backward (PyTorch): worst error 6.5e-01 [first b=0 t="
    )
    assert all(cell["message"].startswith(told) for cell in cells), [cell["message"] for cell in cells]
    beside = workload_diagnose.cells(config, "naive", CPU, tmp_path)["cells"]
    assert {cell["outcome"] for cell in beside} == {"passed"}


def test_a_sound_model_has_no_fault(tmp_path, brief):
    found, told = diagnosed(tmp_path)
    assert found.cause == "none", found.evidence
    assert told["reproducer"] is None


def test_the_users_kernel_is_imported_from_where_the_command_ran(tmp_path, brief, monkeypatch):
    (tmp_path / "own_kernel.py").write_text(
        "from lab.rooms.semicrf.model import api\n"
        "def wrong(score, transition, duration, lengths):\n"
        "    return api.log_partition(score, transition.T, duration, lengths, backend='torch')\n"
    )
    train = msgspec.structs.replace(LEAST, models=["semicrf"])
    name = "own_kernel:wrong"
    config = DiagnoseConfig(train=train, partition=name, import_path=str(tmp_path))
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["--config", str(tmp_path / "config.json"), "--part", "partition", "--backend", "auto"]
    workload_diagnose.main([*words, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "partition.json").read_text(), parse_constant=refuse)
    found = verdict.of_kernel(rows["probes"], name)
    assert rows["tested"] == name and found.status == "fail"
    assert found.sentences[0].startswith(f"{name} fails at the probe 'transitions': log Z of sequence 0 is ")
