"""prompt"""

from __future__ import annotations

import re
import zlib

from lab.rooms.kernels.config import MODELS, KernelsConfig, known
from lab.rooms.kernels.workload.model import Loaded


def prompt_of(config: KernelsConfig) -> str:
    model = known(config.model)
    return config.prompt or (model.prompt if model else MODELS["bloom-560m"].prompt)


def encode(loaded: Loaded, config: KernelsConfig, vocab_size: int) -> tuple[list[int], str]:
    """(ids of the prompt, how they were made): by the checkpoint's tokenizer, else a stable id for each word and mark."""
    text = prompt_of(config)
    if loaded.weights != "checkpoint":
        return word_ids(text, vocab_size), "an id for each word"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(loaded.note)
    except (OSError, ValueError, ImportError) as error:  # the model runs all the same, on other tokens
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return word_ids(text, vocab_size), f"an id for each word, since the tokenizer cannot be had: {first}"
    return [int(number) for number in tokenizer(text)["input_ids"]], "the checkpoint's tokenizer"


def word_ids(text: str, vocab_size: int) -> list[int]:
    """An id in [10, vocab_size) for each word and mark, the same everywhere; the first ten are special in most models."""
    words = re.findall(r"\w+|[^\w\s]", text) or ["."]
    return [10 + zlib.crc32(word.encode()) % (vocab_size - 10) for word in words]
