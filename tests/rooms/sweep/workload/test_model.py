"""The two models: shapes, sizes, attention, and an untrained loss."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.sweep.config.load import load_train_config  # noqa: E402
from lab.rooms.sweep.config.train import TrainConfig  # noqa: E402
from lab.rooms.sweep.workload.model import (  # noqa: E402
    DecoderLayer,
    batch_loss,
    build_model,
    causal_attention,
    init_weights,
    make_batch,
    plain_causal_attention,
)

pytestmark = pytest.mark.torch


def test_fused_attention_equals_the_plain_one_and_sees_no_future() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 9, 8)
    fused = causal_attention(query, key, value)
    torch.testing.assert_close(fused, plain_causal_attention(query, key, value))
    value[..., -1, :] += 100
    torch.testing.assert_close(causal_attention(query, key, value)[..., :-1, :], fused[..., :-1, :])


def test_the_decoder_layer_keeps_its_shape() -> None:
    config = load_train_config("tiny", ["model.kind=decoder"]).model
    assert DecoderLayer(config, "cpu")(torch.randn(2, 5, config.model_dim)).shape == (2, 5, config.model_dim)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_fresh_model_scores_no_better_than_chance(kind: str) -> None:
    config = load_train_config("tiny", [f"model.kind={kind}"])
    model = build_model(config.model, "cpu")
    init_weights(model)
    generator = torch.Generator().manual_seed(1)
    batch = make_batch(config.model, config.dataset, 64, torch.device("cpu"), generator)
    chance = math.log(2) if kind == "encoder" else math.log(config.model.vocab_size)
    assert batch_loss(model, batch).item() == pytest.approx(chance, rel=0.1)


def test_the_published_model_has_the_published_size_without_memory() -> None:
    model = build_model(TrainConfig().model, "meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    # 359 MB of embedding: 350,000 rows of 256 floats.
    assert model.get_submodule("embedding").weight.numel() == 350_000 * 256
    # Per layer: attention 4 D^2 + 4 D, feed-forward 2 D H + H + D, two norms 4 D.
    layer = sum(parameter.numel() for parameter in model.get_submodule("layers.0").parameters())
    assert layer == 4 * 1024**2 + 2 * 1024 * 4608 + 4608 + 9 * 1024
