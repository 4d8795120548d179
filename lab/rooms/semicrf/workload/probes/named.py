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
from lab.rooms.semicrf.model.problem import inside
from lab.rooms.semicrf.model.segments import gold_score
from lab.rooms.semicrf.workload.cases import Partition
from lab.rooms.semicrf.workload.probes.kernel import Kernel


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
    for names, adapter in ADAPTERS:
        if names <= set(parameters):
            return adapter(name, target, device)
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

    def partition(
        score_BTC: Tensor, transition_CC: Tensor, duration_KC: Tensor, lengths_B: Tensor, **model: Any
    ) -> Tensor:
        ends = {end: model[end] for end in further}
        log_z_B = target(score_BTC, transition_CC, duration_KC, lengths_B.to(score_BTC.device), **ends)
        return checked(log_z_B, score_BTC)

    return Kernel(name, partition, device, ends=len(further) == 2)


def checked(log_z_B: Any, score_BTC: Tensor) -> Tensor:
    """What came back. Raises TypeError where that is not a differentiable log Z per sequence."""
    if not isinstance(log_z_B, Tensor) or tuple(log_z_B.shape) != (len(score_BTC),):
        shape = tuple(log_z_B.shape) if isinstance(log_z_B, Tensor) else type(log_z_B).__name__
        raise TypeError(f"it returned {shape}, and log Z is ({len(score_BTC)},), one number per sequence")
    if not log_z_B.requires_grad:
        raise TypeError("the log Z that it returned has no gradient")
    return log_z_B


def finite_padding(score_BTC: Tensor, lengths_B: Tensor) -> Tensor:
    """The scores, with 100 past the ends: these packages multiply by a mask, where NaN would stay."""
    return score_BTC.masked_fill(~inside(score_BTC.shape[1], lengths_B)[..., None], 100.0)


def with_first_transition(partition: Partition) -> Partition:
    """The model of flash-semicrf: the first segment pays the log-sum over sources of its transition."""

    def modelled(*, start_C: Tensor, transition_CC: Tensor, **model: Any) -> Tensor:
        first_C = start_C + torch.logsumexp(transition_CC, 0)
        return partition(start_C=first_C, transition_CC=transition_CC, **model)

    return modelled


def streaming(name: str, target: Any, device: torch.device) -> Kernel:
    """semi_crf_streaming_forward(cum_scores, transition, duration_bias, lengths, K) of flash-semicrf, and of
    torch-semimarkov before it, whose longest duration is K - 1 and whose bias has a row for 0.
    """
    shifted = name.startswith("torch_semimarkov")

    def partition(
        score_BTC: Tensor, transition_CC: Tensor, duration_KC: Tensor, lengths_B: Tensor, **ends: Tensor
    ) -> Tensor:
        lengths_B = lengths_B.to(score_BTC.device)
        sums = nn.functional.pad(finite_padding(score_BTC, lengths_B).cumsum(1), (0, 0, 1, 0))
        bias = nn.functional.pad(duration_KC, (0, 0, 1, 0)) if shifted else duration_KC
        return checked(target(sums, transition_CC, bias, lengths_B, len(bias)), score_BTC)

    return Kernel(name, partition, device, ends=False, modelled=with_first_transition)


def flash_head(name: str, target: Any, device: torch.device) -> Kernel:
    """SemiMarkovCRFHead(num_classes, max_duration).forward(hidden_states, lengths)["partition"]."""

    def partition(
        score_BTC: Tensor, transition_CC: Tensor, duration_KC: Tensor, lengths_B: Tensor, **ends: Tensor
    ) -> Tensor:
        head = target(score_BTC.shape[2], len(duration_KC)).to(device)
        parameters = {"transition": transition_CC, "duration_dist.duration_bias": duration_KC}
        unknown = set(parameters) - set(dict(head.named_parameters()))
        if unknown:
            raise TypeError(f"the head has no parameter {', '.join(sorted(unknown))}")
        lengths_B = lengths_B.to(device)
        inputs = (finite_padding(score_BTC, lengths_B), lengths_B)
        return checked(torch.func.functional_call(head, parameters, inputs)["partition"], score_BTC)

    return Kernel(name, partition, device, ends=False, modelled=with_first_transition)


def struct(name: str, target: Any, device: torch.device) -> Kernel:
    """SemiMarkovCRF(log_potentials, lengths).partition of torch-struct: (B, N - 1, K, C, C) by the boundary
    that a segment starts at, its duration, the label at its end and the one before it. Lengths count
    boundaries, and the row of duration 0 is not used.
    """

    def partition(
        score_BTC: Tensor,
        transition_CC: Tensor,
        duration_KC: Tensor,
        lengths_B: Tensor,
        start_C: Tensor,
        end_C: Tensor,
    ) -> Tensor:
        lengths_B = lengths_B.to(device)
        score_BTC = finite_padding(score_BTC, lengths_B)[:, : int(lengths_B.max())]  # one must be that long
        batch, frames, labels = score_BTC.shape
        sums = nn.functional.pad(score_BTC.cumsum(1), (0, 0, 1, 0))
        first_CC = (start_C - torch.tensor(float(labels)).log())[:, None].expand(-1, labels)
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
        return checked(target(torch.stack(rows, 1), lengths=lengths_B + 1).partition, score_BTC)

    return Kernel(name, partition, device)


IMPOSSIBLE = -1e9
"""torch-struct's own zero: it knows no -inf."""


def chain(name: str, target: Any, device: torch.device, *, make: Any, call: Any, names: str) -> Kernel:
    """A linear chain whose forward gives the log-likelihood of labels: log Z is their score less it. `names`
    are the package's names of the transition, the start and the end.
    """

    def partition(
        score_BTC: Tensor, transition_CC: Tensor, duration_KC: Tensor, lengths_B: Tensor, **ends: Tensor
    ) -> Tensor:
        model = {"transition_CC": transition_CC, **ends}
        lengths_B = lengths_B.to(device)
        mask_BT = inside(score_BTC.shape[1], lengths_B)
        labels_BT = torch.zeros_like(mask_BT, dtype=torch.int64)
        scores = {"score_BTC": score_BTC, "duration_KC": duration_KC, **model}
        plain = {key: value.detach() for key, value in scores.items()}
        paths = api.viterbi(**plain, lengths_B=lengths_B, backend="torch")[1]
        for row_T, path in zip(labels_BT, paths, strict=True):
            for start, end, label in path:
                row_T[start:end] = label
        crf = target(score_BTC.shape[2], **make(device)).to(device)
        model_names = ("transition_CC", "start_C", "end_C")
        values = {
            title: model[parameter] for title, parameter in zip(names.split(), model_names, strict=True)
        }
        arguments = (finite_padding(score_BTC, lengths_B), labels_BT, mask_BT)
        log_p_B = torch.func.functional_call(crf, values, arguments, call)
        starts_BT = torch.ones_like(mask_BT)
        gold_B = gold_score(
            score_BTC, transition_CC, duration_KC * 0, labels_BT, starts_BT, lengths_B, **ends
        )
        return checked(gold_B - log_p_B, score_BTC)

    return Kernel(name, partition, device, longest=1, infeasible=False)


TORCH_CRF = partial(
    chain,
    make=lambda device: {"use_gpu": device.type == "cuda"},
    call={},
    names="trans_matrix start_trans end_trans",
)
"""CRF(num_labels).forward(h, labels, mask) of TorchCRF."""
PYTORCH_CRF = partial(
    chain,
    make=lambda device: {"batch_first": True},
    call={"reduction": "none"},
    names="transitions start_transitions end_transitions",
)
"""CRF(num_tags, batch_first).forward(emissions, tags, mask, reduction) of pytorch-crf."""
ADAPTERS: tuple[tuple[set[str], Callable[[str, Any, torch.device], Kernel]], ...] = (
    ({"cum_scores", "duration_bias", "K"}, streaming),
    ({"log_potentials"}, struct),
    ({"num_classes", "max_duration"}, flash_head),
    ({"num_labels", "use_gpu"}, TORCH_CRF),
    ({"num_tags", "batch_first"}, PYTORCH_CRF),
)
"""By the parameters that tell each."""
