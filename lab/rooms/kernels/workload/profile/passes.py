"""One generation, four times: to warm up, by the clock, under the profiler, under the recorder.

Generation is greedy, so all passes do the same. Every forward is a range `prefill`, `decode_1`, `decode_2`
... in the trace. The profiled pass has no other hooks; the recorded pass also has those for modules and
shapes.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import inspect
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from lab.core.files import replacing, write_atomic
from lab.errors import writing
from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.schema import Arg, Forward, Generation, LinearShape
from lab.rooms.kernels.trails import write_lines
from lab.rooms.kernels.workload.model import Loaded, count_params, encode, local
from lab.rooms.kernels.workload.recorder import Recorder, recording, short
from lab.rooms.kernels.workload.replay.machine import read_switches


class ShapeLog:
    """Distinct calls of every Linear by its path, in `lines`, until `remove` is called."""

    def __init__(self, model: nn.Module, rank: int, recorder: Recorder) -> None:
        self.lines: dict[bytes, LinearShape] = {}
        self._rank, self._recorder = rank, recorder
        linears = [(path, one) for path, one in model.named_modules() if isinstance(one, nn.Linear)]
        self._hooks = [one.register_forward_hook(self._hook(path)) for path, one in linears]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, path: str) -> Any:
        def note(module: Any, args: Any, result: Any) -> None:
            phase = self._recorder.phase
            line = LinearShape(
                rank=self._rank,
                phase=phase,
                module_path=path,
                cls=type(module).__name__,
                in_=[shape_of(arg) for arg in args],
                out=[shape_of(result)],
                weight_shape_local=list(local(module.weight).shape),
                weight_placement=placement(module.weight),
            )
            key = msgspec.json.encode(line)
            if key in self.lines:
                self.lines[key].count += 1
            else:
                self.lines[key] = line

        return note


def shape_of(tensor: Any) -> Arg:
    """Shape, strides and dtype of this rank's part; `value` is the placement of a DTensor."""
    part = local(tensor)
    return Arg(
        kind="tensor",
        src="recorder",
        dtype=short(part.dtype),
        shape=list(part.shape),
        stride=list(part.stride()),
        value=placement(tensor) or None,
    )


def placement(tensor: Any) -> str:
    return " ".join(str(one) for one in getattr(tensor, "placements", ()))


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
        # Random weights end their text by chance, which must not change the number of tokens.
        self.fixed = config.fixed_tokens or loaded.weights == "random"

    def all(self) -> Generation:
        """All four passes -> what was generated. Files are written whole or not at all."""
        self.generate()
        log.info("warmed up; %d tokens of prompt, by %s", self.prompt.shape[1], self.tokens_by)
        unprofiled_s = self.timed()
        tokens, forwards = self.profiled()
        self.recorded()
        generation = self.describe(tokens, forwards, unprofiled_s)
        text = msgspec.json.format(msgspec.json.encode(generation))
        write_atomic(self.out / f"generation_rank{self.rank}.json", text)
        counts = generation.new_tokens, len(forwards)
        log.info("%d new tokens in %d forwards; %.3f s unprofiled", *counts, unprofiled_s)
        return generation

    def generate(self) -> list[int]:
        """The ids after the prompt."""
        settings = self.loaded.model.generation_config
        if self.fixed:
            settings.eos_token_id = None
        options = {} if settings.pad_token_id is not None else {"pad_token_id": 0}
        with torch.no_grad():
            ids = self.loaded.model.generate(
                self.prompt,
                attention_mask=torch.ones_like(self.prompt),
                do_sample=False,
                num_beams=1,
                use_cache=True,
                max_new_tokens=self.config.max_new_tokens,
                **options,
            )
        self.synchronize()
        return [int(one) for one in ids[0, self.prompt.shape[1] :]]

    def timed(self) -> float:
        start = time.perf_counter()
        self.generate()
        return time.perf_counter() - start

    def profiled(self) -> tuple[list[int], list[Forward]]:
        """The pass under the profiler -> tokens and forwards; writes the trace and the execution trace."""
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
            shapes = ShapeLog(model, self.rank, recorder)
            with recording(recorder, model), self.marks.on(lambda name: phase_of(recorder, name)):
                self.generate()
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
    """What selects an op's kernel besides its arguments: a replay must restore it."""
    switches = {name: _plain(value) for name, value in read_switches().items()}
    return {
        "grad": False,
        "autocast": torch.is_autocast_enabled(),
        **switches,
    }  # generation runs under no_grad


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class Marks:
    """Runs each forward of the top module inside a context manager made from the forward's name."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.names = model, list[str]()

    @contextlib.contextmanager
    def on(self, make: Any) -> Iterator[None]:
        """Within the block, forward i runs inside `make("prefill")` or `make("decode_i")`."""
        self.names.clear()
        opened: list[Any] = []

        def enter(_module: nn.Module, _args: Any) -> None:
            self.names.append(f"decode_{len(self.names)}" if self.names else "prefill")
            opened.append(make(self.names[-1]))
            opened[-1].__enter__()

        def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
            opened.pop().__exit__(None, None, None)

        hooks = [self.model.register_forward_pre_hook(enter), self.model.register_forward_hook(leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def forwards(self, prompt_tokens: int) -> list[Forward]:
        return [
            Forward(name=name, phase=name.split("_")[0], forward=i, tokens_in=1 if i else prompt_tokens)
            for i, name in enumerate(self.names)
        ]


@contextlib.contextmanager
def phase_of(recorder: Recorder, name: str) -> Iterator[None]:
    """Set the recorder's phase and forward inside the block; outside all blocks there is none."""
    recorder.phase = name.split("_")[0]
    recorder.forward = int(name.split("_")[1]) if "_" in name else 0
    try:
        yield
    finally:
        recorder.phase, recorder.forward = "", -1


@contextlib.contextmanager
def tracing(out: Path, rank: int, device: torch.device, record_shapes: bool) -> Iterator[Any]:
    """Profile the block; call the yielded function after it to write the traces.

    The observer ends with the block, whatever ends it: a process group is left only after that.
    """
    draft = out / f".draft_trace_rank{rank}.json.gz"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    observer, nodes = execution_trace_observer(out / f".draft_execution_trace_rank{rank}.json")
    options = {"execution_trace_observer": observer} if observer else {}

    def keep() -> None:
        with writing(draft):
            profiler.export_chrome_trace(str(draft))
            if not draft.stat().st_size:  # torch does not report that it could not write
                raise OSError(errno.ENOSPC, "the trace could not be written", str(draft))
            draft.replace(out / f"trace_rank{rank}.json.gz")
        if observer:
            _pack(nodes, out / f"execution_trace_rank{rank}.json.gz")

    with contextlib.ExitStack() as ending:
        if observer:
            ending.callback(observer.unregister_callback)
        profiler = ending.enter_context(
            profile(activities=activities, record_shapes=record_shapes, **options)
        )
        yield keep


def execution_trace_observer(path: Path) -> tuple[Any, Path]:
    """torch's own observer, or None before torch 2.3; and the file it writes."""
    if "execution_trace_observer" not in inspect.signature(profile.__init__).parameters:
        log.info("torch %s has no execution trace: arguments come from the recorder", torch.__version__)
        return None, path
    from torch.profiler import ExecutionTraceObserver

    return ExecutionTraceObserver().register_callback(str(path)), path


def _pack(nodes: Path, target: Path) -> None:
    with (
        nodes.open("rb") as plain,
        replacing(target) as file,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed)
    nodes.unlink()
