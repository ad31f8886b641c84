"""The tensors that a site trains, their names, and the part of each that a process has."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from torch import nn

from causeway import errors

# Wrappers add these to the names of the modules that they wrap.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
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
    """A tensor that is synchronized."""

    name: str
    tensor: torch.Tensor
    shape: Tuple[int, ...]


def invalid(message: str) -> errors.Error:
    return errors.InvalidArgument(message, "INVALID_ARGUMENT")


def is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is in this process, on its own storage, without gradients."""
    tensor = tensor.detach()
    return tensor.to_local() if is_dtensor(tensor) else tensor


def plain_name(name: str) -> str:
    """A fully qualified name without what torch.compile and activation checkpointing add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def trained_tensors(model: Union[nn.Module, Mapping[str, torch.Tensor]],
                    buffers: Union[bool, Iterable[str]] = False,
                    rename: Optional[Callable[[str], str]] = None) -> List[Trained]:
    """Parameters that require gradients, in the model's order, each storage once by its first name.

    Args:
        model: a module, possibly compiled or in DistributedDataParallel; or names and tensors.
        buffers: True, or names, of buffers that are synchronized, too.
        rename: from the model's names to the run's.

    Raises:
        InvalidArgument: there is none, one is of another type or on no device, or two overlap.
    """
    if isinstance(model, nn.Module):
        while isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        named = [(plain_name(name), tensor)
                 for name, tensor in model.named_parameters(remove_duplicate=True)
                 if tensor.requires_grad]
        if buffers:
            have: Dict[str, torch.Tensor] = {plain_name(name): tensor
                                             for name, tensor in model.named_buffers()}
            wanted = [name for name, tensor in have.items() if tensor.dtype in FLOATS] \
                if buffers is True else list(buffers)
            for name in wanted:
                if name not in have:
                    raise invalid(f"buffers names {name!r}, which the model does not have")
                named.append((name, have[name]))
    else:
        named = list(model.items())
    trained: List[Trained] = []
    storages: Dict[int, Trained] = {}
    for name, tensor in named:
        if type(tensor).__name__ == "FlatParameter" or name.split(".")[-1] == "_flat_param":
            raise invalid(f"{name} is a flat parameter of FullyShardedDataParallel, which has no "
                          "names of its own: use fully_shard (FSDP2)")
        if tensor.is_meta:
            raise invalid(f"{name} is on the meta device: give it memory before the site joins")
        if tensor.dtype not in FLOATS:
            raise invalid(f"{name} is of {tensor.dtype}; a site trains float32, bfloat16 and "
                          "float16: freeze it (requires_grad_(False)) or convert it")
        entry = Trained(rename(name) if rename else name, tensor, tuple(tensor.shape))
        here = local(tensor)
        if here.numel() > 0:
            other = storages.setdefault(here.untyped_storage().data_ptr(), entry)
            if other is not entry and _same_memory(local(other.tensor), here):
                continue  # Tied.
            if other is not entry and _overlap(local(other.tensor), here):
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


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == \
        (other.data_ptr(), other.shape, other.stride(), other.dtype)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    def bounds(tensor: torch.Tensor) -> Tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    (a, b), (c, d) = bounds(one), bounds(other)
    return a < d and c < b


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
