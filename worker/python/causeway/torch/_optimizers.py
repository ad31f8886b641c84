"""Optimizers that train something else than the model's parameters: masters, which they write over
what a run gives, or averages, in which it is lost."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from causeway.torch._parameters import Model, Trained, all_in, invalid, local, storage_of, wrapped

# How deep and far an optimizer is searched for copies of parameters.
_DEPTH = 5
_OBJECTS = 100_000
# Values that are compared first.
_FIRST = 64
MASTERS = ("hand over the fp32 tensors that it trains: masters={name: tensor, ...}, or a function "
            "of a parameter")
_FLAT = ("trains flat copies of the parameters and writes them over what the run gives. Leave "
         "bf16, fp16 and zero_optimization out of its configuration, or use "
         "DistributedDataParallel or fully_shard with an optimizer of torch; bfloat16 parameters "
         "are trained as they are")


# Globals of the module that calls an optimizer's hooks.
_TORCHS = torch.optim.Optimizer.profile_hook_step.__globals__


def is_inside(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of this optimizer is under way around the one whose hook asks: torch calls the hooks for the step
    of a subclass, and before for that of its base, which it calls by super()."""
    steps, frame = 0, sys._getframe(1)
    while frame is not None and steps < 2:
        steps += frame.f_globals is _TORCHS and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps > 1


def _packages(entry: Any) -> Iterator[str]:
    for kind in type(entry).__mro__:
        yield kind.__module__.split(".")[0]


def _layers(entry: Any) -> List[Any]:
    """An optimizer and those that it wraps."""
    layers: List[Any] = []
    while entry is not None and not any(entry is layer for layer in layers):
        layers.append(entry)
        entry = getattr(entry, "optimizer", None)
    return layers


def layers_of(optimizers: Iterable[Any], model: Model) -> List[Any]:
    """These optimizers, those of DeepSpeed's engines around `model`, and those that they wrap."""
    given = list(optimizers)
    engine = model if isinstance(model, nn.Module) else None
    while engine is not None:
        if "deepspeed" in _packages(engine):
            given.append(getattr(engine, "optimizer", None))
        engine = wrapped(engine)
    return [layer for entry in given for layer in _layers(entry)]


def _state_names(optimizer: Any) -> Set[str]:
    """Of the tensors that an optimizer has beside a parameter."""
    state = getattr(optimizer, "state", None)
    return {name for of in (state.values() if isinstance(state, dict) else ()) if isinstance(of, dict)
            for name, value in of.items() if isinstance(name, str) and isinstance(value, torch.Tensor)}


def refuse_known(optimizers: Iterable[Any], model: Model, masters: bool) -> None:
    """Raises InvalidArgument for optimizers and models known to train other values than the model's
    parameters. `masters`: these were handed over."""
    for optimizer in optimizers:
        name, packages = type(optimizer).__name__, set(_packages(optimizer))
        groups = getattr(optimizer, "param_groups", None) or [{}]
        states = _state_names(optimizer)
        if "schedulefree" in packages or "weight_lr_power" in groups[0] or "z" in states:
            raise invalid(
                f"{name} averages over its steps: what it trains is z in its state, and what a run "
                "merges into the parameters is lost in its average. Take the optimizer without "
                "that (AdamW, SGD): the run averages")
        if "lookahead" in name.lower() or "lookahead_alpha" in groups[0] or \
                any(state.startswith(("slow_", "lookahead_")) for state in states):
            raise invalid(
                f"{name} goes back to slow copies of the parameters every few steps, which takes "
                "half of what a run merges away again. Take the optimizer inside it: the run "
                "averages")
        if "deepspeed" in packages and (name.startswith("DeepSpeedZeroOptimizer") or
                                        name in ("BF16_Optimizer", "FP16_Optimizer")):
            raise invalid(f"DeepSpeed's {name} {_FLAT}")
        if hasattr(optimizer, "_amp_stash") and not masters and \
                any(tensor.dtype == torch.float16 for tensor in all_in(model)):
            raise invalid("apex keeps fp32 masters of the parameters (O2) and writes them over "
                          f"what the run gives. Train without apex, or {MASTERS}")
    for tensor in () if masters else all_in(model):
        if hasattr(tensor, "_hp_mapping"):
            raise invalid(f"DeepSpeed {_FLAT}")
        if getattr(tensor, "main_param_sharded", False):
            raise invalid("Megatron's distributed optimizer has a part of the fp32 masters in each "
                          "process and writes them over what the run gives: switch it off")
        if isinstance(getattr(tensor, "main_param", None), torch.Tensor):
            raise invalid("Megatron keeps fp32 masters of the parameters and writes them over what "
                          "the run gives. Hand them over: masters=lambda parameter: "
                          "getattr(parameter, 'main_param', None)")


def _tensors_in(entry: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    """Tensors that an optimizer holds, wherever, and where."""
    seen = set()
    todo = [(type(entry).__name__, entry, 0)]
    while todo and len(seen) < _OBJECTS:
        where, value, depth = todo.pop()
        if id(value) in seen or depth > _DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield where, value
        elif isinstance(value, dict):
            todo.extend((f"{where}[{key!r}]" if isinstance(key, (str, int)) else f"{where}[...]",
                         inside, depth + 1) for key, inside in value.items())
        elif isinstance(value, (list, tuple)):
            todo.extend((f"{where}[{at}]", inside, depth + 1) for at, inside in enumerate(value))
        elif not isinstance(value, (nn.Module, type)) and hasattr(value, "__dict__") and \
                not callable(value):
            todo.extend((f"{where}.{name}", inside, depth + 1)
                        for name, inside in vars(value).items())


def refuse_copies(optimizers: Iterable[Any], trained: Sequence[Trained]) -> None:
    """Raises InvalidArgument if an optimizer holds a copy of a parameter in fp32.

    Every value is compared, so this is for the join and, with parameters of two bytes, for the
    first step.
    """
    searched = [optimizer for optimizer in optimizers
                if not type(optimizer).__module__.startswith("torch.optim.")]
    if not trained or not searched:
        return
    own = {storage_of(entry.tensor) for entry in trained}
    largest = max(local(entry.tensor).numel() for entry in trained)
    by_size: Dict[int, List[Trained]] = {}
    for entry in trained:
        by_size.setdefault(local(entry.tensor).numel(), []).append(entry)
    for optimizer in searched:
        for where, tensor in _tensors_in(optimizer):
            if tensor.dtype not in (torch.float32, torch.float64) or tensor.is_meta or \
                    storage_of(tensor) in own:
                continue
            values = local(tensor.detach())
            # A flat copy of several begins with one of them.
            flat = values.dim() == 1 and values.numel() > largest
            found = _copied(values, trained if flat else by_size.get(values.numel(), ()))
            if found is not None:
                raise invalid(
                    f"{where} is a copy of {found.name}, of {values.dtype}: an optimizer that "
                    "trains copies writes them over what the run gives. If it does, "
                    f"{MASTERS}; if not, masters={{}}")


def _copied(values: torch.Tensor, among: Iterable[Trained]) -> Optional[Trained]:
    """That with which `values` begins."""
    for entry in among:
        own = local(entry.tensor).reshape(-1)
        if 2 <= own.numel() <= values.numel() and bool(own.any()) and \
                all(torch.equal(values.reshape(-1)[:end].to(own.device, own.dtype), own[:end])
                    for end in (min(_FIRST, own.numel()), own.numel())):
            return entry
    return None
