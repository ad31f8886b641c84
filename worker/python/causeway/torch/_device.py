"""The values of a PyTorch model on a CUDA device, read and written there by the library's kernels.

A step issues work to the device, and waits for none of it. Only codes cross to the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np
import torch

from causeway import _library as lib
from causeway import errors
from causeway._session import DeviceTensor, Range, device_tensors
from causeway.torch._group import Solo
from causeway.torch._parameters import Trained, invalid, is_dtensor, local
from causeway.torch._values import TorchValues

log = logging.getLogger("causeway")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WAYS = ("device", "pinned", "host")


def place_of(tensor: torch.Tensor) -> Optional[int]:
    """The number of the CUDA device that has it; None: none has."""
    return tensor.device.index if tensor.is_cuda and torch.version.hip is None else None


def stream_of(device: torch.device) -> int:
    """The stream in which the trainer's work is ordered, as an address."""
    return torch.cuda.current_stream(device).cuda_stream


def device_for(trained: Sequence[Trained], team: Solo) -> Tuple[Optional[int], str]:
    """The device on which the values of a site can be, or None and why they cannot; no reason where
    they are on no accelerator."""
    place, reason = _device_here(trained, team)
    if all(team.all_parts([place is not None])[0]) or place is None:
        return place, reason
    return None, "another process of the site cannot have them on its device"


def _device_here(trained: Sequence[Trained], team: Solo) -> Tuple[Optional[int], str]:
    tensors = [local(entry.tensor) for entry in trained]
    places = {place_of(tensor) for tensor in tensors}
    if places == {None}:
        kinds = {"ROCm" if tensor.is_cuda else tensor.device.type for tensor in tensors} - {"cpu"}
        return None, f"there are no kernels for devices of {min(kinds)}" if kinds else ""
    if len(places) > 1:
        return None, "its tensors are on several devices"
    if team.size > 1 and any(is_dtensor(entry.tensor) for entry in trained):
        return None, "they are sharded over several processes"
    if team.size > 1 and not (team.spreads(tensors[0].device) and
                              all(tensor.is_contiguous() for tensor in tensors)):
        return None, "the processes of the site cannot hand over values from device to device"
    place = places.pop()
    if not team.leads:
        return place, ""
    try:
        lib.call("causeway_device_check", place)
    except errors.Error as error:
        return None, error.message
    return place, ""


class DeviceValues(TorchValues):
    """Values of a site whose tensors are on one CUDA device in each process, all of them in all.

    The process that leads has the library's values, and spreads what was merged over the trainer's
    own process group.
    A tensor that is not contiguous, or that moved to another device after the join, has a stand-in
    on the device, to and from which it is copied.

    Args:
        arguments: as of TorchValues.
        place: CUDA's number of the device.
        pinned: the published values are in page-locked host memory.
    """

    def __init__(self, *arguments: Any, place: int, pinned: bool) -> None:
        super().__init__(*arguments)
        self._place = place
        self._pinned = pinned
        self._device = local(self._trained[0].tensor).device
        self._dtypes = [entry.tensor.dtype for entry in self._trained]
        self._stand_ins: Dict[int, torch.Tensor] = {}
        self._told: Set[int] = set()
        self._table: List[DeviceTensor] = []
        self._addresses: List[int] = []

    def on_device(self) -> Any:
        """The field of causeway_site_options."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # What torch keeps for later is not there for others.
        self._table = self._look_up()
        tensors = device_tensors(self._table)
        return ctypes.pointer(lib.DeviceStruct(ctypes.sizeof(lib.DeviceStruct), self._place,
                                               int(self._pinned), tensors))

    def attach(self, arena: Any, fragments: Sequence[Sequence[Range]]) -> None:
        self._fragments = fragments
        self._arena = arena

    def settle(self) -> None:
        pass  # What reads the library's values is ordered on the device.

    def _look_up(self) -> List[DeviceTensor]:
        """Where the tensors are now."""
        table = []
        for index, entry in enumerate(self._trained):
            values = local(entry.tensor)
            if values.dtype != self._dtypes[index]:
                raise invalid(f"{entry.name} is of {values.dtype} now and was of "
                              f"{self._dtypes[index]} when the site joined: keep its type, or join "
                              "again")
            here = place_of(values) == self._place
            if here and values.is_contiguous():
                self._stand_ins.pop(index, None)
            else:
                if index not in self._stand_ins:
                    self._stand_ins[index] = torch.empty(values.shape, dtype=values.dtype,
                                                         device=self._device)
                if not here and index not in self._told:
                    self._told.add(index)
                    log.warning("%s is on %s now, the site's values on %s: it is copied to and fro, "
                                "which the training thread waits for at every step that sends or "
                                "merges it", entry.name, values.device, self._device)
                values = self._stand_ins[index]
            table.append(DeviceTensor(values.data_ptr(), _TYPES[values.dtype]))
        self._addresses = self._find()
        return table

    def _find(self) -> List[int]:
        return [(local(entry.tensor) if is_dtensor(entry.tensor) else entry.tensor).data_ptr()
                for entry in self._trained]

    def _follow(self, fragments: Sequence[int]) -> List[int]:
        """Tells the library where the tensors are, and fills the stand-ins of these fragments, which
        it returns."""
        if self._find() != self._addresses:
            table = self._look_up()
            if table != self._table:
                self._arena.move(table)
                self._table = table
        if not self._stand_ins:
            return []
        tensors = sorted({span.tensor for fragment in fragments
                          for span in self._fragments[fragment]} & set(self._stand_ins))
        for tensor in tensors:
            self._stand_ins[tensor].copy_(local(self._trained[tensor].tensor))
        return tensors

    def _read(self, fragments: Sequence[int]) -> None:
        if fragments and self._team.leads:
            self._follow(fragments)
            self._arena.gather(fragments, stream_of(self._device))

    def _write(self, fragments: Sequence[int]) -> None:
        self._give(fragments, False)

    def _give(self, fragments: Sequence[int], published: bool) -> None:
        if not fragments:
            return
        if self._team.leads:
            tensors = self._follow(fragments)
            self._arena.scatter(fragments, stream_of(self._device), published)
            for tensor in tensors:
                local(self._trained[tensor].tensor).copy_(self._stand_ins[tensor])
        for fragment in fragments:
            spans = self._fragments[fragment]
            for dtype in set(self._dtypes) if self._team.size > 1 else ():
                self._spread([span for span in spans if self._dtypes[span.tensor] == dtype])
            if any(entry.copy is not None for entry in self._trained):
                self._round(self._pieces(spans, self._team.rank, False))

    def _spread(self, spans: Sequence[Range]) -> None:
        if not spans:
            return
        views = [local(self._trained[span.tensor].tensor).view(-1)[
            span.tensor_offset:span.tensor_offset + span.count] for span in spans]
        together = torch.cat(views)
        self._team.spread(together)
        if not self._team.leads:
            torch._foreach_copy_(views, list(together.split([span.count for span in spans])))

    @contextlib.contextmanager
    def replaced(self, published: Any) -> Iterator[None]:
        """Own values wait on the host meanwhile."""
        self.check(sends=False)
        with torch.no_grad():
            own = [tensor for entry in self._trained
                   for tensor in (entry.tensor, entry.copy) if tensor is not None]
            copies = [(tensor, local(tensor).to("cpu", copy=True)) for tensor in own]
            self._give(range(len(self._fragments)), True)
            torch.clear_autocast_cache()
        try:
            yield
        finally:
            self._watch.reshard()
            with torch.no_grad():
                torch.clear_autocast_cache()
                for tensor, copy in copies:  # Which may lie elsewhere now (model.cpu()).
                    local(tensor).copy_(copy)

    def not_finite(self, fragments: Sequence[int]) -> Optional[str]:
        """The name of a tensor of these fragments with a value that is not finite."""
        for fragment in fragments:
            for span in self._fragments[fragment]:
                if not bool(torch.isfinite(local(self._trained[span.tensor].tensor)).all()):
                    return self._trained[span.tensor].name
        return None

    def _exact(self, span: Range) -> np.ndarray:
        return self._arena.local(span)

    def _set_exact(self, span: Range, values: np.ndarray) -> None:
        self._arena.set_local(span, values)
