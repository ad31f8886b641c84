"""The values of a PyTorch model: copies between parameters on any device, in any process, and the
arenas.

The arena holds every value in fp32, in a site of several processes that of the one that owns it. A
bfloat16 or float16 parameter is a rounded copy of its value there: what rounding left out stays in the
arena and is added when the parameter is read again, so that no merge vanishes, at no further memory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import mmap
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from causeway import errors
from causeway._links import Share
from causeway._session import Handle, Range
from causeway.torch._group import Solo
from causeway.torch._parameters import Part, Trained, local
from causeway.torch._shares import Piece, Way, owned, shares, way
from causeway.torch._watch import Watch

log = logging.getLogger("causeway")
# Values, of which temporary copies are made.
_FOLDED_AT_ONCE = 1 << 20
_PAGE = mmap.PAGESIZE


def _in_arena(arena: torch.Tensor, piece: Piece) -> torch.Tensor:
    return arena.as_strided(piece.size, piece.strides, piece.at)


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
        self._shapes = [entry.shape for entry in trained]
        self._look_at_memory()
        self._here: Optional[Handle] = None
        self._arena: Any = None
        self._fragments: Sequence[Sequence[Range]] = []
        self._owned: List[List[List[Range]]] = []  # Of each fragment, by each process.
        self._streams: Dict[torch.device, Any] = {}
        self._reading: List[Any] = []  # Events of copies out of the arena.

    def table(self) -> List[Tuple[str, Tuple[int, ...]]]:
        return [(entry.name, entry.shape) for entry in self._trained]

    def shares(self) -> List[Share]:
        return shares(self._shapes, self._parts)

    def attach(self, here: Handle, fragments: Sequence[Sequence[Range]]) -> None:
        self._here = here
        self._fragments = fragments
        if self._team.size == 1:
            self._owned = [[list(spans)] for spans in fragments]
            self._attach_memory(None)
            return
        self._owned = self._owned_by(self._team.size)
        self._attach_memory([(piece.begin, piece.end) for piece in here.pieces(self._team.rank)])

    def _owned_by(self, ranks: int) -> List[List[List[Range]]]:
        """Of each fragment, by each rank."""
        pieces = [self._here.pieces(rank) for rank in range(ranks)]
        return [[owned(spans, [piece for piece in of_rank if piece.fragment == fragment]) for of_rank in pieces]
                for fragment, spans in enumerate(self._fragments)]

    def _attach_memory(self, stretches: Optional[Sequence[Tuple[int, int]]]) -> None:
        """Of the arena, of which this process has these values; None: all."""
        self._arena = torch.frombuffer(self._here.arena(), dtype=torch.float32)
        self._pin([(0, self._arena.numel())] if stretches is None else stretches)

    def _pin(self, stretches: Sequence[Tuple[int, int]]) -> None:
        """Makes pages of the arena stay, so that a GPU copies to and from them by itself."""
        if not any(local(entry.tensor).is_cuda for entry in self._trained):
            return
        for address, size in pages(self._arena.data_ptr(), self._arena.nbytes, stretches):
            if int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0:
                weakref.finalize(self, _unpin, address)

    def _look_at_memory(self) -> None:
        self._contiguous = [all(local(tensor).is_contiguous() for tensor in
                                (entry.tensor, entry.copy) if tensor is not None)
                            for entry in self._trained]
        self._ways: Dict[int, Way] = {}

    def check(self, sends: bool = True) -> None:
        """Raises Refused if other tensors are trained than at first."""
        if self._watch.check(sends):
            self._look_at_memory()

    # --- Boxes ------------------------------------------------------------------------------------

    def _way(self, owned_by: Sequence[Sequence[Range]]) -> Way:
        return way(owned_by, self._team.rank, self._shapes, self._parts, self._contiguous)

    def _way_of(self, fragment: int) -> Way:
        if fragment not in self._ways:
            self._ways[fragment] = self._way(self._owned[fragment])
        return self._ways[fragment]

    def _mine(self, piece: Piece) -> torch.Tensor:
        return self._box(self._trained[piece.tensor].tensor, piece)

    @staticmethod
    def _box(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
        values = local(tensor)
        return (values.view(piece.shape) if len(piece.shape) == 1 else values)[piece.inside]

    def _dtype(self, piece: Piece) -> torch.dtype:
        return self._trained[piece.tensor].tensor.dtype

    def _packed(self, pieces: Sequence[Piece], device: Any) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        """A buffer on a device for these pieces in their own types, and a view of each. Those of one tensor follow each
        other without gaps: who sees them as others, but as many values, finds these."""
        places, end, before = [], 0, None
        for piece in pieces:
            end = end if piece.tensor == before else -(-end // 8) * 8
            before = piece.tensor
            places.append(slice(end, end + math.prod(piece.size) * self._dtype(piece).itemsize))
            end = places[-1].stop
        buffer = torch.empty(end, dtype=torch.uint8, device=device)
        return buffer, [buffer[place].view(self._dtype(piece)).view(piece.size)
                        for piece, place in zip(pieces, places)]

    def _all_packed(self, pieces_of: Dict[int, List[Piece]], device: Any = "cpu") -> \
            Tuple[Dict[int, torch.Tensor], List[Tuple[Piece, torch.Tensor]]]:
        """Buffers for some processes, and the views of all of them. Those that get the same share one."""
        buffers: Dict[int, torch.Tensor] = {}
        views: List[Tuple[Piece, torch.Tensor]] = []
        for rank, pieces in pieces_of.items():
            same = next((other for other in buffers if pieces_of[other] == pieces), None)
            if same is not None:
                buffers[rank] = buffers[same]
                continue
            buffers[rank], of_rank = self._packed(pieces, device)
            views.extend(zip(pieces, of_rank))
        return buffers, views

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

    def stepped(self) -> None:
        self.settle()
        self._watch.after_step()

    @torch.no_grad()
    def read(self, fragments: Sequence[int]) -> None:
        self._watch.hear()
        if not fragments:
            return
        # No process hands anything over unless all of them still have the right tensors.
        self._team.agree(lambda: self._prepare(fragments))
        self._watch.before_read(span.tensor for fragment in fragments
                                for span in self._fragments[fragment])
        self._read(fragments)

    def _prepare(self, _fragments: Sequence[int], sends: bool = True) -> None:
        self.check(sends)

    def _read(self, fragments: Sequence[int]) -> None:
        for fragment in fragments:
            self._gather(self._way_of(fragment), self._arena)
        self._team.agree(lambda: None)  # All have what they own: the library may use it.

    def _gather(self, the_way: Way, arena: torch.Tensor) -> None:
        """Owners get values into their arenas."""
        outgoing, views = self._all_packed(the_way.to_owner)
        incoming, theirs = self._all_packed(the_way.from_holder)
        mine = [self._mine(piece) for piece in the_way.own]
        given = [self._mine(piece) for piece, _ in views]
        rounded = []
        with self._aside(mine + given, out=True):
            for piece, values in zip(the_way.own, mine):
                if values.dtype == torch.float32:
                    _in_arena(arena, piece).copy_(values, non_blocking=values.is_cuda)
                else:
                    rounded.append((piece, self._to_host(values)))
            hosts = [self._to_host(values) for values in given]
        for (_, view), values in zip(views, hosts):
            view.copy_(values)
        self._team.exchange(outgoing, incoming)
        for piece, values in rounded + theirs:
            self._store(_in_arena(arena, piece), values)

    @staticmethod
    def _store(master: torch.Tensor, values: torch.Tensor) -> None:
        if values.dtype == torch.float32:
            master.copy_(values)
        else:
            _fold(master, values)

    @torch.no_grad()
    def initial(self, tensor: int, offset: int, values: Optional[np.ndarray], count: int) -> None:
        # As if the process that leads owned them.
        owned_by: List[List[Range]] = [[] for _ in range(self._team.size)]
        owned_by[0].append(Range(tensor, offset, 0, count))
        rows = torch.zeros(count if self._team.leads else 0, dtype=torch.float32, device="cpu")
        self._gather(self._way(owned_by), rows)
        if values is not None:
            values[:] = rows.numpy()

    # --- Arena to parameters ----------------------------------------------------------------------

    @torch.no_grad()
    def write(self, fragments: Sequence[int]) -> None:
        if not fragments:
            return
        self._team.agree(lambda: self._prepare(fragments, sends=False))
        self._watch.before_write(span.tensor for fragment in fragments
                                 for span in self._fragments[fragment])
        self._write(fragments)
        self._watch.after_write()

    def _write(self, fragments: Sequence[int]) -> None:
        for fragment in fragments:
            self._scatter(self._way_of(fragment), self._arena)
        if self._team.size > 1:
            self.settle()
            self._team.agree(lambda: None)  # The library may write what any of them owns.

    def _scatter(self, the_way: Way, source: torch.Tensor) -> None:
        """Holders get values that their owners have in `source`."""
        outgoing, views = self._all_packed(the_way.to_holder)
        incoming, theirs = self._all_packed(the_way.from_owner)
        for piece, values in views:
            values.copy_(_in_arena(source, piece))
        mine = [self._mine(piece) for piece in the_way.own]
        with self._aside(mine, out=False):
            for piece, values in zip(the_way.own, mine):
                self._to_device(values, _in_arena(source, piece))
        self._team.exchange(outgoing, incoming)
        for piece, values in theirs:
            self._mine(piece).copy_(values)
        self._round(the_way.own + [piece for piece, _ in theirs])

    def _round(self, pieces: Sequence[Piece]) -> None:
        """Parameters become rounded copies of their masters."""
        for piece in pieces:
            entry = self._trained[piece.tensor]
            if entry.copy is not None:
                self._box(entry.copy, piece).copy_(self._box(entry.tensor, piece))

    # --- Published values and what is kept --------------------------------------------------------

    @contextlib.contextmanager
    def replaced(self, published: Any) -> Iterator[None]:
        """Own values wait on the host meanwhile: in the arena if it keeps them, else in a copy."""
        self._team.agree(lambda: self._prepare(range(len(self._fragments)), sends=False))
        with torch.no_grad():
            own = [tensor for entry in self._trained
                   for tensor in (None if self._is_kept(entry) else entry.tensor, entry.copy) if tensor is not None]
            copies = [(tensor, local(tensor).to("cpu", copy=True)) for tensor in own]
            give_back = self._show(published)
            torch.clear_autocast_cache()
        try:
            yield
        finally:
            self._watch.reshard()
            with torch.no_grad():
                torch.clear_autocast_cache()
                give_back()
                for tensor, copy in copies:  # Which may lie elsewhere now (model.cpu()).
                    local(tensor).copy_(copy)

    def _is_kept(self, entry: Trained) -> bool:
        """Whether the arena has exact values of a tensor while published ones are in their place."""
        return self._team.size == 1 and entry.tensor.dtype == torch.float32

    def _show(self, published: Any) -> Callable[[], None]:
        """Puts published values in place. Gives what puts those back that the arena keeps."""
        give_back: Callable[[], None] = lambda: None
        if self._team.size == 1:
            exact = self._way([[span for spans in self._fragments for span in spans
                                if self._is_kept(self._trained[span.tensor])]])
            self._gather(exact, self._arena)
            give_back = functools.partial(self._scatter, exact, self._arena)
        source = torch.frombuffer(published, dtype=torch.float32)
        for fragment in range(len(self._fragments)):
            self._scatter(self._way_of(fragment), source)
        return give_back

    def not_finite(self, fragments: Sequence[int]) -> Optional[str]:
        for fragment in fragments:
            spans = self._fragments[fragment]
            for span, values in zip(spans, self._exact(spans)):
                if not np.isfinite(values).all():
                    return self._trained[span.tensor].name
        return None

    def _rounded(self) -> List[List[Range]]:
        """Of each fragment, the ranges whose parameters are not in fp32."""
        return [[span for span in spans if self._trained[span.tensor].tensor.dtype != torch.float32]
                for spans in self._fragments]

    def _exact(self, spans: Sequence[Range]) -> Iterator[np.ndarray]:
        """Exact local values of ranges of one fragment, wherever they are. In the process that leads."""
        if spans:
            around = _around(spans)
            yield from _parts(spans, around, self._here.local(around))

    def _set_exact(self, spans: Sequence[Range], values: Sequence[np.ndarray]) -> None:
        """Of ranges of one fragment."""
        around = _around(spans)
        exact = self._here.local(around)
        for to, part in zip(_parts(spans, around, exact), values):
            to[:] = part
        self._here.set_local(around, exact)

    def kept(self) -> np.ndarray:
        rounded = self._rounded()
        here = self._watch.values() if self._team.size == 1 else np.zeros(0, np.float32)
        kept = np.empty(sum(span.count for spans in rounded for span in spans) + here.size, np.float32)
        at = 0
        for spans in rounded:
            for values in self._exact(spans):  # Of one fragment at a time.
                kept[at:at + values.size] = values
                at += values.size
        kept[at:] = here
        return kept.view(np.uint8)

    def restore(self, kept: np.ndarray, but: Sequence[int]) -> None:
        if not self._team.leads:
            return
        values = kept.copy().view(np.float32)
        at = 0
        for fragment, spans in enumerate(self._rounded()):
            parts = []
            for span in spans:
                parts.append(values[at:at + span.count])
                at += span.count
            if at > values.size:
                raise errors.DataLoss("the state was taken of a model with other types: restore "
                                      "the model as it was saved")
            if spans and fragment not in but:
                self._set_exact(spans, parts)
        # A site of several processes has no more, and one of a former release.
        here = self._watch.values()
        if self._team.size == 1 and values.size - at == here.size and not np.array_equal(values[at:], here):
            log.warning("%s has other values than when the state was taken: what differs counts as trained here, and "
                        "goes to all. Restore the model, as it was saved with this state, before join()",
                        self._trained[self._watch.last].name)


def _around(spans: Sequence[Range]) -> Range:
    """What of the arena begins and ends with these ranges."""
    begin = min(span.arena_offset for span in spans)
    end = max(span.arena_offset + span.count for span in spans)
    return spans[0]._replace(arena_offset=begin, count=end - begin)


def _parts(spans: Sequence[Range], around: Range, values: np.ndarray) -> List[np.ndarray]:
    begins = [span.arena_offset - around.arena_offset for span in spans]
    return [values[begin:begin + span.count] for begin, span in zip(begins, spans)]


def pages(address: int, size: int, stretches: Sequence[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Addresses and sizes of the pages of `size` bytes of fp32 values that have these stretches of them,
    sorted, in memory. None is in two."""
    found: List[List[int]] = []
    for begin, end in sorted(stretches):
        first = max(address, (address + 4 * begin) // _PAGE * _PAGE)
        last = min(address + size, -(-(address + 4 * end) // _PAGE) * _PAGE)
        if found and first <= found[-1][1]:
            found[-1][1] = max(last, found[-1][1])
        elif first < last:
            found.append([first, last])
    return [(first, last - first) for first, last in found]


def _unpin(address: int) -> None:
    torch.cuda.synchronize()  # Copies may be under way.
    torch.cuda.cudart().cudaHostUnregister(address)
