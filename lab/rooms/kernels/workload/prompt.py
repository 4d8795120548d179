"""The prompt as token ids: by the checkpoint's tokenizer, or one stable id per word."""

from __future__ import annotations

import re
import zlib

from lab.rooms.kernels.config import MODELS, KernelsConfig, known
from lab.rooms.kernels.cures import first_line
from lab.rooms.kernels.workload.model import Loaded
from lab.workload.models import revision_to_load


def prompt_of(config: KernelsConfig) -> str:
    model = known(config.model)
    return config.prompt or (model.prompt if model else MODELS["bloom-560m"].prompt)


def encode(loaded: Loaded, config: KernelsConfig, vocab_size: int) -> tuple[list[int], str]:
    """(ids of the prompt, how they were made). Without a tokenizer each word and mark has one stable id."""
    text = prompt_of(config)
    if loaded.weights != "checkpoint":
        return word_ids(text, vocab_size), "one id per word"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(loaded.note, revision=revision_to_load(loaded.note))
    except (OSError, ValueError, ImportError) as error:  # the model still runs, on other tokens
        reason = f"one id per word, because the tokenizer cannot be loaded: {first_line(error)}"
        return word_ids(text, vocab_size), reason
    return [int(number) for number in tokenizer(text)["input_ids"]], "the checkpoint's tokenizer"


def word_ids(text: str, vocab_size: int) -> list[int]:
    """One id in [10, vocab_size) per word and mark; ids below 10 are special in most models."""
    words = re.findall(r"\w+|[^\w\s]", text) or ["."]
    return [10 + zlib.crc32(word.encode()) % (vocab_size - 10) for word in words]
