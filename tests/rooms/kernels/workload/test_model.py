"""Models from a folder, and what is refused; switches of torch are set and put back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.errors import MissingError, UsageError  # noqa: E402
from lab.rooms.kernels.config import KernelsConfig  # noqa: E402
from lab.rooms.kernels.workload.model import encode, load, word_ids  # noqa: E402
from lab.rooms.kernels.workload.replay.machine import read_switches, restored  # noqa: E402


def test_a_folder_with_a_checkpoint_runs_with_its_weights(tmp_path):
    device = torch.device("cpu")
    made = load(KernelsConfig(model="tiny-bloom", seed=5), device, on_cpu=True).model
    made.save_pretrained(tmp_path)
    config = KernelsConfig(model=str(tmp_path))
    found = load(config, device, on_cpu=False)
    assert (found.weights, found.note) == ("checkpoint", str(tmp_path))
    pairs = zip(made.state_dict().values(), found.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    ids, how = encode(found, config, 512)
    assert len(ids) == 7 and "tokenizer cannot be loaded" in how
    (tmp_path / "model.safetensors").unlink()
    assert load(config, device, on_cpu=True).weights == "random", "the architecture is still there"


def test_8_bit_without_a_checkpoint_is_refused_and_not_ignored():
    with pytest.raises(UsageError, match="8-bit weights need a checkpoint"):
        load(KernelsConfig(model="tiny-bloom", eight_bit=True), torch.device("cpu"), on_cpu=True)
    with pytest.raises(MissingError, match="--weights checkpoint"):
        load(KernelsConfig(model="tiny-bloom", weights="checkpoint"), torch.device("cpu"), on_cpu=True)
    ids = word_ids("Explain distributed training in one paragraph.", 512)
    assert len(ids) == 7 and all(10 <= number < 512 for number in ids)


def test_switches_are_set_for_the_replay_and_put_back():
    before = read_switches()["deterministic"]
    with restored({"deterministic": not before, "unheard_of": 1}) as unknown:
        assert torch.are_deterministic_algorithms_enabled() is not before
        assert unknown == []
    assert read_switches()["deterministic"] is before
