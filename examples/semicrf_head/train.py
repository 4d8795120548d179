"""Train an LSTM with a semi-CRF head on segments of random length, and decode segments again."""

import torch

from lab import semicrf

torch.manual_seed(0)
num_classes = 4
durations = torch.randint(2, 10, (32, 12))  # of 12 segments for each of 32 sequences; 48 frames are kept
classes = torch.randint(num_classes, (32, 12))
labels_BT = torch.stack(
    [row.repeat_interleave(d).repeat(2)[:48] for row, d in zip(classes, durations, strict=True)]
)
features_BTD = torch.eye(num_classes)[labels_BT] + 0.7 * torch.randn(32, 48, num_classes)
lengths_B = torch.full((32,), 48)

encoder = torch.nn.LSTM(num_classes, 16, batch_first=True, bidirectional=True)
head = semicrf.SemiCRF(num_classes=num_classes, max_duration=16, hidden_dim=32)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.02)
for step in range(40):
    loss = head(encoder(features_BTD)[0], lengths_B, labels_BT, reduction="token_mean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 13 == 0:
        print(f"step {step:2d}: {loss.item():.3f} nats per frame")

with torch.no_grad():
    decoded = head.decode(encoder(features_BTD)[0], lengths_B, per_frame=True)
print(f"frames labelled right: {(decoded == labels_BT).float().mean():.0%}")
