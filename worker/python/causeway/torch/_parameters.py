"""The tensors that a site trains, their names, and the part of each that a process has."""

from __future__ import annotations

import gc
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set
from typing import Tuple, Union

import torch
from torch import nn

from causeway import _arguments as check
from causeway import errors
from causeway._arguments import invalid

# Classes of modules that stand for another one, and the attribute that has it.
_WRAPPERS = {
    "DistributedDataParallel": "module",    # torch's, apex's, Megatron's
    "DataParallel": "module",
    "ShardedDataParallel": "module",        # fairscale's
    "OptimizedModule": "_orig_mod",         # torch.compile
    "ActivationWrapper": "_checkpoint_wrapped_module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "_FabricModule": "_forward_module",     # Lightning Fabric's setup
    "DeepSpeedEngine": "module",
    "Float16Module": "module",              # Megatron's
}
Model = Union[nn.Module, Mapping[str, torch.Tensor]]
Masters = Union[None, Mapping[str, torch.Tensor],
                Callable[[torch.Tensor], Optional[torch.Tensor]]]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Part(NamedTuple):
    """A box of a tensor that a process holds.

    Attributes:
        rank: the process.
        offset, shape: where the box begins in the tensor and how far it reaches.
        first: True in the process that hands the box over; others have a copy of it.
    """

    rank: int
    offset: Tuple[int, ...]
    shape: Tuple[int, ...]
    first: bool


class Trained(NamedTuple):
    """A tensor that is synchronized.

    Attributes:
        name: in the run.
        tensor: what the optimizer trains: the model's parameter, or its master.
        shape: of the whole, where a process has a part.
        copy: the parameter that is the rounded copy of `tensor`, if that is a master.
    """

    name: str
    tensor: torch.Tensor
    shape: Tuple[int, ...]
    copy: Optional[torch.Tensor] = None


def is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is in this process, on its own storage, without gradients."""
    tensor = tensor.detach()
    return tensor.to_local() if is_dtensor(tensor) else tensor


def version_of(tensor: torch.Tensor) -> int:
    """Counts writes to the part of a tensor that is in this process."""
    is_whole = type(tensor) is nn.Parameter or not is_dtensor(tensor)
    return (tensor if is_whole else tensor._local_tensor)._version


def plain_name(name: str) -> str:
    """A name without what wrappers add, where that can be nothing else."""
    return ".".join(part for part in name.split(".")
                    if not part.startswith("_") or part not in _WRAPPERS.values())


def _is(module: nn.Module, kind: str) -> bool:
    return any(base.__name__ == kind for base in type(module).__mro__)


def wrapped(module: nn.Module) -> Optional[nn.Module]:
    """What `module` stands for, if it is a wrapper."""
    for kind in type(module).__mro__:
        inner = getattr(module, _WRAPPERS.get(kind.__name__, ""), None)
        if isinstance(inner, nn.Module):
            return inner
    return None


def named_modules(model: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    """As nn.Module.named_modules, with the names of the plain model, whatever wraps it or a part of
    it. Wrappers are among the modules, under the name of what they wrap."""
    seen: Set[nn.Module] = set()
    todo: List[Tuple[str, nn.Module]] = [("", model)]
    while todo:
        name, module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        yield name, module
        inner = wrapped(module)
        inside = [(name, inner)] if inner is not None else \
            [(f"{name}.{child}" if name else child, part)
             for child, part in module.named_children()]
        todo.extend(reversed(inside))


def reshard(modules: Iterable[nn.Module]) -> None:
    """Puts the shards of fully_shard's `modules` back in place.

    A forward pass leaves the root's parameters whole, with values that were gathered before it.
    """
    for module in modules:
        module.reshard()
        state = module._get_fsdp_state()
        for group in getattr(state, "_fsdp_param_groups", None) or \
                [getattr(state, "_fsdp_param_group", None)]:
            if group is not None:
                # A pass that an exception ended goes on for ever, and reshard spares its root.
                group._to_sharded()


def sharded_modules(model: Model) -> List[nn.Module]:
    """Modules to which fully_shard was applied."""
    if isinstance(model, nn.Module):
        return [module for _, module in named_modules(model) if _is(module, "FSDPModule")]
    # Tensors do not know their modules.
    shards = {id(tensor) for tensor in model.values() if is_dtensor(tensor)}
    return [module for module in gc.get_objects() if issubclass(type(module), nn.Module)
            and _is(module, "FSDPModule")
            and any(id(tensor) in shards for tensor in module.parameters())] if shards else []


def _named(model: nn.Module, kind: str) -> Iterator[Tuple[str, torch.Tensor]]:
    """Parameters or buffers ("_parameters", "_buffers") by their plain names, each once."""
    seen: Set[int] = set()
    for name, module in named_modules(model):
        for own, tensor in getattr(module, kind).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{name}.{own}" if name else own, tensor


def check_model(model: Any, buffers: Any, rename: Any, masters: Any) -> None:
    """Raises InvalidArgument for arguments of other types than `trained_tensors` says."""
    if not isinstance(model, (nn.Module, Mapping)):
        raise check.wrong("model", "a torch.nn.Module, or names and tensors", model)
    for name, tensor in model.items() if isinstance(model, Mapping) else ():
        check.text("a name in model", name)
        if not isinstance(tensor, torch.Tensor):
            raise check.wrong(f"model[{name!r}]", "a tensor", tensor)
    if isinstance(buffers, (str, bytes, torch.Tensor)) or not isinstance(buffers, (bool, Iterable)):
        raise check.wrong("buffers", "True, False or names", buffers)
    if isinstance(model, Mapping) and buffers is not False:
        raise check.wrong("buffers", "False beside names and tensors: add what is synchronized to "
                          "these", buffers)
    if rename is not None and not callable(rename):
        raise check.wrong("rename", "a function from the model's names to the run's", rename)
    if masters is not None and not isinstance(masters, Mapping) and not callable(masters):
        raise check.wrong("masters", "names and tensors, or a function from a parameter to its own",
                          masters)


def trained_tensors(model: Model, buffers: Union[bool, Iterable[str]] = False,
                    rename: Optional[Callable[[str], str]] = None,
                    masters: Masters = None) -> List[Trained]:
    """Parameters that require gradients, in the model's order, each storage once by its first name.

    Names are those of the plain model, whatever wraps it or its parts: torch.compile,
    DistributedDataParallel, DataParallel, activation checkpointing, Lightning Fabric.

    Args:
        model: a module, or names and tensors.
        buffers: True, or names, of buffers that are synchronized, too.
        rename: from the model's names to the run's.
        masters: of parameters of which an optimizer trains fp32 masters, these: by the model's
            names, or as a function of a parameter, which gives None for one that has none.

    Raises:
        InvalidArgument: there is none, one is of another type or on no device, or two overlap.
    """
    check_model(model, buffers, rename, masters)
    reshard(sharded_modules(model))
    if isinstance(model, nn.Module):
        if any(_is(module, "FullyShardedDataParallel") for _, module in named_modules(model)):
            raise invalid("a part of the model is in FullyShardedDataParallel, whose flat "
                          "parameters have no names of their own: use fully_shard (FSDP2)")
        named = [(name, tensor) for name, tensor in _named(model, "_parameters")
                 if tensor.requires_grad]
        if buffers:
            have: Dict[str, torch.Tensor] = dict(_named(model, "_buffers"))
            wanted = [name for name, tensor in have.items() if tensor.dtype in FLOATS] \
                if buffers is True else list(buffers)
            for name in wanted:
                if name not in have:
                    raise invalid(f"buffers names {name!r}, which the model does not have")
                named.append((name, have[name]))
    else:
        named = [(plain_name(name), tensor) for name, tensor in model.items()]
    if isinstance(masters, Mapping):
        unknown = set(masters) - {name for name, _ in named}
        if unknown:
            raise invalid(f"masters names {min(unknown, key=str)!r}, which is none of the model's "
                          "trained parameters")
    trained: List[Trained] = []
    storages: Dict[int, Trained] = {}
    for name, tensor in named:
        master = masters.get(name) if isinstance(masters, Mapping) else \
            _called("masters", masters, tensor, name) if masters is not None else None
        _check_tensor(name, tensor, master)
        shape = tuple(tensor.shape)
        known = check.text(f"rename({name!r})", _called("rename", rename, name, name)) \
            if rename else name
        entry = Trained(known, tensor, shape) if master is None else \
            Trained(known, master, shape, tensor)
        here = local(tensor)
        if here.numel() > 0:
            other = storages.setdefault(here.untyped_storage().data_ptr(), entry)
            there = local(other.tensor if other.copy is None else other.copy)
            if other is not entry and _same_memory(there, here):
                continue  # Tied.
            if other is not entry and _overlap(there, here):
                raise invalid(f"{name} and {other.name} share some memory but not all: a site "
                              "synchronizes each value once; freeze one of them")
        trained.append(entry)
    if not trained:
        raise invalid("the model has no parameter that requires gradients")
    names = [entry.name for entry in trained]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid(f"two tensors have the name {twice!r}: rename must keep names apart")
    return trained


def _called(argument: str, function: Callable[[Any], Any], value: Any, name: str) -> Any:
    try:
        return function(value)
    except errors.Error:
        raise
    except Exception as error:
        raise invalid(f"{argument} raised {type(error).__name__} for the parameter {name!r}: "
                      f"{error}") from error


def _check_tensor(name: str, tensor: torch.Tensor, master: Optional[torch.Tensor]) -> None:
    """Raises InvalidArgument, if a site cannot train `tensor`, or `master` is none of it."""
    if getattr(tensor, "_is_flat_param", False):
        raise invalid(f"{name} is a flat parameter of FullyShardedDataParallel, which has no "
                      "names of its own: use fully_shard (FSDP2)")
    if hasattr(tensor, "ds_tensor") or hasattr(tensor, "ds_status"):
        raise invalid(f"{name} is partitioned by DeepSpeed's ZeRO 3: its values are in no tensor "
                      "of the model. Use fully_shard (FSDP2) to shard it")
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        raise invalid(f"{name} has no shape yet: run the model once before the site joins")
    if tensor.layout != torch.strided:
        raise invalid(f"{name} is {tensor.layout}: a site trains dense tensors; freeze it or "
                      "make it one (to_dense())")
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
        raise invalid(f"{name} has several elements in the same memory (expand()): hand over a "
                      "clone() of it, and train that")
    if tensor.is_meta:
        raise invalid(f"{name} is on the meta device: give it memory before the site joins")
    if local(tensor).numel() > 0 and local(tensor).untyped_storage().size() == 0:
        raise invalid(f"{name} has lost its memory: fully_shard lends whole parameters for a pass. "
                      "Hand over the model instead")
    if tensor.dtype not in FLOATS:
        raise invalid(f"{name} is of {tensor.dtype}; a site trains float32, bfloat16 and "
                      "float16: freeze it (requires_grad_(False)) or convert it")
    if master is None:
        return
    if not isinstance(master, torch.Tensor) or master.dtype != torch.float32 or \
            master.shape != tensor.shape or local(master).shape != local(tensor).shape:
        found = f"{master.dtype} of {tuple(master.shape)}" if isinstance(master, torch.Tensor) \
            else type(master).__name__
        raise invalid(f"the master of {name} must be torch.float32 of {tuple(tensor.shape)}, "
                      f"sharded alike; it is {found}")
    if local(master).untyped_storage().data_ptr() == local(tensor).untyped_storage().data_ptr():
        raise invalid(f"the master of {name} is the parameter itself: leave it out of masters")


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == \
        (other.data_ptr(), other.shape, other.stride(), other.dtype)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    def bounds(tensor: torch.Tensor) -> Tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    (a, b), (c, d) = bounds(one), bounds(other)
    return a < d and c < b


def storage_of(tensor: torch.Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


def all_in(model: Model) -> Iterator[torch.Tensor]:
    """Parameters and buffers."""
    if not isinstance(model, nn.Module):
        yield from model.values()
        return
    for _, module in named_modules(model):
        for tensors in (module._parameters, module._buffers):
            yield from (tensor for tensor in tensors.values() if tensor is not None)


def part_of(entry: Trained, rank: int) -> Part:
    """The box of `entry` that this process has, as process `rank` of its site.

    Raises:
        InvalidArgument: the tensor is sharded in a way that is no box.
    """
    tensor = entry.tensor
    if not is_dtensor(tensor):
        return Part(rank, (0,) * len(entry.shape), entry.shape, rank == 0)
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise invalid(f"{entry.name} is a DTensor of a mesh without this process: the group of the "
                      "site must be that of the mesh")
    offset, shape = [0] * len(entry.shape), list(entry.shape)
    cut = set()
    first = True
    for place, here, size in zip(tensor.placements, coordinate, tensor.device_mesh.shape):
        kind = type(place).__name__
        if kind == "Replicate":
            first = first and here == 0
        elif kind == "Shard" and place.dim not in cut:
            # torch.chunk: all chunks but the last ones are of the same length.
            cut.add(place.dim)
            whole = entry.shape[place.dim]
            chunk = -(-whole // size)
            offset[place.dim] = min(here * chunk, whole)
            shape[place.dim] = min(chunk, whole - offset[place.dim])
        else:
            raise invalid(f"{entry.name} has the placements {tensor.placements}; a site "
                          "understands Replicate and Shard, each dimension sharded once")
    part = Part(rank, tuple(offset), tuple(shape), first)
    if tuple(local(tensor).shape) != part.shape:
        raise invalid(f"{entry.name}: the shard has the shape {tuple(local(tensor).shape)}; its "
                      f"placements {tensor.placements} make it {part.shape}")
    return part
