"""The values of a PyTorch model on CUDA devices, read and written there by the library's kernels.

A step issues work to the devices, and waits for none of it. Only codes cross to the host.
"""

from __future__ import annotations

import bisect
import ctypes
import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import torch

from causeway import _library as lib
from causeway import errors
from causeway._session import Placed, Range, device_values
from causeway.torch._group import Solo
from causeway.torch._parameters import Part, Trained, invalid, is_dtensor, local
from causeway.torch._shares import Piece, cut, is_rows, stretch
from causeway.torch._values import TorchValues

log = logging.getLogger("causeway")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WAYS = ("device", "pinned", "host")


class Stray(NamedTuple):
    """Values that a process or a device owns and does not have: room for them."""

    piece: Piece
    values: torch.Tensor
    place: int  # CUDA's number of the device.


def place_of(tensor: torch.Tensor) -> Optional[int]:
    """The number of the CUDA device that has it; None: none has."""
    return tensor.device.index if tensor.is_cuda and torch.version.hip is None else None


def stream_of(device: torch.device) -> int:
    """The stream in which the trainer's work is ordered, as an address."""
    return torch.cuda.current_stream(device).cuda_stream


def devices_for(trained: Sequence[Trained], team: Solo, parts: Sequence[Sequence[Part]]) -> Tuple[List[int], str]:
    """The device of each tensor of this process, if its values can be there; else none, and why they cannot; no
    reason where they are on no accelerator."""
    places, reason = _devices_here(trained, team, parts)
    if all(team.all_parts([bool(places)])[0]) or not places:
        return places, reason
    return [], "another process of the site cannot have them on its device"


def _devices_here(trained: Sequence[Trained], team: Solo, parts: Sequence[Sequence[Part]]) -> Tuple[List[int], str]:
    tensors = [local(entry.tensor) for entry in trained]
    found = [place_of(tensor) for tensor in tensors]
    places = [place for place in found if place is not None]
    if not places:
        kinds = {"ROCm" if tensor.is_cuda else tensor.device.type for tensor in tensors} - {"cpu"}
        return [], f"there are no kernels for devices of {min(kinds)}" if kinds else ""
    if len(places) < len(found):
        return [], f"{trained[found.index(None)].name} is on no CUDA device, unlike others"
    if team.size > 1 and len(set(places)) > 1:
        return [], "the tensors of one of its processes are on several devices"
    if not all(is_rows(part, entry.shape) for entry, held in zip(trained, parts) for part in held):
        return [], "they are sharded by columns"
    if not team.spreads(tensors[0].device):
        return [], "the processes of the site cannot hand over values from device to device"
    try:
        for place in sorted(set(places)):
            lib.call("causeway_device_check", place)
    except errors.Error as error:
        return [], error.message
    return places, ""


class DeviceValues(TorchValues):
    """Values of a site whose tensors are on CUDA devices: on several, or on one in each of several processes.

    A process owns what its model has, as far as whole chunks of codecs go: what it owns beyond that are
    strays, which others hand it, over the trainer's own process group, before they are gathered. So does each of
    several devices: its strays are copied from the others.
    A tensor that is not contiguous, or that moved to another device after the join, has a stand-in
    on its device, to and from which it is copied.

    Args:
        arguments: as of TorchValues.
        places: CUDA's number of the device of each tensor.
        pinned: the published values are in page-locked host memory.
    """

    def __init__(self, *arguments: Any, places: Sequence[int], pinned: bool) -> None:
        super().__init__(*arguments)
        self._places = places
        self._pinned = pinned
        self._devices = dict(sorted({place: local(entry.tensor).device
                                     for place, entry in zip(places, self._trained)}.items()))
        self._device = self._devices[places[0]]  # Of a process of several.
        self._dtypes = [entry.tensor.dtype for entry in self._trained]
        self._stand_ins: Dict[int, torch.Tensor] = {}
        self._strays: Dict[int, List[Stray]] = {}  # By fragment,
        self._incoming: Dict[int, Dict[int, torch.Tensor]] = {}  # and their buffers, by process that has them.
        self._told: Set[int] = set()
        self._table: List[Placed] = []
        self._addresses: List[int] = []

    def on_device(self) -> Any:
        """The field of causeway_site_options."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # What torch keeps for later is not there for others.
        self._table = self._look_up()
        numbers = (ctypes.c_int32 * len(self._devices))(*self._devices)
        return ctypes.pointer(lib.DeviceStruct(ctypes.sizeof(lib.DeviceStruct), numbers, len(numbers), int(self._pinned),
                                               device_values(self._table), len(self._table)))

    def _attach_memory(self, _stretches: Optional[Sequence[Tuple[int, int]]]) -> None:
        self._arena = self._here.arena()
        if self._team.size > 1:
            self._team.begin_on(self._device)
            self._team.agree(self._make_strays)
        elif len(self._devices) > 1:
            self._make_strays()

    def _make_strays(self) -> None:
        owned_by = self._owned_by(len(self._devices)) if self._team.size == 1 else []
        for fragment in range(len(self._fragments)):
            if self._team.size == 1:
                self._strays[fragment] = [stray for spans, place in zip(owned_by[fragment], self._devices)
                                          for stray in self._of_others(spans, place)]
                continue
            self._incoming[fragment], views = self._all_packed(self._way_of(fragment).from_holder, self._device)
            self._strays[fragment] = [Stray(piece, view, self._places[0]) for piece, view in views]
        self._table = self._look_up()
        self._arena.move(self._table)

    def _of_others(self, spans: Sequence[Range], place: int) -> List[Stray]:
        """Of ranges that a device owns, what other devices have."""
        pieces = [piece for span in spans if self._places[span.tensor] != place
                  for piece in cut(span, self._shapes[span.tensor], self._parts[span.tensor][0], True)]
        return [Stray(piece, view, place) for piece, view in zip(pieces, self._packed(pieces, self._devices[place])[1])]

    def _look_at_memory(self) -> None:
        super()._look_at_memory()
        self._contiguous = [True] * len(self._trained)  # If by a stand-in.

    def settle(self) -> None:
        pass  # What reads the library's values is ordered on the device.

    def _look_up(self) -> List[Placed]:
        """Where the values are now."""
        table = []
        for index, entry in enumerate(self._trained):
            values = local(entry.tensor)
            if values.dtype != self._dtypes[index]:
                raise invalid(f"{entry.name} is of {values.dtype} now and was of "
                              f"{self._dtypes[index]} when the site joined: keep its type, or join "
                              "again")
            place = self._places[index]
            here = place_of(values) == place
            if here and values.is_contiguous():
                self._stand_ins.pop(index, None)
            else:
                if index not in self._stand_ins:
                    self._stand_ins[index] = torch.empty(values.shape, dtype=values.dtype,
                                                         device=self._devices[place])
                if not here and index not in self._told:
                    self._told.add(index)
                    log.warning("%s is on %s now, the site's values on %s: it is copied to and fro, "
                                "which the training thread waits for at every step that sends or "
                                "merges it", entry.name, values.device, self._devices[place])
                values = self._stand_ins[index]
            begin, end = stretch(self._parts[index][self._team.rank])
            table.append(Placed(values.data_ptr(), index, begin, end, _TYPES[values.dtype], place))
        for fragment, strays in self._strays.items():
            for piece, view, place in strays:
                begin = self._in_tensor(fragment, piece)
                table.append(Placed(view.data_ptr(), piece.tensor, begin, begin + view.numel(), _TYPES[view.dtype],
                                    place))
        self._addresses = self._find()
        return table

    def _in_tensor(self, fragment: int, piece: Piece) -> int:
        """Which value of its tensor a piece begins with."""
        return next(piece.at - span.arena_offset + span.tensor_offset for span in self._fragments[fragment]
                    if span.arena_offset <= piece.at < span.arena_offset + span.count)

    def _find(self) -> List[int]:
        return [(local(entry.tensor) if is_dtensor(entry.tensor) else entry.tensor).data_ptr()
                for entry in self._trained]

    @torch.no_grad()
    def _prepare(self, fragments: Sequence[int], sends: bool = True) -> None:
        """Tells the library where the tensors are, and fills the stand-ins of these fragments."""
        super()._prepare(fragments, sends)
        if self._find() != self._addresses:
            table = self._look_up()
            if table != self._table:
                self._arena.move(table)
                self._table = table
        for tensor in self._with_stand_ins(fragments):
            self._stand_ins[tensor].copy_(local(self._trained[tensor].tensor))

    def _with_stand_ins(self, fragments: Sequence[int]) -> List[int]:
        return sorted({span.tensor for fragment in fragments if self._stand_ins
                       for span in self._fragments[fragment]} & set(self._stand_ins))

    def _mine(self, piece: Piece) -> torch.Tensor:
        values = self._stand_ins.get(piece.tensor)
        return super()._mine(piece) if values is None else values.view(piece.shape)[piece.inside]

    @torch.no_grad()
    def initial(self, tensor: int, offset: int, values: Optional[np.ndarray], count: int) -> None:
        if not self._addresses:
            self._look_up()  # A process that follows hears later where it is to be.
        if tensor in self._stand_ins:
            self._stand_ins[tensor].copy_(local(self._trained[tensor].tensor))
        super().initial(tensor, offset, values, count)

    def _read(self, fragments: Sequence[int]) -> None:
        for fragment in fragments:
            if self._team.size > 1:
                outgoing, views = self._all_packed(self._way_of(fragment).to_owner, self._device)
                _copy([view for _, view in views], [self._mine(piece) for piece, _ in views])
                self._team.exchange(outgoing, self._incoming[fragment], on_device=True)
            else:
                for piece, view, _ in self._strays.get(fragment, ()):
                    view.copy_(self._mine(piece), non_blocking=True)  # Ordered in both devices' streams.
        # All have issued that when this returns: the library may use it.
        self._team.agree(lambda: self._arena.gather(fragments, self._streams_now()))

    def _streams_now(self) -> List[int]:
        return [stream_of(device) for device in self._devices.values()]

    def _write(self, fragments: Sequence[int]) -> None:
        self._give(fragments, False)
        self._team.agree(lambda: None)  # All have issued that: the library may write what any of them owns.

    def _give(self, fragments: Sequence[int], published: bool) -> None:
        self._team.agree(lambda: self._arena.scatter(fragments, self._streams_now(), published))
        for fragment in fragments:
            if self._team.size > 1:
                self._hand_out(fragment)
            else:
                for piece, view, _ in self._strays.get(fragment, ()):
                    self._mine(piece).copy_(view, non_blocking=True)
        for tensor in self._with_stand_ins(fragments):
            local(self._trained[tensor].tensor).copy_(self._stand_ins[tensor])
        for fragment in fragments:
            for span in self._fragments[fragment]:
                self._round(self._to_round(span))

    def _to_round(self, span: Range) -> List[Piece]:
        """What this process has of a range, if it has a copy: in the tensors themselves, not in stand-ins."""
        entry = self._trained[span.tensor]
        if entry.copy is None:
            return []
        contiguous = all(local(tensor).is_contiguous() for tensor in (entry.tensor, entry.copy))
        return cut(span, entry.shape, self._parts[span.tensor][self._team.rank], contiguous)

    def _hand_out(self, fragment: int) -> None:
        """Other holders get what this process owns, and it what they own."""
        the_way = self._way_of(fragment)
        outgoing, views = self._all_packed(the_way.to_holder, self._device)
        sources = [(piece.at, self._mine(piece)) for piece in the_way.own] + \
            [(piece.at, view) for piece, view, _ in self._strays[fragment]]
        sources.sort(key=lambda source: source[0])  # No two have a value in common.
        begins, ends = zip(*[(at, at + source.numel()) for at, source in sources]) if sources else ((), ())
        to, from_ = [], []
        for piece, view in views:
            first = bisect.bisect_right(ends, piece.at)
            for at, source in sources[first:bisect.bisect_left(begins, piece.at + view.numel())]:
                begin, end = max(at, piece.at), min(at + source.numel(), piece.at + view.numel())
                to.append(view[begin - piece.at:end - piece.at])
                from_.append(source[begin - at:end - at])
        _copy(to, from_)
        incoming, theirs = self._all_packed(the_way.from_owner, self._device)
        self._team.exchange(outgoing, incoming, on_device=True)
        _copy([self._mine(piece) for piece, _ in theirs], [view for _, view in theirs])

    def _is_kept(self, entry: Trained) -> bool:
        return False

    def _show(self, published: Any) -> Callable[[], None]:
        self._give(range(len(self._fragments)), True)
        return lambda: None


def _copy(to: List[torch.Tensor], source: List[torch.Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)
