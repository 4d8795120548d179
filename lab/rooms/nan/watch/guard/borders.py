"""The loss, and gradients at module borders: what lies between the last clean gradient and the first bad one.

A hook on the autograd node of each module output takes the gradient that enters it. Only nodes are hooked, no
tensors, so that nothing is left on what the program can copy or save.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.forward import IN_BACKWARD, Forward, Label, recomputing
from lab.rooms.nan.watch.guard.gradients import AskedLoss, Collector, Taken
from lab.rooms.nan.watch.guard.replay import local
from lab.rooms.nan.watch.guard.step import StepState, named
from lab.rooms.nan.watch.roles import IN, OUT
from lab.rooms.nan.watch.shared import backwards
from lab.rooms.nan.watch.unseen_by_compile import hidden

_PREHOOKS = hasattr(getattr(torch.autograd.graph, "Node", None), "register_prehook")  # since torch 2.0
_current_node = getattr(torch._C, "_current_autograd_node", None)
HOOKED = "the program has a hook on that tensor, which may have made it; a replay names the hook's line"
MOST_NODES = 200_000  # of a graph that is searched for the uses of a tensor


@dataclass(frozen=True)
class Border:
    """One tensor that a module put out. It must not hold its node: the node's hook holds the border."""

    producer: int  # modules by their numbers: their names may change
    parent: int  # of the last that put it out: its own code may use the tensor too
    consumers: tuple[int, ...]  # modules that took it and did not pass it on, the outermost first
    root_leaf: str | None  # the name it has among the model's own outputs
    output_nr: int
    saved: Any  # of its forward, for a replay
    calls: Sequence[Sequence[Any]]  # of its forward: module, parent call, returned
    gave: tuple[int, ...]  # calls that put it out, the producer's first
    took: tuple[int, ...]  # calls of its consumers
    is_whole: bool  # whether all calls that gave or took it are known: it was read with the whole forward
    hooked: bool = False  # the program has a hook on the tensor, which may change its gradient


Planned = tuple[int, Border]  # an index among a forward's tensors, and its border
Entered = tuple[Border, Any]  # a gradient that entered a module's output, and the node that it entered


class Passage:
    """One forward whose output has a graph, and what became of it."""

    __slots__ = ("alone", "asked", "backed", "count", "owner", "taken")

    def __init__(self, owner: Borders, count: int, taken: int) -> None:
        self.owner = owner
        self.count, self.taken = count, taken  # backwards so far: of any model, of this one
        self.backed = self.asked = False  # backward reached it; the program asked about a number made of it
        self.alone = False  # no backward of any model came before the next forward


PASSAGE = "lab.passage"  # in the metadata of an autograd node
MOST_PASSAGES, MOST_NODES_TO_LOSS = 1024, 256


class Borders:
    """The borders that backward has crossed in the current step."""

    def __init__(self, state: StepState, collector: Collector) -> None:
        self._state, self._collector = state, collector
        self.names = state.modules.names
        self.entered: list[Entered] = []
        self.losses: list[Any] = []  # the nodes that the step's backwards began at
        self._forgotten = 0
        self._plans: dict[str, tuple[Any, list[Planned]]] = {}  # by phase: its last forward, and borders
        self.passages: list[Passage] = []  # of forwards in training that no backward has reached yet
        self.num_taken = 0  # backwards that made gradients of this model
        self._given_up = 0  # of those beyond MOST_PASSAGES, without backward and not asked about

    def enter(self, forward: Forward) -> None:
        """Hook the nodes of what modules put out in the tensors that were read last."""
        for u, border in self._plan(forward):
            self._hook(forward.tensors[u], border, forward)

    def _hook(self, tensor: Tensor, border: Border, forward: Forward) -> None:
        """Take the gradients of this tensor."""
        node = tensor.grad_fn
        if node is None:
            return
        passage = None
        if border.root_leaf is not None:
            if forward.passage is None:
                forward.passage = self._begin_passage()
            passage = forward.passage
            metadata: Any = node.metadata
            metadata[PASSAGE] = passage
        number = tensor.output_nr
        if number != border.output_nr or tensor._backward_hooks:
            border = replace(border, output_nr=number, hooked=bool(tensor._backward_hooks))
        if _PREHOOKS:
            node.register_prehook(partial(self.look, border, number, passage))
        else:
            look = partial(self.look, border, 0, passage)
            tensor.register_hook(lambda grad: look((grad,)))  # type: ignore[no-untyped-call]

    def _begin_passage(self) -> Passage:
        passage = Passage(self, backwards.count, self.num_taken)
        if self._state.model.training:
            if self.passages and self.passages[-1].count == backwards.count:
                self.passages[-1].alone = True
            self.passages.append(passage)
            if len(self.passages) > MOST_PASSAGES:
                self._given_up += self._is_unseen(self.passages.pop(0))
        return passage

    def _is_unseen(self, passage: Passage) -> bool:
        """Whether a loss may have been made of this forward and thrown away, between two that were not."""
        looked_at = passage.backed or passage.asked
        return passage.alone and not looked_at and 0 < passage.taken < self.num_taken

    @property
    def unseen_losses(self) -> int:
        """Forwards in training, between backwards, without a backward or a number that was asked about."""
        return self._given_up + sum(map(self._is_unseen, self.passages))

    @hidden
    def backward_was_taken(self) -> None:
        """A backward has made gradients of this model."""
        self.num_taken += 1
        if self.passages:
            self.passages = [passage for passage in self.passages if not passage.backed]

    def passage_to(self, node: Any) -> Passage | None:
        """The newest forward of this model that the graph below a node begins at."""
        met, todo = set[Any](), deque([node])
        while todo and len(met) < MOST_NODES_TO_LOSS:
            node = todo.popleft()
            passage = node.metadata.get(PASSAGE)
            if isinstance(passage, Passage) and passage.owner is self:
                return passage
            met.add(node)
            todo += [target for target, _ in node.next_functions if target is not None and target not in met]
        return None

    def _plan(self, forward: Forward) -> list[Planned]:
        """One border per output; a forward equal to the last one of its phase has the same."""
        labels, calls, index = forward.last_part()
        key, plan = (labels, index, forward.calls), self._plans.get(forward.phase)
        shared = forward.saved is None and torch.is_grad_enabled()
        if shared and plan is not None and plan[0] == key:
            return plan[1]
        users: dict[int, list[tuple[Label, int]]] = {}
        for label, call, u in zip(labels, calls, index, strict=True):
            # What is frozen in this forward may not be in the next one.
            if u >= 0 and (shared or forward.tensors[u].requires_grad):
                users.setdefault(u, []).append((label, call))
        borders = [
            (u, self._border(forward, leaves, forward.tensors[u].output_nr))
            for u, leaves in users.items()
            if any(label[1] == OUT for label, _ in leaves)
        ]
        if shared:
            self._plans[forward.phase] = key, borders
        return borders

    def _border(self, forward: Forward, leaves: list[tuple[Label, int]], output_nr: int) -> Border:
        calls, again = forward.calls, forward.phase == "recompute"
        gave = tuple(call for label, call in leaves if label[1] == OUT)
        took = tuple(call for label, call in leaves if label[1] == IN and call not in gave)
        module, parent = calls[gave[0]][0], calls[gave[-1]][1]
        roots = [label[2] for label, call in leaves if label[1] == OUT and calls[call][1] < 0 and not again]
        return Border(
            module,
            calls[parent][0] if parent >= 0 else module,
            tuple(calls[call][0] for call in took),
            roots[0] if roots else None,
            output_nr,
            forward.saved if roots else None,
            calls,
            gave,
            took,
            forward.is_one_part(),
        )

    def look(self, border: Border, number: int, passage: Passage | None, grads: Any) -> None:
        """A gradient enters a module's output; called by autograd, so nothing may be raised."""
        grad = grads[number]
        if passage is not None:
            passage.backed = True
        if grad is None or self._state.ended:
            return
        try:
            entered, collector = self.entered, self._collector
            entered.append((border, _current_node() if _current_node is not None else None))
            try:
                version = grad._version
            except RuntimeError:  # made in inference mode
                version = -1
            key = self._forgotten + len(entered) - 1
            collector.add("act_grads", key, grad, version)
            if collector.weighs:
                collector.weigh(grad)
            if border.saved is not None:
                border.saved.gradients[border.root_leaf] = grad.detach()
        except Exception as error:  # a note, never an exception inside autograd
            self._collector.could_not_read(f"{type(error).__name__}: {error}"[:200])

    def leave(self) -> None:
        """All counts of the step are in: let go of its nodes, which backward has already emptied."""
        self._forgotten += len(self.entered)
        self.entered.clear()
        self.losses.clear()

    def outside_use(self, parameter: Tensor | None) -> str:
        """Why code outside of the model's forward may have given a weight its gradient; "" if it did not."""
        if _current_node is None:
            return "this torch does not tell whether the program's own code uses it beside the model, too"
        for node in self._reached(self.losses, stop=self._roots()):
            if parameter is not None and getattr(node, "variable", None) is parameter:
                return "the program's own code uses it beside the model (a penalty, a gradient of gradients)"
        return ""

    def _roots(self) -> set[Any]:
        """The nodes of what the model gave out in this step."""
        return {node for border, node in self.entered if border.root_leaf is not None}

    def _reached(self, begin: Iterable[Any], stop: Collection[Any] = ()) -> set[Any]:
        """All nodes of the graphs below these, but for those below `stop`."""
        met, todo = set[Any](), deque(begin)
        while todo and len(met) < MOST_NODES:
            node = todo.popleft()
            if node in met or node in stop:
                continue
            met.add(node)
            todo += [target for target, _ in node.next_functions if target is not None]
        return met

    def place(self, taken: Taken) -> tuple[str, str, str, str]:
        """(stage, module, place, why unsure) of a bad gradient at a border."""
        index = taken.key - self._forgotten
        if not 0 <= index < len(self.entered):
            return "act_grads", "", "in backward", "its step was over when it was counted"
        entered = self.entered[index]
        border = entered[0]
        uses, outside = self._uses(entered), self._is_used_outside(entered)
        if border.root_leaf is not None and uses <= 0 and not border.consumers:
            return "loss", "", "in the loss: the gradient that enters the model is bad, its output is not", ""
        producer, parent = self.names[border.producer], self.names[border.parent]
        takers = [self.names[consumer] for consumer in border.consumers]
        module = takers[-1] if takers else parent
        if border.hooked:
            of = f"the gradient of {named(producer)}'s output"
            return "act_grads", module, f"in backward: first seen in {of}", HOOKED
        once = uses == 1 and border.root_leaf is None and not outside
        passed = self._passed_after(border) if once else []
        if once and not passed:
            of = f"the gradient of {named(producer)}'s output"
            return "act_grads", module, f"in backward of {named(module)}: first seen in {of}", ""
        outer = takers[0] if takers else parent
        use = f"is used in {uses} places" if uses > 1 and not outside else "may be used elsewhere too"
        if passed:
            use = f"may have got it through {', '.join(passed)}"
        takers_text = ", ".join(map(named, dict.fromkeys(takers))) or "none that is a module"
        unsure = f"{named(producer)}'s output {use} (taken by: {takers_text}); a replay names the operator"
        return "act_grads", outer, f"in backward, between {named(outer)} and {named(producer)}", unsure

    def _passed_after(self, border: Border) -> list[str]:
        """Modules inside the one whose code took a tensor that may have made its gradient bad instead.

        That code may have handed on what it made of the tensor. So may a module that gives the tensor out, to
        what it called afterwards, as attention does with its weights.
        """
        calls, gave = border.calls, border.gave
        user, since = (border.took[-1], -1) if border.took else (calls[gave[-1]][1], gave[-1])
        begins = {user: since, **dict.fromkeys(gave[1:], gave[0]), gave[0]: -1}
        while not border.is_whole and user >= 0:  # any call around it may have given it on
            user = calls[user][1]
            begins.setdefault(user, gave[0])
        modules = (
            self.names[module]
            for call, (module, parent, _) in enumerate(calls)
            if parent in begins and call > begins[parent] and call not in gave
        )
        return list(dict.fromkeys(modules))

    def _uses(self, entered: Entered) -> int:
        """How many nodes of the step's graphs take this output; -1 if that cannot be told."""
        border, entered_node = entered
        if entered_node is None:
            return -1
        met = self._reached(self._roots())
        uses = (
            target is entered_node and number == border.output_nr
            for node in met
            for target, number in node.next_functions
        )
        return sum(uses) if entered_node in met else -1

    def _is_used_outside(self, entered: Entered) -> bool:
        """Whether the program's own code takes this output too, past what the model gave out."""
        roots = self._roots()
        return entered[1] not in roots and entered[1] in self._reached(self.losses, stop=roots)


MOST_LOSSES = 1000  # of one step whose graphs are kept: without what these saved, which backward let go
Begun = tuple[int, int]  # when a backward began, and how many gradients had passed then


class Losses:
    """Takes the loss of each backward that made gradients of this model."""

    def __init__(self, state: StepState, collector: Collector, borders: Borders) -> None:
        self._state, self._collector = state, collector
        # On a GPU gradients come in autograd's own threads; before torch 2.0 backward may run in another one.
        self._passed = collector.anywhere if state.on_gpu or IN_BACKWARD is None else collector.here
        self._borders = borders
        self.asked_waits = False  # a number that the program asked about is bad, or was not read yet

    def enter(self, tensors: Any) -> Begun | None:
        """What `leave` needs to know; None inside of a backward, as a checkpoint runs one."""
        if self._state.ended or recomputing():
            return None
        try:
            local.between.end()
            return self._state.now(), self._passed()
        except Exception as error:  # a note, never an exception in the program
            self._state.failure("a backward begins", error)
            return None

    def leave(self, tensors: Any, start: Begun | None) -> None:
        """The loss belongs to this model if gradients of it passed; and then all of them are counted."""
        if start is None or self._state.ended:
            return
        try:
            if self._passed() == start[1]:
                return
            self._borders.backward_was_taken()
            self._state.loss_in = self._state.step
            losses = [*tensors] if isinstance(tensors, (tuple, list)) else [tensors]
            if len(self._borders.losses) < MOST_LOSSES:
                for tensor in losses:
                    if (node := getattr(tensor, "grad_fn", None)) is not None:
                        self._borders.losses.append(node)
            self._take(losses, start[0])
            if self._collector.waits:
                self._collector.flush()
        except Exception as error:
            self._state.failure("a backward ends", error)

    @hidden
    def _take(self, tensors: list[Any], moment: int) -> None:
        local.between.is_loss(tensors)
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
                self._collector.take("loss", made_by, tensor, moment)

    def look(self, tensor: Tensor, value: float | None) -> None:
        """The program asks about a single number that still has a graph; its value, where that is known."""
        if self._state.ended or recomputing():
            return
        try:
            passage = self._borders.passage_to(tensor.grad_fn)
            if passage is None:
                return
            passage.asked = True
            if value is None and not self._state.on_gpu:
                value = float(tensor.detach()) if tensor.is_floating_point() else None
            if value is not None and math.isfinite(value):
                self._state.looked_at["loss"] += 1
                return
            made_by = AskedLoss(tensor.grad_fn.name() if tensor.grad_fn is not None else "")
            local.between.is_loss([tensor])
            self._collector.take("loss", made_by, tensor.detach(), self._state.now())
            self.asked_waits = True
        except Exception as error:
            self._state.failure("a number that the program asked about", error)
