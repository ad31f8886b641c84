"""Reads token shards (`causeway-worker tokenize`, llm.c) or a text file, and draws windows of them.

Windows are drawn as causeway-worker draws them: without replacement, in an order that follows from
the run's seed, and every data slot has its own. Sites of both kinds can share the data of a run.
"""

from __future__ import annotations

import json
import pathlib
from typing import List, Tuple

import numpy as np

_LLMC = {20240520: np.uint16, 20240801: np.uint32}
_HEADER_BYTES = 1024
_HELD_OUT_PART = 20  # One in so many bytes of a text file.
_MASK = (1 << 64) - 1


def _shard(path: pathlib.Path, layout: str) -> np.ndarray:
    if layout != "llmc":
        return np.memmap(path, dtype=layout, mode="r")
    magic, _, count, _ = np.fromfile(path, dtype=np.int32, count=4)
    if magic not in _LLMC:
        raise ValueError(f"{path} is no shard of llm.c's: it begins with {magic}")
    return np.memmap(path, dtype=_LLMC[magic], mode="r", offset=_HEADER_BYTES, shape=(int(count),))


class Tokens:
    """A sequence of tokens in several shards."""

    def __init__(self, shards: List[np.ndarray]) -> None:
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._shards else 0

    def read(self, begin: int, count: int) -> np.ndarray:
        """int64 [count]."""
        parts = []
        index = int(np.searchsorted(self._ends, begin, side="right"))
        while count > 0:
            shard = self._shards[index]
            first = begin - (int(self._ends[index]) - len(shard))
            part = shard[first:first + count]
            parts.append(np.asarray(part, dtype=np.int64))
            begin, count, index = begin + len(part), count - len(part), index + 1
        return np.concatenate(parts)

    def window(self, index: int, length: int) -> np.ndarray:
        """int64 [length + 1]: inputs and, one token further, targets."""
        return self.read(index * length, length + 1)

    def windows(self, length: int) -> int:
        return max(0, len(self) - 1) // length


def open_data(path: pathlib.Path) -> Tuple[Tokens, Tokens]:
    """What is trained on and what is held out, of a folder of shards or of the bytes of a text."""
    if path.is_file():
        data = np.fromfile(path, dtype=np.uint8)
        cut = len(data) - len(data) // _HELD_OUT_PART
        return Tokens([data[:cut]]), Tokens([data[cut:]])
    description = json.loads((path / "data.json").read_text(encoding="utf-8"))
    layout = description.get("shard_format", "llmc")
    train, held_out = ([_shard(path / name, layout) for name in description[part]]
                       for part in ("train_shards", "held_out_shards"))
    return Tokens(train), Tokens(held_out)


def _mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xbf58476d1ce4e5b9 & _MASK
    x ^= x >> 27
    x = x * 0x94d049bb133111eb & _MASK
    return x ^ x >> 31


def random_bits(seed: int, stream: int, counter: int) -> int:
    """64 bits, as common/base/random.h has them."""
    key = _mix((seed + 0x9e3779b97f4a7c15) & _MASK) ^ _mix(stream * 0xd1342543de82ef95 & _MASK)
    rotated = (key << 32 | key >> 32) & _MASK
    return _mix((_mix((key + counter * 0x9e3779b97f4a7c15) & _MASK) + rotated) & _MASK)


def permuted(seed: int, stream: int, size: int, index: int) -> int:
    """The image of `index` under a permutation of [0, size) that seed and stream choose."""
    half = ((size - 1).bit_length() + 1) // 2
    if half == 0:
        return 0
    mask = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & mask
        for turn in range(4):
            left, right = right, left ^ random_bits(seed, stream, right << 3 | turn) & mask
        value = left << half | right
        if value < size:
            return value


def draw_windows(tokens: Tokens, length: int, count: int, *, seed: int, slot: int, slots: int,
                 first_draw: int) -> np.ndarray:
    """int64 [count, length + 1]: the windows of a data slot from `first_draw` on."""
    windows = tokens.windows(length)
    rows = []
    for cursor in range(first_draw, first_draw + count):
        epoch, place = divmod(cursor * slots + slot, windows)
        rows.append(tokens.window(permuted(seed, epoch, windows, place), length))
    return np.stack(rows)


def held_out_windows(tokens: Tokens, length: int, count: int) -> np.ndarray:
    """int64 [count or fewer, length + 1]: windows that are spread evenly, always the same."""
    available = tokens.windows(length)
    chosen = min(count, available)
    return np.stack([tokens.window(index * available // chosen, length) for index in range(chosen)])
