"""What NCCL's logs say about algorithms, protocols and tuners."""

from __future__ import annotations

import pytest

from lab.rooms.sweep.effective import Choice, read_logs
from tests.rooms.sweep.tuner.made import applied, tuning


def _said(tmp_path, text: str):
    (tmp_path / "nccl.log").write_text(text)
    return read_logs([tmp_path / "nccl.log"])


def test_a_call_is_told_by_words_or_by_numbers(tmp_path):
    old = "h:1:1 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008\n"
    said = _said(tmp_path, tuning(1024, "NVLS_TREE", "LL128", 15) + tuning(2048, "Tree", "Simple") + old)
    assert said.choice("allreduce", 1024) == Choice("nvls_tree", "ll128", 16)
    assert said.choice("allreduce", 2048) == Choice("tree", "simple", 28)
    assert said.choice("allgather", 37756928) == Choice("ring", "simple", -1)
    assert said.choice("allreduce", 4096) is None


def test_what_a_tuner_applied_and_what_became_of_the_plugin_is_read(tmp_path):
    plugin = "h:1:1 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v4 symbol.\n"
    said = _said(tmp_path, applied(1024, 12) * 3 + plugin + "x 16 coll channels, 0 nvls channels\n")
    assert said.applied["allreduce", 1024] == {Choice("ring", "simple", 12): 3}
    assert list(said.plugin) == ["Failed to find ncclTunerPlugin_v4 symbol."] and said.nvls == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\xff" * 100_000,
        "AllReduce: 9 Bytes -> Algo 77 proto 9",
        "AllReduce: x Bytes -> Algo RING proto LL",
    ],
)
def test_odd_logs_say_nothing(tmp_path, text):
    said = _said(tmp_path, text)
    assert not said.choices and not said.applied and said.nvls == -1


def test_the_log_counts_the_channels_of_most_communicators(tmp_path):
    lines = ["x NCCL INFO 28 coll channels, 28 collnet channels"] * 3 + ["NCCL INFO 4 coll channels"]
    (tmp_path / "nccl.a.log").write_bytes(b"\xff\x00 noise\n" + "\n".join(lines).encode())
    assert read_logs(tmp_path.glob("*.log")).channels == 28
    assert read_logs([]).channels == -1
