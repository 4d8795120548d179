"""The profiled generation, on the GPU machine, one process per rank.

    python -m lab.rooms.kernels.workload.main --config kernels.json --out profile --device cuda
    python -m torch.distributed.run --nproc_per_node 2 -m lab.rooms.kernels.workload.main ...  (--tp)

Writes the files that `schema` lists, `rank{r}.log`, and `environment.json` (rank 0) into the folder. What
cannot work is refused before a model is loaded or downloaded; errors of CUDA and NCCL are reported with their
fix. Exit codes are those of lab.errors, 1 for any other exception. For torch 1.12 to 2.13.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.errors import ConfigError, UsageError
from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.cures import explained, host_env
from lab.rooms.kernels.preflight import Facts, refuse_here, version
from lab.workload.environment import describe_environment, gpu_state
from lab.workload.launch import available_bytes
from lab.workload.rank import RankContext, process_group
from lab.workload.start import leave_group, read_config, start, write_json

log = logging.getLogger("lab.workload")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the arguments, send this rank's output to its log, profile."""
    parser = argparse.ArgumentParser(prog="lab.rooms.kernels.workload", description="Profile one generation.")
    parser.add_argument("--config", required=True, type=Path, help="the run's kernels.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    args, context = start(parser, argv, own_log=True)
    config = read_config(args.config, KernelsConfig)
    try:
        run(config, args.out, context, args.device)
    except (RuntimeError, ValueError, AssertionError, OSError) as error:
        explanation = explained(error, host_env(), context.world_size)
        if explanation is None:
            raise
        raise explanation from error
    leave_group(context)


def run(config: KernelsConfig, out: Path, context: RankContext, device_kind: str) -> None:
    """Preflight, load, generate four times. Raises LabError for a configuration that cannot work here."""
    machine = facts(context.world_size)
    gpu = machine.names[context.local_rank] if context.local_rank < len(machine.names) else "no GPU"
    log.info("rank %d: python %s, torch %s, %s", context.rank, sys.executable, machine.torch, gpu)
    refuse_here(config, machine, wants_gpu=device_kind == "cuda")
    if context.world_size != config.tp:
        raise ConfigError(
            f"--tp {config.tp} needs {plural(config.tp, 'process')}, but {context.world_size} started",
            fix="start it with `lab run kernels profile`, or with torch.distributed.run",
        )
    device = device_of(device_kind, context)
    environment = describe_environment(context, device) if context.rank == 0 else {}
    if environment:
        environment["versions"] |= {"transformers": machine.transformers}
        environment |= {"config": msgspec.to_builtins(config), "device_names": list(machine.names)}
        environment["env"] |= {name: os.environ[name] for name in os.environ if name.startswith("CUBLAS")}
        write_json(out / "environment.json", environment)
    with process_group(context, device) if config.tp > 1 else contextlib.nullcontext():
        generated = generate(config, out, context, device)
    if environment:
        weights = f"{generated.weights}: {generated.weights_note}"
        outcome = {
            "versions": {**environment["versions"], "weights": weights},  # versions join the manifest
            "weights": generated.weights,
            "weights_note": generated.weights_note,
            "smi_after": gpu_state(),
        }
        write_json(out / "environment.json", {**environment, **outcome})


def generate(config: KernelsConfig, out: Path, context: RankContext, device: torch.device) -> Any:
    """Load, shard, and run the four passes.

    Imports here: transformers takes seconds, and preflight comes first.
    """
    from lab.rooms.kernels.workload.model import load
    from lab.rooms.kernels.workload.profile.passes import Run

    loaded = load(config, device, on_cpu=config.tp > 1)
    log.info("%s: %s", loaded.weights, loaded.note)
    if config.tp > 1:
        shard(loaded.model, config.tp, device)
    return Run(config, loaded, out, context.rank, device).all()


def device_of(kind: str, context: RankContext) -> torch.device:
    if kind == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // context.world_size))
        return torch.device("cpu")
    torch.cuda.set_device(context.local_rank)
    return torch.device("cuda", context.local_rank)


def facts(world_size: int) -> Facts:
    """Versions and GPUs of this Python; GPUs are queried only if torch sees any."""
    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    return Facts(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        archs=tuple(torch.cuda.get_arch_list()) if count else (),
        transformers=installed("transformers"),
        bitsandbytes=installed("bitsandbytes"),
        num_gpus=count,
        capabilities=tuple((gpu_properties.major, gpu_properties.minor) for gpu_properties in properties),
        mem_bytes=tuple(gpu_properties.total_memory for gpu_properties in properties),
        names=tuple(gpu_properties.name for gpu_properties in properties),
        host_mem_bytes=available_bytes(),
        has_dtensor=version(torch.__version__) >= (2, 3),
        world_size=world_size,
        env=host_env(),
    )


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# Tensor parallel by DTensor: the layers of Llama and BLOOM split over ranks, everything else whole on each
# rank. Column-parallel layers keep rows of their weight, row-parallel ones columns; a layer has one all-
# reduce after attention and one after the MLP. Tested over two gloo ranks against the unsharded model's
# logits and tokens.

# model_type -> (path of the layers, column-parallel, row-parallel), paths below a layer.
PLANS = {
    "llama": (
        "model.layers",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
        ("self_attn.o_proj", "mlp.down_proj"),
    ),
    "bloom": (
        "transformer.h",
        ("self_attention.query_key_value", "mlp.dense_h_to_4h"),
        ("self_attention.dense", "mlp.dense_4h_to_h"),
    ),
}


def shard(model: Any, ranks: int, device: torch.device) -> Any:
    """Split the CPU model over `ranks`, of which this process is one, and move it to `device`; changed in
    place.

    A layer moves when it is split, so a GPU never holds more than its share. Every rank has loaded the same
    weights, so nothing is sent. Raises UsageError for a model without a plan, or with heads that `ranks` does
    not divide.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    family = model.config.model_type
    if family not in PLANS:
        raise UsageError(f"no tensor parallel plan for {family!r}", fix=f"one of: {', '.join(PLANS)}")
    _check_heads(model.config, ranks)
    path, columns, rows = PLANS[family]
    mesh = init_device_mesh(device.type, (ranks,))
    for layer in model.get_submodule(path):
        styles = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
        _without_scatter(parallelize_module, layer, mesh, styles)
        _fit_attention(family, layer, ranks, dist.get_rank())
        layer.to(device)
    return model.to(device)


def _without_scatter(parallelize: Any, layer: nn.Module, mesh: Any, styles: dict[str, Any]) -> None:
    """Split without communication if this torch allows it, because every rank holds the same weights."""
    import inspect

    options = {"src_data_rank": None} if "src_data_rank" in inspect.signature(parallelize).parameters else {}
    parallelize(layer, mesh, styles, **options)


def _check_heads(config: Any, ranks: int) -> None:
    heads = {
        "attention heads": config.num_attention_heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
    }
    for part, count in heads.items():
        if count % ranks:
            raise UsageError(f"{ranks} ranks do not divide the {count} {part}", fix=f"a divisor of {count}")


def _fit_attention(family: str, layer: nn.Module, ranks: int, rank: int) -> None:
    """Attention reshapes by a stored number of heads: set it to that of this rank."""
    if family == "bloom":
        attention: Any = layer.get_submodule("self_attention")
        _divide(attention, ("num_heads", "hidden_size", "split_size"), ranks)
        hook = _alibi_of_rank(attention.num_heads, ranks, rank)
        attention.register_forward_pre_hook(hook, with_kwargs=True)
        return
    # transformers up to 4.46 reshapes by these; newer versions derive the number from the shape.
    _divide(layer.get_submodule("self_attn"), ("num_heads", "num_key_value_heads", "hidden_size"), ranks)


def _divide(module: nn.Module, names: tuple[str, ...], ranks: int) -> None:
    for name in names:
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, getattr(module, name) // ranks)


def _alibi_of_rank(heads: int, ranks: int, rank: int) -> Any:
    """A hook that cuts BLOOM's alibi (batch * all heads, 1, keys) down to this rank's `heads`.

    BLOOM's fused weight has rows [head, (q, k, v), dim], so a cut of its rows keeps whole heads.
    """

    def own(alibi: Tensor) -> Tensor:
        of_all = alibi.view(-1, heads * ranks, *alibi.shape[1:])
        return of_all[:, rank * heads : (rank + 1) * heads].reshape(-1, *alibi.shape[1:])

    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "alibi" in kwargs:
            return args, {**kwargs, "alibi": own(kwargs["alibi"])}
        return (*args[:2], own(args[2]), *args[3:]), kwargs  # (hidden_states, residual, alibi, ...)

    return hook


if __name__ == "__main__":
    main()
