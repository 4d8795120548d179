"""A small network under torch's own profiler."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A small network under torch's own profiler, with its execution trace."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

    folder = tmp_path_factory.mktemp("recording")
    net = torch.nn.Sequential(
        torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU("tanh")
    )
    ids = torch.arange(6).view(1, 6)

    def forward():
        x = net(ids)
        return (
            torch.cat([x.transpose(1, 2) * 0.5, x.transpose(1, 2)], dim=-1)[:, torch.tensor([0, 3])]
            .softmax(-1)
            .sum()
        )

    forward()
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    with (
        torch.no_grad(),
        profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
        ) as session,
        record_function("prefill"),
    ):
        forward()
    session.export_chrome_trace(str(folder / "trace.json"))
    observer.unregister_callback()
    return folder
