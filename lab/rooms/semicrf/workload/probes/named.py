"""The user's kernel by its name, `package.module:function`, as a partition function that can be probed.

    function(score_BTC, transition_CC, duration_KC, lengths_B) -> log Z (B,)

with `start_C` and `end_C` by name where it has such parameters: scores (B, T, C), transition[i, j] from label
i to j, duration[k - 1, c] of a segment of k frames, lengths (B,). A class is made without arguments, and a
module is called like a function. Functions and modules of torch-struct, flash-semicrf, torch-semimarkov,
TorchCRF and pytorch-crf are called as their packages document, which their parameters' names tell.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import UsageError
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.model.problem import inside, make_problem
from lab.rooms.semicrf.model.segments import gold_score, marked
from lab.rooms.semicrf.workload.probes.kernel import Kernel
from lab.rooms.semicrf.workload.training import with_first_transition

Model = dict[str, Tensor]
"""All but the scores of frames, by the names of api.py."""


def kernel_named(name: str, device: torch.device) -> Kernel:
    """Raises UsageError where the object is missing, or its parameters are not documented ones."""
    module_name, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in path.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--partition {name}: {error}", fix="package.module:function, importable from here"
        ) from error
    if not path or not callable(target):
        raise UsageError(f"--partition {name} is not callable", fix="package.module:function")
    parameters = parameters_of(target)
    for names, call, options in PACKAGES:
        if names <= set(parameters):
            return adapted(name, device, partial(of_package, partial(call, target)), **options)
    if isinstance(target, type):
        target = target()
        parameters = parameters_of(target)
    return documented(name, target, device, parameters)


def parameters_of(target: Any) -> list[str]:
    try:
        return list(inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters)
    except (TypeError, ValueError):
        return []


def documented(name: str, target: Any, device: torch.device, parameters: list[str]) -> Kernel:
    target = target.to(device) if isinstance(target, nn.Module) else target
    further = [end for end in ("start_C", "end_C") if end in parameters]

    def call(score_BTC: Tensor, lengths_B: Tensor, model: Model) -> Any:
        ends = {end: model[end] for end in further}
        return target(score_BTC, model["transition_CC"], model["duration_KC"], lengths_B, **ends)

    return adapted(name, device, call, ends=len(further) == 2)


def adapted(name: str, device: torch.device, call: Callable[..., Any], **options: Any) -> Kernel:
    """The kernel that `call(score_BTC, lengths_B, model)` is, with lengths on the scores' device."""

    def partition(score_BTC: Tensor, lengths_B: Tensor, **model: Tensor) -> Tensor:
        return checked(call(score_BTC, lengths_B.to(score_BTC.device), model), len(score_BTC))

    return Kernel(name, partition, device, **options)


def checked(log_z_B: Any, batch: int) -> Tensor:
    """What came back. Raises TypeError where that is not a differentiable log Z per sequence."""
    if not isinstance(log_z_B, Tensor) or tuple(log_z_B.shape) != (batch,):
        shape = tuple(log_z_B.shape) if isinstance(log_z_B, Tensor) else type(log_z_B).__name__
        raise TypeError(f"it returned {shape}, and log Z is ({batch},), one number per sequence")
    if not log_z_B.requires_grad:
        raise TypeError("the log Z that it returned has no gradient")
    return log_z_B


# Known packages, each called with itself, the scores, the lengths and the rest of the model.


def of_package(call: Callable[..., Any], score_BTC: Tensor, lengths_B: Tensor, model: Model) -> Any:
    """With scores of 100 past the ends: these packages multiply by a mask, where NaN would stay."""
    inside_BT1 = inside(score_BTC.shape[1], lengths_B)[..., None]
    return call(score_BTC.masked_fill(~inside_BT1, 100.0), lengths_B, model)


def streaming(function: Any, score_BTC: Tensor, lengths_B: Tensor, model: Model) -> Any:
    """semi_crf_streaming_forward(cum_scores, transition, duration_bias, lengths, K) of flash-semicrf, and of
    torch-semimarkov before it, whose longest duration is K - 1 and whose bias has a row for 0.
    """
    below = int(function.__module__.startswith("torch_semimarkov"))
    sums, bias = (
        nn.functional.pad(value, (0, 0, rows, 0))
        for value, rows in ((score_BTC.cumsum(1), 1), (model["duration_KC"], below))
    )
    return function(sums, model["transition_CC"], bias, lengths_B, len(bias))


def flash_head(head: Any, score_BTC: Tensor, lengths_B: Tensor, model: Model) -> Any:
    """SemiMarkovCRFHead(num_classes, max_duration).forward(hidden_states, lengths)["partition"]."""
    names = {"transition": "transition_CC", "duration_dist.duration_bias": "duration_KC"}
    parameters = {title: model[name] for title, name in names.items()}
    module = head(score_BTC.shape[2], len(model["duration_KC"])).to(score_BTC.device)
    unknown = set(parameters) - set(dict(module.named_parameters()))
    if unknown:
        raise TypeError(f"the head has no parameter {', '.join(sorted(unknown))}")
    return torch.func.functional_call(module, parameters, (score_BTC, lengths_B))["partition"]


def struct(distribution: Any, score_BTC: Tensor, lengths_B: Tensor, model: Model) -> Any:
    """SemiMarkovCRF(log_potentials, lengths).partition of torch-struct: (B, N - 1, K, C, C) by the boundary
    that a segment starts at, its duration, the label at its end and the one before it. Lengths count
    boundaries, and the row of duration 0 is not used.
    """
    score_BTC = score_BTC[:, : int(lengths_B.max())]  # one must be that long
    batch, frames, labels = score_BTC.shape
    sums = nn.functional.pad(score_BTC.cumsum(1), (0, 0, 1, 0))
    duration_KC, transition_CC, end_C = (model[name] for name in ("duration_KC", "transition_CC", "end_C"))
    first_CC = (model["start_C"] - torch.tensor(float(labels)).log())[:, None].expand(-1, labels)
    rows = []
    for s in range(frames):
        before_CC = transition_CC.T if s else first_CC  # [label, label before]
        row = [score_BTC.new_full((batch, labels, labels), IMPOSSIBLE)]
        for k in range(1, len(duration_KC) + 1):
            if s + k > frames:
                row.append(row[0])
                continue
            lasting_BC = sums[:, s + k] - sums[:, s] + duration_KC[k - 1]
            lasting_BC = lasting_BC + torch.where((lengths_B == s + k)[:, None], end_C, 0.0)
            lasting_BC = lasting_BC.masked_fill((s + k > lengths_B)[:, None], IMPOSSIBLE)
            row.append((lasting_BC[..., None] + before_CC).clamp(min=IMPOSSIBLE))
        rows.append(torch.stack(row, 1))
    return distribution(torch.stack(rows, 1), lengths=lengths_B + 1).partition


IMPOSSIBLE = -1e9
"""torch-struct's own zero: it knows no -inf."""


def chain(
    crf: Any,
    score_BTC: Tensor,
    lengths_B: Tensor,
    model: Model,
    *,
    names: dict[str, str],
    make: Callable[[torch.device], dict[str, Any]],
    call: dict[str, Any],
) -> Any:
    """A linear chain whose forward gives the log-likelihood of labels: log Z is their score less it. `names`
    are the package's names of the parameters.
    """
    mask_BT = inside(score_BTC.shape[1], lengths_B)
    problem = make_problem(score_BTC, lengths_B=lengths_B, **model).detached()
    paths = api.viterbi(**problem.arguments(), backend="torch")[1]
    labels_BT = marked(paths, problem)[0].to(score_BTC.device)
    module = crf(score_BTC.shape[2], **make(score_BTC.device)).to(score_BTC.device)
    values = {title: model[name] for title, name in names.items()}
    log_p_B = torch.func.functional_call(module, values, (score_BTC, labels_BT, mask_BT), call)
    gold = {"labels_BT": labels_BT, "starts_BT": torch.ones_like(mask_BT), "lengths_B": lengths_B}
    gold_B = gold_score(score_BTC, **gold, **{**model, "duration_KC": model["duration_KC"] * 0})
    return gold_B - log_p_B


FLASH = {"ends": False, "modelled": with_first_transition}
CHAIN = {"longest": 1, "infeasible": False}
PACKAGES: tuple[tuple[set[str], Callable[..., Any], dict[str, Any]], ...] = (
    ({"cum_scores", "duration_bias", "K"}, streaming, FLASH),
    ({"log_potentials"}, struct, {}),
    ({"num_classes", "max_duration"}, flash_head, FLASH),
    # CRF(num_labels).forward(h, labels, mask) of TorchCRF.
    (
        {"num_labels", "use_gpu"},
        partial(
            chain,
            names={"trans_matrix": "transition_CC", "start_trans": "start_C", "end_trans": "end_C"},
            make=lambda device: {"use_gpu": device.type == "cuda"},
            call={},
        ),
        CHAIN,
    ),
    # CRF(num_tags, batch_first).forward(emissions, tags, mask, reduction) of pytorch-crf.
    (
        {"num_tags", "batch_first"},
        partial(
            chain,
            names={
                "transitions": "transition_CC",
                "start_transitions": "start_C",
                "end_transitions": "end_C",
            },
            make=lambda device: {"batch_first": True},
            call={"reduction": "none"},
        ),
        CHAIN,
    ),
)
"""The parameters that tell each, how it is called, and what its kernel lacks."""
