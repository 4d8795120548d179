"""Train a small model under `nan.guard`; the fourth batch holds one infinity, as a broken loader gives."""

import torch

from lab import nan

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with nan.guard(model, optimizer) as guard:
    for step in range(6):
        features = torch.randn(16, 8)
        if step == 3:
            features[5, 2] = float("inf")
        loss = torch.nn.functional.mse_loss(model(features), features.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(guard)
