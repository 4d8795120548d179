"""Record three training steps of a small Transformer with torch.profiler, as one compressed trace."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

torch.manual_seed(0)
has_gpu = torch.cuda.is_available()
device = "cuda" if has_gpu else "cpu"
activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 2).to(device, torch.bfloat16 if has_gpu else torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=has_gpu)
batch_BTC = torch.randn(8, 512, 1024, device=device, dtype=next(model.parameters()).dtype)


def train_step() -> None:
    with record_function("forward"):
        loss = model(batch_BTC).float().square().mean()
    with record_function("backward"):
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


for _ in range(3):
    train_step()
with profile(activities=activities, record_shapes=True) as profiler:
    for step in range(3):
        with record_function(f"ProfilerStep#{step}"):
            train_step()
            if has_gpu:
                torch.cuda.synchronize()
profiler.export_chrome_trace(sys.argv[1])
