"""Sees to it that a site trains what it joined with, and that its optimizer goes on from what the
run gives.

What is trained is looked up when a site is made. A model can change afterwards without a word to
anybody, and an optimizer may train copies of the parameters, which it writes over them. Both would
train something else than the run.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import weakref
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from causeway import errors
from causeway.torch._optimizers import MASTERS, is_inside, layers_of, refuse_copies, refuse_known
from causeway.torch._parameters import Model, Trained, all_in, invalid, is_dtensor, local
from causeway.torch._parameters import named_modules, reshard, sharded_modules, storage_of

log = logging.getLogger("causeway")
# Sampled values of a tensor.
_SAMPLE = 64
# A write is undone if the next step leaves less than this part of it (of its square).
_LEFT = 0.01
_NEVER, _UNRELATED = -1, -2
# So many optimizers may share a site's tensors; more were made anew for each step.
_MOST_NEWCOMERS = 4
_SAME = ("A site trains the same tensors from its join to its end: make such a change before it "
         "joins")


def _parameter(entry: Trained) -> torch.Tensor:
    return entry.tensor if entry.copy is None else entry.copy


class _Facts(NamedTuple):
    """What decides what is trained: objects, compared by identity, and facts of them."""

    objects: List[Any]
    facts: List[Any]

    def same(self, other: "_Facts") -> bool:
        return len(self.objects) == len(other.objects) and self.facts == other.facts and \
            all(map(operator.is_, self.objects, other.objects))


def _address(tensor: torch.Tensor) -> int:
    if type(tensor) is not nn.Parameter and is_dtensor(tensor):
        tensor = tensor._local_tensor
    return tensor.data_ptr()


def _side_by_side(*samples: Dict[int, torch.Tensor]) -> List[torch.Tensor]:
    """Those of all places of the last one, one after the other."""
    return [torch.cat([of[place] for place in samples[-1]]) for of in samples]


class Watch:
    """What a site trains, and whether it still is what it was.

    Args:
        model: as it was handed over.
        look_up: gives what is trained of it now.
        trained: what that gave.
        optimizers: as they were handed over, in their wrappers.
        masters: True if masters were handed over.

    Raises:
        InvalidArgument: an optimizer trains something else.
    """

    def __init__(self, model: Model, look_up: Callable[[], List[Trained]],
                 trained: Sequence[Trained], optimizers: Sequence[Any], masters: bool) -> None:
        self._model = model
        self._look_up = look_up
        self._trained = trained
        self._dtypes = [_parameter(entry).dtype for entry in trained]
        self._buffers = not all(isinstance(_parameter(entry), nn.Parameter) for entry in trained)
        self._masters = masters
        self._optimizers: List[torch.optim.Optimizer] = []
        self._layers: List[Any] = []
        self._steps = 0
        # Of optimizers of this process that are not the site's: its step after which they made one.
        self._others: Any = weakref.WeakKeyDictionary()
        # How many that share its tensors were first seen since its own last step.
        self._newcomers = 0
        self._before: Dict[int, torch.Tensor] = {}
        self._after: Dict[int, torch.Tensor] = {}
        # Their values as an optimizer of torch's own found them at its step.
        self._found: Dict[int, torch.Tensor] = {}
        # With the address at which they begin: new memory makes new ones.
        self._views: Dict[int, Tuple[int, Optional[torch.Tensor]]] = {}
        self._since: Dict[int, torch.Tensor] = {}
        self._results: List[Tuple[Callable[..., None], torch.Tensor, Any]] = []
        # Whose values tell of other writes: no buffer, and no matrix if there is another one, as a forward pass may
        # renormalize embeddings.
        self.last = max((at for at, one in enumerate(trained) if one.tensor.requires_grad),
                        key=lambda at: (len(trained[at].shape) != 2, at), default=len(trained) - 1)
        self._rest: Optional[Tuple[int, torch.Tensor]] = None  # Its version and values since the site's last step.
        self._undone = 0
        self._joined = False
        self._warned = False
        self._searched = False
        self._said_written = False
        self.look_at(optimizers)

    def look_at(self, optimizers: Sequence[Any]) -> None:
        """Further optimizers of the model, in their wrappers.

        Raises:
            InvalidArgument: one of them trains something else.
        """
        self._layers.extend(layers_of(optimizers, self._model))
        refuse_known(self._layers, self._model, self._masters)
        self._optimizers = [layer for layer in self._layers
                            if isinstance(layer, torch.optim.Optimizer)]
        problem = self._foreign()
        if problem is not None:
            raise invalid(problem)
        if not self._masters:
            refuse_copies(self._layers, self._trained)
        self._remember()

    def _left_out(self) -> List[str]:
        """Tensors that none of the optimizers trains, if there are any of these."""
        has = [tensor for optimizer in self._optimizers for group in optimizer.param_groups
               for tensor in group["params"]]
        known = {id(tensor) for tensor in has} | {storage_of(tensor) for tensor in has}
        return [entry.name for entry in self._trained if self._optimizers and isinstance(
            _parameter(entry), nn.Parameter) and not known & {
                id(entry.tensor), id(entry.copy), storage_of(entry.tensor)}]

    def _remember(self) -> None:
        self._modules = [module for _, module in named_modules(self._model)] \
            if isinstance(self._model, nn.Module) else []
        self._sharded = sharded_modules(self._model)
        self._then = self._facts()
        self._out = self._left_out()

    def _facts(self) -> _Facts:
        objects: List[Any] = []
        parameters: List[torch.Tensor] = \
            [] if isinstance(self._model, nn.Module) else list(self._model.values())
        for module in self._modules:
            objects.extend(module._modules.values())
            if self._buffers:
                objects.extend(module._buffers.values())
            parameters.extend(tensor for tensor in module._parameters.values()
                              if tensor is not None)
        objects.extend(parameters)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                objects.extend(group["params"])
        # Addresses show ties by storage that are undone, and new memory.
        return _Facts(objects, [_address(tensor) if tensor.requires_grad else None
                                for tensor in parameters])

    def reshard(self) -> None:
        """To be called before parameters are read or written."""
        reshard(self._sharded)

    def check(self, sends: bool) -> bool:
        """Takes some microseconds for each parameter, unless something has changed.

        Args:
            sends: False if values are only written: it does not matter then what trains.

        Returns:
            True if memory or modules have changed, but not what is trained.

        Raises:
            Refused: something else is trained now; the message names the first such tensor.
        """
        self.reshard()
        if self._facts().same(self._then):
            return False
        unsent = ". Nothing of this step was sent" if sends else ""
        here = {id(tensor) for tensor in all_in(self._model)}
        for entry in self._trained:
            if id(_parameter(entry)) not in here:
                raise errors.Refused(f"{entry.name} is another tensor than when this site joined, or gone "
                                     f"(load_state_dict(assign=True), a replaced module). {_SAME}{unsent}")
        if not sends:
            return True
        problem = self._difference() or self._foreign()
        if problem is not None:
            raise errors.Refused(f"{problem}. {_SAME}{unsent}")
        self._remember()
        return True

    def _difference(self) -> Optional[str]:
        for entry, dtype in zip(self._trained, self._dtypes):
            if _parameter(entry).dtype != dtype:
                return (f"{entry.name} is of {_parameter(entry).dtype} now, and was of {dtype} when "
                        "this site joined (half(), bfloat16(), double(), to())")
        for entry in self._trained if isinstance(self._model, nn.Module) else ():
            if isinstance(_parameter(entry), nn.Parameter) and not _parameter(entry).requires_grad:
                return (f"{entry.name} does not require gradients any more, but did when this site "
                        "joined (if that is so only at times, hand over names and tensors instead "
                        "of the model)")
        now = {entry.name: entry for entry in self._look_up()}
        then = {entry.name: entry for entry in self._trained}
        for name, entry in now.items():
            if name not in then:
                return (f"{name} trains now, but did not when this site joined "
                        "(requires_grad_(True), a new module, a tie that was undone)")
            if entry.tensor is not then[name].tensor:
                return f"{name} is another tensor than when this site joined"
            if entry.shape != then[name].shape:
                return (f"{name} has the shape {entry.shape} now, and had {then[name].shape} when "
                        "this site joined")
        gone = next((name for name in then if name not in now), None)
        if gone is not None:
            return f"{gone} is not trained any more, but was when this site joined"
        out = next((name for name in self._left_out() if name not in self._out), None)
        return None if out is None else \
            f"{out} is in no optimizer any more, but was in one when this site joined"

    def _foreign(self) -> Optional[str]:
        """A line, if an optimizer trains what is not the model's."""
        known = {id(tensor) for tensor in all_in(self._model)}
        known.update(id(entry.tensor) for entry in self._trained)
        storages = {storage_of(entry.tensor) for entry in self._trained} - {0}
        has = {id(tensor) for optimizer in self._optimizers
               for group in optimizer.param_groups for tensor in group["params"]}
        for optimizer in self._optimizers:
            for at, group in enumerate(optimizer.param_groups):
                for place, tensor in enumerate(group["params"]):
                    if id(tensor) in known or storage_of(tensor) in storages:
                        continue
                    missing = next((f"the model's {entry.name} is not in the optimizer, and "
                                    for entry in self._trained
                                    if not has & {id(entry.tensor), id(entry.copy)}), "")
                    return (f"{missing}{type(optimizer).__name__}.param_groups[{at}]['params']"
                            f"[{place}], {tensor.dtype} of {tuple(tensor.shape)}, is no tensor of "
                            "the model. Hand over the optimizer of this model as it is now. If it "
                            f"trains masters of the parameters: {MASTERS}. If the site is to have "
                            "other tensors to itself, leave optimizer out and call site.step()")
        return None

    def rests(self) -> None:
        """Nothing but an optimizer's step is to write from now on. A program that says itself when a step has ended
        may do as it likes."""
        view = self._view(self.last) if self._optimizers else None
        self._rest = None if view is None else (view._version, view.clone())

    def values(self) -> np.ndarray:
        """Some, to be known by."""
        view = self._view(self.last)
        return np.zeros(0, np.float32) if view is None else view.float().cpu().numpy()

    @torch.no_grad()
    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Precedes each step of each optimizer of the process."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        rest, self._rest = self._rest, None
        view = None if rest is None else self._view(self.last)
        if view is not None and view._version != rest[0] and \
                (view.shape, view.device) == (rest[1].shape, rest[1].device):
            # What adds and takes away the same (SAM) leaves a rounding.
            alike = torch.isclose(view, rest[1], rtol=0.01 if view.itemsize < 4 else 1e-4, atol=1e-6)
            self._later(self._say_written, (~alike).any().float().reshape(1))
        if self._before and type(optimizer).step.__module__.startswith("torch.optim."):
            theirs = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            places = [place for place in self._before if id(self._trained[place].tensor) in theirs]
            self._found = {**self._sampled(places, like=self._before), **self._found}

    def other_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Follows each step of each optimizer of the process.

        Raises:
            Refused: another optimizer than the site's trains the model now: its steps do not count.
        """
        if any(optimizer is own for own in self._optimizers) or is_inside(optimizer):
            return
        last = self._others.get(optimizer)
        if last is None:
            theirs = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            mine = {id(tensor) for own in self._optimizers for group in own.param_groups
                    for tensor in group["params"]}
            new = {id(tensor) for tensor in all_in(self._model)} - \
                {id(value) for value in self._then.objects}
            if theirs & new:
                self.check(sends=True)
            last = _NEVER if theirs & mine else _UNRELATED
            self._newcomers += last == _NEVER
        if last == self._steps or last == _NEVER and self._newcomers > _MOST_NEWCOMERS:
            raise errors.Refused(
                f"{type(optimizer).__name__} trains tensors of this site's optimizer, and made two "
                "steps, or was made anew for each, while that made none: a site follows the optimizer "
                "with which it joined. "
                "Hand over the one that trains, and join again")
        self._others[optimizer] = self._steps if last != _UNRELATED else _UNRELATED

    # --- What was written -------------------------------------------------------------------------

    def before_write(self, tensors: Iterable[int]) -> None:
        # Values that were given and that no step has begun from yet are none of this site's.
        for place, values in self._sampled(set(tensors) - set(self._before)).items():
            self._before[place] = values

    def after_write(self) -> None:
        self._after = self._sampled(self._before)
        self._since.update(self._after)

    def joined(self) -> None:
        """All that was written so far was what the site joined with."""
        if self._out:
            log.warning("%s%s in no optimizer that this site was given: synchronized, but not "
                        "trained here. Freeze what is not to train (requires_grad_(False)), or hand "
                        "over every optimizer", self._out[0],
                        f" and {len(self._out) - 1} more are" if len(self._out) > 1 else " is")
        self._joined = not self._before

    def after_step(self) -> None:
        """Follows each step of the optimizer.

        Raises:
            Refused: the optimizer's steps undo what the run gives.
        """
        self._steps += 1
        self._newcomers = 0
        if self._steps == 1 or self._before:
            self._judge_step()
        self.hear()

    def hear(self) -> None:
        """What is known by now of what was written.

        Raises:
            Refused: the optimizer's steps undo what the run gives.
        """
        while self._results and (self._results[0][2] is None or self._results[0][2].query()):
            judge, figures, _ = self._results.pop(0)
            judge(*figures.tolist())

    @torch.no_grad()
    def _judge_step(self) -> None:
        """Of the first step, and of one that began from what the run gave."""
        if self._steps == 1:
            try:
                refuse_known(self._layers, self._model, self._masters)  # By the state that the step made.
            except errors.InvalidArgument as error:
                raise errors.Refused(error.message) from None
        if self._before:
            if not self._searched and not self._masters:
                # Masters that the first step made. In fp32 it may keep what it began with.
                try:
                    refuse_copies(self._layers, [entry for entry in self._trained
                                                 if entry.tensor.element_size() == 2])
                except errors.InvalidArgument as error:
                    raise errors.Refused(error.message) from None
            self._searched = True
            now = self._sampled(self._before, like=self._before)
            if now:
                self._later(functools.partial(self._judge, self._trained[min(now)].name,
                                              not self._joined), self._left(now))
            self._joined = True
            self._before.clear()
            self._found = {}

    def before_read(self, tensors: Iterable[int]) -> None:
        """Warns once if no step has changed anything of these tensors since the run gave them."""
        if self._warned:
            return
        now = self._sampled((place for place in set(tensors) if place in self._since),
                            like=self._since)
        if now:
            then, values = _side_by_side(self._since, now)
            self._later(functools.partial(self._warn, self._trained[min(now)].name),
                        (values != then).sum().reshape(1))

    def _say_written(self, written: float) -> None:
        if written and not self._said_written:
            self._said_written = True
            log.warning("%s was written between two steps of this site, by something else than an optimizer's step: "
                        "that counts as trained here, and goes to all. Load a state before join(); where weights are "
                        "clipped or averaged after each step, leave optimizer out of join(), and call site.step() "
                        "after that, or give CausewayCallback as the last callback",
                        self._trained[self.last].name)

    def _warn(self, name: str, changed: int) -> None:
        if changed == 0 and not self._warned:
            self._warned = True
            log.warning("nothing has changed %s, and what is sent with it, since the run gave it "
                        "values: does the optimizer train this model?", name)

    def _later(self, judge: Callable[..., None], figures: torch.Tensor) -> None:
        """Calls `judge` with `figures`, as soon as they are on the host, after a step."""
        event = None
        if figures.is_cuda:
            stream = torch.cuda.current_stream(figures.device)
            figures = torch.empty(figures.shape, dtype=figures.dtype, device="cpu", pin_memory=True).copy_(
                figures, non_blocking=True)
            event = stream.record_event()
        self._results.append((judge, figures, event))

    @torch.no_grad()
    def _left(self, now: Dict[int, torch.Tensor]) -> torch.Tensor:
        """Squares of how far values now are from those before they were written over and of how far
        that went, of those that it changed; their number, and that of all sampled ones."""
        before, given, values = _side_by_side(self._before, self._after, now)
        found = torch.cat([self._found.get(place, torch.full_like(now[place], math.nan)) for place in now])
        # An optimizer of torch's own that begins from what was given has no masters, wherever its step leads.
        moved = (given - before) * (found != given)
        changed = moved != 0
        return torch.stack([((values - before) * changed).square().sum(), moved.square().sum(),
                            changed.sum().float(), torch.full_like(moved[0], moved.numel())])

    def _judge(self, name: str, joining: bool, left: float, moved: float, count: float,
               sampled: float) -> None:
        told_none = self._masters and all(entry.copy is None for entry in self._trained)
        if told_none or not (moved > 0 and count >= 4 and 4 * count >= sampled):
            return
        self._undone = self._undone + 1 if left <= _LEFT * moved else 0
        # Training that happens to go back once after a merge is no master.
        if self._undone >= (1 if joining else 2):
            raise errors.Refused(
                f"the optimizer's step brought {name} back to what it was before the run gave it "
                "other values: it trains masters of its own (DeepSpeed, apex O2, Megatron, "
                f"Lookahead). Take one without, or {MASTERS}; if it has none, masters={{}}")

    @torch.no_grad()
    def _sampled(self, places: Iterable[int],
                 like: Optional[Dict[int, torch.Tensor]] = None) -> Dict[int, torch.Tensor]:
        """Some values of each of these tensors, of those on the first one's device, and with `like`
        of those of which that has as many."""
        views = {place: self._view(place) for place in sorted(places)}
        for place, view in views.items() if like is not None else ():
            if view is not None and view.numel() != like[place].numel():
                views[place] = None  # It is another part of the tensor now.
        device = next((view.device for view in views.values() if view is not None), None)
        used = {place: view for place, view in views.items()
                if view is not None and view.device == device}
        if not used:
            return {}
        values = torch.cat(list(used.values())).float()
        return dict(zip(used, values.split([view.numel() for view in used.values()])))

    def _view(self, place: int) -> Optional[torch.Tensor]:
        address = _address(self._trained[place].tensor)
        if place not in self._views or self._views[place][0] != address:
            values = local(self._trained[place].tensor)
            step = max(1, -(-values.numel() // _SAMPLE))
            self._views[place] = address, values.view(-1)[::step] \
                if values.numel() > 0 and values.is_contiguous() else None
        return self._views[place][1]
