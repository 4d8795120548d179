"""Text to tokens and back: bytes for random-weight models, the hub's own for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class ByteTokenizer:
    """UTF-8 bytes as tokens: 0 pads, 1 begins, 2 ends, byte b is b + 3. Needs no file and no vocabulary."""

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(input_ids, attention_mask), both (texts, longest), padded on the left."""
        rows = [[1, *(byte + 3 for byte in text.encode())] for text in texts]
        longest = max(map(len, rows))
        ids = [[0] * (longest - len(row)) + row for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(ids), torch.tensor(mask)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes among `ids`; a token that is not a byte shows as <number>."""
        parts: list[bytes] = []
        for token in ids:
            if 3 <= token < 259:
                parts.append(bytes([token - 3]))
            elif token > 2:
                parts.append(f"<{token}>".encode())
        return b"".join(parts).decode("utf-8", "replace")


class HubTokenizer:
    """A tokenizer of transformers with the same two methods."""

    def __init__(self, inner: Any) -> None:
        inner.padding_side = "left"
        if inner.pad_token is None:
            inner.pad_token = inner.eos_token
        self._inner = inner

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        encoded = self._inner(list(texts), return_tensors="pt", padding=True)
        return encoded["input_ids"], encoded["attention_mask"]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=True))
