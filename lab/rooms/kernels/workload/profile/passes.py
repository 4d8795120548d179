"""passes"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import record_function

from lab.core.files import replacing, write_atomic
from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.schema import Forward, Generation
from lab.rooms.kernels.trails import write_lines
from lab.rooms.kernels.workload.model import Loaded, count_params
from lab.rooms.kernels.workload.plain import short
from lab.rooms.kernels.workload.profile.marks import Marks, phase_of
from lab.rooms.kernels.workload.profile.shapes import ShapeLog
from lab.rooms.kernels.workload.profile.tracing import tracing
from lab.rooms.kernels.workload.prompt import encode
from lab.rooms.kernels.workload.recorder import Recorder, recording

log = logging.getLogger("lab.workload")


class Run:
    """One rank's four passes and the files they leave in `out`."""

    def __init__(
        self, config: KernelsConfig, loaded: Loaded, out: Path, rank: int, device: torch.device
    ) -> None:
        self.config, self.loaded, self.out, self.rank, self.device = config, loaded, out, rank, device
        vocab_size = int(loaded.model.config.vocab_size)
        ids, self.tokens_by = encode(loaded, config, vocab_size)
        self.prompt = torch.tensor([ids], dtype=torch.long, device=device)
        self.marks = Marks(loaded.model)
        # Random weights end their text by chance: the count of tokens must not depend on it.
        self.fixed = config.fixed_tokens or loaded.weights == "random"

    def all(self) -> Generation:
        """Every pass in turn -> what was generated. The files are whole or not there at all."""
        self.generate()
        log.info("warmed up; %d tokens of prompt, by %s", self.prompt.shape[1], self.tokens_by)
        unprofiled_s = self.timed()
        tokens, forwards = self.profiled()
        self.recorded()
        generation = self.describe(tokens, forwards, unprofiled_s)
        write_atomic(
            self.out / f"generation_rank{self.rank}.json",
            msgspec.json.format(msgspec.json.encode(generation)),
        )
        log.info(
            "%d new tokens in %d forwards; %.3f s unprofiled",
            generation.new_tokens,
            len(forwards),
            unprofiled_s,
        )
        return generation

    def generate(self) -> list[int]:
        """The ids after the prompt."""
        settings = self.loaded.model.generation_config
        if self.fixed:
            settings.eos_token_id = None
        more = {} if settings.pad_token_id is not None else {"pad_token_id": 0}
        with torch.no_grad():
            ids = self.loaded.model.generate(
                self.prompt,
                attention_mask=torch.ones_like(self.prompt),
                do_sample=False,
                num_beams=1,
                use_cache=True,
                max_new_tokens=self.config.max_new_tokens,
                **more,
            )
        self.synchronize()
        return [int(one) for one in ids[0, self.prompt.shape[1] :]]

    def timed(self) -> float:
        start = time.perf_counter()
        self.generate()
        return time.perf_counter() - start

    def profiled(self) -> tuple[list[int], list[Forward]]:
        """The pass under the profiler -> its tokens and forwards; writes the trace and the execution trace."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (
            tracing(self.out, self.rank, self.device, self.config.record_shapes) as keep,
            self.marks.on(record_function),
        ):
            tokens = self.generate()
        forwards = self.marks.forwards(self.prompt.shape[1])
        keep()
        return tokens, forwards

    def recorded(self) -> None:
        """The pass under the recorder; writes every call, and every distinct call of a Linear."""
        model = self.loaded.model
        with replacing(self.out / f"recorded_ops_rank{self.rank}.jsonl") as file:
            recorder = Recorder(file.write)
            shapes = ShapeLog(model, self.rank, recorder) if self.config.shape_log else None
            with recording(recorder, model), self.marks.on(lambda name: phase_of(recorder, name)):
                self.generate()
        if shapes:
            shapes.remove()
            write_lines(self.out / f"linear_shapes_rank{self.rank}.jsonl", shapes.lines.values())
        log.info("recorded %d calls", recorder.count)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def describe(self, tokens: list[int], forwards: list[Forward], unprofiled_s: float) -> Generation:
        model = self.loaded.model
        return Generation(
            rank=self.rank,
            world_size=self.config.tp,
            model=self.config.model,
            weights=self.loaded.weights,
            weights_note=self.loaded.note,
            dtype=short(next(model.parameters()).dtype),
            device=str(self.device),
            num_params=count_params(model),
            prompt_tokens=self.prompt.shape[1],
            tokens_by=self.tokens_by,
            new_tokens=len(tokens),
            max_new_tokens=self.config.max_new_tokens,
            forwards=forwards,
            tokens=tokens,
            unprofiled_s=unprofiled_s,
            attn=str(getattr(model.config, "_attn_implementation", "") or ""),
            flags=torch_flags(),
        )


def torch_flags() -> dict[str, Any]:
    """What decides which kernel an op launches, beside its arguments: a replay has to restore it."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    matmul = cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    sdp = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled")
    return {
        "grad": False,  # generation runs under no_grad
        "autocast": torch.is_autocast_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_allow_tf32": cudnn.allow_tf32,
        **{f"matmul_{name}": _plain(getattr(matmul, name)) for name in names if _has(matmul, name)},
        **{name: getattr(cuda, name)() for name in sdp if hasattr(cuda, name)},
    }


def _has(module: Any, name: str) -> bool:
    """Whether this torch knows a flag; 1.12 answers with an AssertionError."""
    try:
        getattr(module, name)
    except (AttributeError, AssertionError):
        return False
    return True


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)
