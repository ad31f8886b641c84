"""The values of a PyTorch model: copies between parameters on any device, in any process, and the
arena.

The arena holds every value in fp32. A bfloat16 or float16 parameter is a rounded copy of its value
there: what rounding left out stays in the arena and is added when the parameter is read again, so
that no merge vanishes, at no further memory.
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from causeway import errors
from causeway._session import Range
from causeway.torch._group import Solo
from causeway.torch._parameters import Part, Trained, local
from causeway.torch._watch import Watch

log = logging.getLogger("causeway")
_Index = Tuple[slice, ...]
# Values, of which temporary copies are made.
_FOLDED_AT_ONCE = 1 << 20


class _Piece(NamedTuple):
    """A box that a fragment and one process's part of a tensor have in common."""

    tensor: int
    shape: Tuple[int, ...]   # As which the process sees its part.
    inside: _Index           # The box in it.
    arena: Range
    rows: Tuple[int, ...]    # The shape of the range in the arena.
    place: _Index            # The box in it.
    size: Tuple[int, ...]


def _cut(span: Range, whole: Tuple[int, ...], part: Part, contiguous: bool) -> Optional[_Piece]:
    """What `part` has of a range of a tensor of shape `whole`."""
    offset, extent = part.offset, part.shape
    if contiguous and offset[1:] == (0,) * (len(whole) - 1) and extent[1:] == whole[1:]:
        # Whole rows: one stretch of values.
        row = math.prod(whole[1:])
        offset = (offset[0] * row if offset else 0,)
        extent, whole = (math.prod(extent),), (math.prod(whole),)
    row = math.prod(whole[1:])
    if row == 0:
        return None
    if span.tensor_offset % row or span.count % row:
        raise errors.Refused("a fragment ends inside a row of a tensor that is sharded by columns "
                             "or not contiguous: choose another pattern of fragments, or shard by "
                             "rows", "FAILED_PRECONDITION")
    first, rows = span.tensor_offset // row, span.count // row
    begin = max(first, offset[0])
    end = min(first + rows, offset[0] + extent[0])
    if begin >= end or math.prod(extent) == 0:
        return None
    columns = tuple(slice(at, at + size) for at, size in zip(offset[1:], extent[1:]))
    return _Piece(span.tensor, extent,
                  (slice(begin - offset[0], end - offset[0]),) +
                  tuple(slice(0, size) for size in extent[1:]),
                  span, (rows,) + whole[1:], (slice(begin - first, end - first),) + columns,
                  (end - begin,) + extent[1:])


def _in_arena(arena: torch.Tensor, piece: _Piece) -> torch.Tensor:
    span = piece.arena
    return arena[span.arena_offset:span.arena_offset + span.count].view(piece.rows)[piece.place]


def _fold(master: torch.Tensor, values: torch.Tensor) -> None:
    """`master`, fp32, becomes `values`, which trained from a rounded copy of it, and what that
    rounding left out. It always rounds to `values`."""
    if values.numel() > _FOLDED_AT_ONCE and values.shape[0] > 1:
        for part, of_values in zip(master.chunk(2), values.chunk(2)):
            _fold(part, of_values)
        return
    low = values.dtype
    new = values.float()
    moved = new + (master - master.to(low).float())
    master.copy_(torch.where(moved.to(low) == values, moved, new))


class TorchValues:
    """Values of a site's processes. See `causeway._site.Values`.

    Args:
        trained: the tensors, the same in all processes.
        team: the processes.
        parts: of every tensor, the part of every process.
        watch: knows whether these still are the tensors that train.
    """

    def __init__(self, trained: Sequence[Trained], team: Solo, parts: Sequence[Sequence[Part]],
                 watch: Watch) -> None:
        self._trained = trained
        self._watch = watch
        self._team = team
        self._parts = parts
        self._look_at_memory()
        self._arena: Optional[torch.Tensor] = None
        self._fragments: Sequence[Sequence[Range]] = []
        self._streams: Dict[torch.device, Any] = {}
        self._reading: List[Any] = []  # Events of copies out of the arena.

    def table(self) -> List[Tuple[str, Tuple[int, ...]]]:
        return [(entry.name, entry.shape) for entry in self._trained]

    def attach(self, arena: Any, fragments: Sequence[Sequence[Range]]) -> None:
        self._fragments = fragments
        if arena is not None:
            self._arena = torch.frombuffer(arena, dtype=torch.float32)
            self._pin()

    def _pin(self) -> None:
        """Makes the arena's pages stay, so that a GPU copies to and from them by itself."""
        if not any(local(entry.tensor).is_cuda for entry in self._trained):
            return
        address = self._arena.data_ptr()
        if int(torch.cuda.cudart().cudaHostRegister(address, self._arena.nbytes, 0)) == 0:
            weakref.finalize(self, _unpin, address)

    def _look_at_memory(self) -> None:
        self._contiguous = [all(local(tensor).is_contiguous() for tensor in
                                (entry.tensor, entry.copy) if tensor is not None)
                            for entry in self._trained]

    def check(self, sends: bool = True) -> None:
        """Raises Refused if other tensors are trained than at first."""
        if self._watch.check(sends):
            self._look_at_memory()

    # --- Boxes ------------------------------------------------------------------------------------

    def _pieces(self, spans: Sequence[Range], rank: int, first_alone: bool) -> List[_Piece]:
        pieces = []
        for span in spans:
            part = self._parts[span.tensor][rank]
            if first_alone and not part.first:
                continue
            piece = _cut(span, self._trained[span.tensor].shape, part,
                         self._contiguous[span.tensor])
            if piece is not None:
                pieces.append(piece)
        return pieces

    def _mine(self, piece: _Piece) -> torch.Tensor:
        return self._box(self._trained[piece.tensor].tensor, piece)

    @staticmethod
    def _box(tensor: torch.Tensor, piece: _Piece) -> torch.Tensor:
        values = local(tensor)
        return (values.view(piece.shape) if len(piece.shape) == 1 else values)[piece.inside]

    def _dtype(self, piece: _Piece) -> torch.dtype:
        return self._trained[piece.tensor].tensor.dtype

    def _packed(self, pieces: Sequence[_Piece]) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        """A buffer for these pieces in their own types, and a view of each."""
        sizes = [math.prod(p.size) * self._dtype(p).itemsize for p in pieces]
        places = [0]
        for size in sizes:
            places.append(places[-1] + -(-size // 8) * 8)
        buffer = torch.empty(places[-1], dtype=torch.uint8, device="cpu")
        return buffer, [buffer[at:at + size].view(self._dtype(p)).view(p.size)
                        for p, at, size in zip(pieces, places, sizes)]

    # --- Devices ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _aside(self, tensors: Sequence[torch.Tensor], out: bool) -> Iterator[None]:
        """Copies of CUDA tensors inside go on a stream of their own, after what was ordered before.

        `out`: from the devices; they are done when the block ends. Otherwise work ordered later
        waits for them on the device, and `settle` on the host.
        """
        devices = sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
        with contextlib.ExitStack() as stack:
            for device in devices:
                if device not in self._streams:
                    self._streams[device] = torch.cuda.Stream(device)
                stream = self._streams[device]
                stream.wait_stream(torch.cuda.current_stream(device))
                stack.enter_context(torch.cuda.stream(stream))
            yield
        # Outside the block each device's current stream is the trainer's again.
        for device in devices:
            stream = self._streams[device]
            done = stream.record_event()
            if out:
                done.synchronize()
            else:
                torch.cuda.current_stream(device).wait_event(done)
                self._reading.append(done)

    @staticmethod
    def _to_host(values: torch.Tensor) -> torch.Tensor:
        """On the host, valid after `_aside`; the same if they are there."""
        if values.device.type == "cpu":
            return values
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda)
        return host.copy_(values, non_blocking=values.is_cuda)

    @staticmethod
    def _to_device(values: torch.Tensor, source: torch.Tensor) -> None:
        """In place. Rounds on the host, into pinned memory, where types differ."""
        if values.is_cuda and source.dtype != values.dtype:
            rounded = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
            source = rounded.copy_(source)
        values.copy_(source, non_blocking=values.is_cuda)

    def settle(self) -> None:
        for event in self._reading:
            event.synchronize()
        self._reading.clear()

    # --- Parameters to arena ----------------------------------------------------------------------

    @torch.no_grad()
    def read(self, fragments: Sequence[int]) -> None:
        self.settle()
        self._watch.after_step()
        if not fragments:
            return
        # No process hands anything over unless all of them still have the right tensors.
        self._team.agree(self.check)
        self._watch.before_read(span.tensor for fragment in fragments
                                for span in self._fragments[fragment])
        self._read(fragments)

    def _read(self, fragments: Sequence[int]) -> None:
        for fragment in fragments:
            self._gather(self._fragments[fragment], self._arena)

    def _gather(self, spans: Sequence[Range], arena: Optional[torch.Tensor]) -> None:
        """In the process that leads, `arena` gets the values of all processes."""
        if self._team.leads:
            self._take_own(self._pieces(spans, 0, True), arena)
            for rank in range(1, self._team.size):
                pieces = self._pieces(spans, rank, True)
                if not pieces:
                    continue
                buffer, views = self._packed(pieces)
                self._team.receive(buffer, rank)
                for piece, values in zip(pieces, views):
                    self._store(_in_arena(arena, piece), values)
            return
        pieces = self._pieces(spans, self._team.rank, True)
        if pieces:
            buffer, views = self._packed(pieces)
            mine = [self._mine(piece) for piece in pieces]
            with self._aside(mine, out=True):
                hosts = [self._to_host(values) for values in mine]
            for view, values in zip(views, hosts):
                view.copy_(values)
            self._team.send(buffer, 0)

    def _take_own(self, pieces: Sequence[_Piece], arena: torch.Tensor) -> None:
        mine = [self._mine(piece) for piece in pieces]
        later = []
        with self._aside(mine, out=True):
            for piece, values in zip(pieces, mine):
                if values.dtype == torch.float32:
                    _in_arena(arena, piece).copy_(values, non_blocking=values.is_cuda)
                else:
                    later.append((piece, self._to_host(values)))
        for piece, values in later:
            _fold(_in_arena(arena, piece), values)

    @staticmethod
    def _store(master: torch.Tensor, values: torch.Tensor) -> None:
        if values.dtype == torch.float32:
            master.copy_(values)
        else:
            _fold(master, values)

    @torch.no_grad()
    def initial(self, tensor: int, offset: int, values: Optional[np.ndarray], count: int) -> None:
        # Whole rows, of which some may not be asked for.
        row = max(1, math.prod(self._trained[tensor].shape[1:]))
        begin, end = offset // row * row, -(-(offset + count) // row) * row
        rows = torch.zeros(end - begin, dtype=torch.float32, device="cpu") if self._team.leads else None
        self._gather([Range(tensor, begin, 0, end - begin)], rows)
        if values is not None and rows is not None:
            values[:] = rows[offset - begin:offset - begin + count].numpy()

    # --- Arena to parameters ----------------------------------------------------------------------

    @torch.no_grad()
    def write(self, fragments: Sequence[int]) -> None:
        if not fragments:
            return
        self.check(sends=False)
        self._watch.before_write(span.tensor for fragment in fragments
                                 for span in self._fragments[fragment])
        self._write(fragments)
        self._watch.after_write()

    def _write(self, fragments: Sequence[int]) -> None:
        for fragment in fragments:
            self._scatter(self._fragments[fragment], self._arena)

    def _scatter(self, spans: Sequence[Range], source: Optional[torch.Tensor]) -> None:
        if self._team.leads:
            for rank in range(1, self._team.size):
                pieces = self._pieces(spans, rank, False)
                if not pieces:
                    continue
                buffer, views = self._packed(pieces)
                for piece, values in zip(pieces, views):
                    values.copy_(_in_arena(source, piece))
                self._team.send(buffer, rank)
            pieces = self._pieces(spans, 0, False)
            mine = [self._mine(piece) for piece in pieces]
            with self._aside(mine, out=False):
                for piece, values in zip(pieces, mine):
                    self._to_device(values, _in_arena(source, piece))
            self._round(pieces)
            return
        pieces = self._pieces(spans, self._team.rank, False)
        if pieces:
            buffer, views = self._packed(pieces)
            self._team.receive(buffer, 0)
            for piece, values in zip(pieces, views):
                self._mine(piece).copy_(values)
            self._round(pieces)

    def _round(self, pieces: Sequence[_Piece]) -> None:
        """Parameters become rounded copies of their masters."""
        for piece in pieces:
            entry = self._trained[piece.tensor]
            if entry.copy is not None:
                self._box(entry.copy, piece).copy_(self._box(entry.tensor, piece))

    # --- Published values and what is kept --------------------------------------------------------

    @contextlib.contextmanager
    def replaced(self, published: Any) -> Iterator[None]:
        """Own values wait on the host meanwhile: fp32 of a single process in the arena, others in a
        copy."""
        self.check(sends=False)
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        alone = self._team.size == 1
        with torch.no_grad():
            for entry in self._trained:
                values = local(entry.tensor)
                if not alone or values.dtype != torch.float32:
                    copies.append((entry.tensor, values.to("cpu", copy=True)))
                if entry.copy is not None:
                    copies.append((entry.copy, local(entry.copy).to("cpu", copy=True)))
            everything = [span for spans in self._fragments for span in spans]
            exact = [span for span in everything
                     if alone and self._trained[span.tensor].tensor.dtype == torch.float32]
            self._gather(exact, self._arena)
            source = None if published is None else torch.frombuffer(published,
                                                                     dtype=torch.float32)
            for spans in self._fragments:
                self._scatter(spans, source)
            torch.clear_autocast_cache()
        try:
            yield
        finally:
            self._watch.reshard()
            with torch.no_grad():
                torch.clear_autocast_cache()
                self._scatter(exact, self._arena)
                for tensor, copy in copies:  # Which may lie elsewhere now (model.cpu()).
                    local(tensor).copy_(copy)

    def not_finite(self, fragments: Sequence[int]) -> Optional[str]:
        for fragment in fragments:
            for span in self._fragments[fragment]:
                if not np.isfinite(self._exact(span)).all():
                    return self._trained[span.tensor].name
        return None

    def _rounded(self) -> Iterator[Tuple[int, Range]]:
        """Fragments and their ranges whose parameters are not in fp32."""
        for fragment, spans in enumerate(self._fragments):
            for span in spans:
                if self._trained[span.tensor].tensor.dtype != torch.float32:
                    yield fragment, span

    def _exact(self, span: Range) -> np.ndarray:
        return self._arena[span.arena_offset:span.arena_offset + span.count].numpy()

    def _set_exact(self, span: Range, values: np.ndarray) -> None:
        self._exact(span)[:] = values

    def kept(self) -> np.ndarray:
        parts = [self._exact(span) for _, span in self._rounded()]
        if self._team.size == 1:
            parts.append(self._watch.values())
        return np.concatenate(parts).view(np.uint8) if parts else np.zeros(0, np.uint8)

    def restore(self, kept: np.ndarray, but: Sequence[int]) -> None:
        if self._arena is None:
            return
        values = kept.copy().view(np.float32)
        at = 0
        for fragment, span in self._rounded():
            part = values[at:at + span.count]
            if part.size < span.count:
                raise errors.DataLoss("the state was taken of a model with other types: restore "
                                      "the model as it was saved", "DATA_LOSS")
            if fragment not in but:
                self._set_exact(span, part)
            at += span.count
        # A site of several processes has no more, and one of a former release.
        here = self._watch.values()
        if self._team.size == 1 and values.size - at == here.size and not np.array_equal(values[at:], here):
            log.warning("%s has other values than when the state was taken: what differs counts as trained here, and "
                        "goes to all. Restore the model, as it was saved with this state, before join()",
                        self._trained[self._watch.last].name)


def _unpin(address: int) -> None:
    torch.cuda.synchronize()  # Copies may be under way.
    torch.cuda.cudart().cudaHostUnregister(address)
