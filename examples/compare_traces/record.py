"""Record one process: `record.py base|head TRACE`. In head, the norms are computed in float32."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

VERSION, TRACE = sys.argv[1], sys.argv[2]


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        if VERSION == "head":  # the change: correct, and slower
            norm = self.norm
            hidden = torch.nn.functional.layer_norm(
                x_BTC.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps
            ).to(x_BTC.dtype)
        else:
            hidden = self.norm(x_BTC)
        return x_BTC + self.down(torch.nn.functional.gelu(self.up(hidden)))


torch.manual_seed(0)
model = torch.nn.Sequential(*(Block(1024) for _ in range(2))).cuda().bfloat16()
batch_BTC = torch.randn(16, 1024, 1024, device="cuda", dtype=torch.bfloat16)
for _ in range(5):
    model(batch_BTC).sum().backward()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
    for step in range(3):
        with record_function(f"ProfilerStep#{step}"):
            model(batch_BTC).sum().backward()
            torch.cuda.synchronize()
profiler.export_chrome_trace(TRACE)
