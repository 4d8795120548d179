"""The first producer of every planted fault is right, or unknown with its reason: never wrong or clean."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab import nan  # noqa: E402
from tests.rooms.nan.watch.guard.zoo_faults import FAULTS  # noqa: E402

# No module's border shows it in forward: without a replay the same module's backward is named.
ONLY_IN_BACKWARD = "an infinity that only backward shows"


def run(name, **options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FAULTS[name].run(lambda *args: nan.guard(*args, **options))


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_producer_is_right_or_unknown_with_its_reason(name):
    g, fault = run(name), FAULTS[name]
    assert g.status == "bad" and g.training.state.failed == 0, (g.status, g.notes, g.not_seen())
    first = g.first
    if first.unsure:
        old = not hasattr(torch._C, "_current_autograd_node") and "this torch does not tell" in first.unsure
        assert fault.unknown_allowed or old, first
        assert len(first.unsure) > 20
        return
    stages = (fault.stage, "act_grads") if name == ONLY_IN_BACKWARD else (fault.stage,)
    assert first.stage in stages and first.module == fault.module, g.sentence()
    assert fault.step is None or first.step == fault.step, g.sentence()
    if fault.name:
        assert fault.name in first.place


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_get_sequence_nr"), reason="this torch cannot look at operators"
)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.op])
def test_a_replay_names_the_operator_and_the_line(name):
    g, fault = run(name, on_bad="replay"), FAULTS[name]
    assert g.status == "bad" and g.training.state.failed == 0, g.notes
    first = g.first
    assert first.op is not None, first.op_missing
    # What a module's own code made in forward, and swallowed, came before the gradient that shows it.
    assert first.stage == (fault.stage if first.op.node or fault.stage != "act_grads" else "forward"), (
        g.sentence()
    )
    assert first.op.name.startswith(fault.op) and first.module == fault.module, g.sentence()
    assert "zoo_faults.py:" in first.op.line
    assert first.op.shapes and first.op.dtypes and not first.unsure
