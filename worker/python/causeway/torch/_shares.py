"""Which process of a site owns which values, and what crosses between those that hold and those that
own them.

A process holds the part of each tensor that its model has; others may hold the same. It owns values
that the library encodes and merges in it, and they alone are in its arena.
"""

from __future__ import annotations

import bisect
import math
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from causeway._links import Share
from causeway._session import Owned, Range
from causeway.torch._parameters import Part

_Shape = Tuple[int, ...]


class Piece(NamedTuple):
    """A box that some values of an arena and one process's part of a tensor have in common."""

    tensor: int
    shape: _Shape               # As which the process sees its part.
    inside: Tuple[slice, ...]   # The box in it.
    size: _Shape
    at: int                     # Its first value in the arena,
    strides: _Shape             # and its others.


class Way(NamedTuple):
    """What one process does so that values get from their holders to their owners, and back."""

    own: List[Piece]                # It holds and owns them.
    to_owner: Dict[int, List[Piece]]      # Held here, handed to that process, which owns them.
    from_holder: Dict[int, List[Piece]]   # Owned here, and handed over by that one.
    to_holder: Dict[int, List[Piece]]     # Owned here, and held by that one.
    from_owner: Dict[int, List[Piece]]    # Held here, owned by that one.


def _strides(shape: _Shape) -> _Shape:
    return tuple(math.prod(shape[at + 1:]) for at in range(len(shape)))


def is_rows(part: Part, whole: _Shape) -> bool:
    """Whether the part is whole rows of a tensor of that shape."""
    return part.offset[1:] == (0,) * (len(whole) - 1) and part.shape[1:] == whole[1:]


def stretch(part: Part) -> Tuple[int, int]:
    """Which values of the tensor, row-major, the part is, if it is whole rows."""
    begin = math.prod((*part.offset[:1], *part.shape[1:])) if part.offset else 0
    return begin, begin + math.prod(part.shape)


def shares(shapes: Sequence[_Shape], parts: Sequence[Sequence[Part]]) -> List[Share]:
    """What each process is to own: what it holds, as far as its part is whole rows, and as many values
    as each other of those that hold the same. A tensor that is sharded otherwise is cut into as many
    pieces as processes hold a part of it.

    Args:
        shapes: of tensors.
        parts: of each, the part of every process. The same in all of them.

    Returns:
        Every value once.
    """
    found = []
    for tensor, (whole, held) in enumerate(zip(shapes, parts)):
        held = [part for part in held if math.prod(part.shape) > 0]
        rows = all(is_rows(part, whole) for part in held)
        holders: Dict[Tuple[int, int], List[int]] = {}
        for part in held:
            holders.setdefault(stretch(part) if rows else (0, math.prod(whole)), []).append(part.rank)
        for (begin, end), ranks in sorted(holders.items()):
            cuts = [begin + (end - begin) * at // len(ranks) for at in range(len(ranks) + 1)]
            found.extend(Share(tensor, first, last, rank)
                         for first, last, rank in zip(cuts, cuts[1:], ranks) if first < last)
    return found


def owned(spans: Sequence[Range], pieces: Sequence[Owned]) -> List[Range]:
    """What lies in `pieces`, which are sorted, of some ranges."""
    ends = [piece.end for piece in pieces]
    found = []
    for span in spans:
        end = span.arena_offset + span.count
        for piece in pieces[bisect.bisect_right(ends, span.arena_offset):]:
            if piece.begin >= end:
                break
            begin = max(piece.begin, span.arena_offset)
            found.append(Range(span.tensor, span.tensor_offset + begin - span.arena_offset, begin,
                               min(piece.end, end) - begin))
    return found


def _boxes(begin: int, end: int, whole: _Shape, offset: _Shape, extent: _Shape) -> Iterator[Tuple[_Shape, _Shape]]:
    """Where values `begin` .. `end` of a tensor are in a box of it, as boxes: origin and size. In order:
    one after the other they are the values, row-major."""
    row = math.prod(whole[1:])
    first, last = -(-begin // row), end // row

    def in_row(at: int, begin: int, end: int) -> Iterator[Tuple[_Shape, _Shape]]:
        if begin < end and offset[0] <= at < offset[0] + extent[0]:
            for origin, size in _boxes(begin, end, whole[1:], offset[1:], extent[1:]):
                yield (at, *origin), (1, *size)

    if first > last:
        yield from in_row(last, begin - last * row, end - last * row)
        return
    yield from in_row(first - 1, begin - (first - 1) * row, row)
    low, high = max(first, offset[0]), min(last, offset[0] + extent[0])
    if low < high:
        yield (low, *offset[1:]), (high - low, *extent[1:])
    yield from in_row(last, 0, end - last * row)


def cut(span: Range, whole: _Shape, part: Part, contiguous: bool) -> List[Piece]:
    """What `part` has of a range of a tensor of shape `whole`: in the same order and as many values,
    whether it is contiguous or not."""
    if math.prod(part.shape) == 0:
        return []
    offset, extent = part.offset, part.shape
    if contiguous and is_rows(part, whole):
        begin, end = stretch(part)
        offset, extent, whole = (begin,), (end - begin,), (math.prod(whole),)
    strides = _strides(whole)
    return [Piece(span.tensor, extent,
                  tuple(slice(at - here, at - here + length) for at, here, length in zip(origin, offset, size)), size,
                  span.arena_offset - span.tensor_offset + sum(at * step for at, step in zip(origin, strides)), strides)
            for origin, size in _boxes(span.tensor_offset, span.tensor_offset + span.count, whole, offset, extent)]


def way(owned_by: Sequence[Sequence[Range]], rank: int, shapes: Sequence[_Shape],
        parts: Sequence[Sequence[Part]], contiguous: Sequence[bool]) -> Way:
    """What process `rank` does.

    Owners take from themselves what they hold, and all else from the first that holds it.

    Args:
        owned_by: ranges that each process owns.
        contiguous: of each tensor, whether the part of this process is.
    """
    def between(holder: int, owner: int, reading: bool) -> List[Piece]:
        found = []
        for span in owned_by[owner]:
            part, theirs = parts[span.tensor][holder], parts[span.tensor][owner]
            if reading and (not part.first or (part.offset, part.shape) == (theirs.offset, theirs.shape)):
                continue
            found.extend(cut(span, shapes[span.tensor], part, holder != rank or contiguous[span.tensor]))
        return found

    def with_others(reading: bool, holds: bool) -> Dict[int, List[Piece]]:
        found = {other: between(rank, other, reading) if holds else between(other, rank, reading)
                 for other in range(len(owned_by)) if other != rank}
        return {other: pieces for other, pieces in found.items() if pieces}

    own = [piece for span in owned_by[rank]
           for piece in cut(span, shapes[span.tensor], parts[span.tensor][rank], contiguous[span.tensor])]
    return Way(own, with_others(True, True), with_others(True, False), with_others(False, False),
               with_others(False, True))
