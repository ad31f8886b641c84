"""The text that a run is trained on: files, folders, JSON Lines, cut into training and held-out pieces."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import BinaryIO, Callable, Iterator, List, Optional, Sequence, Tuple, Union

from causeway.errors import InvalidArgument
from causeway.tokenize._tokenizer import refuse_pointer

_PROBE_BYTES = 4096
_MOST_FOLDERS = 32
_SEGMENT_BYTES = (64, 64 << 10)
_HELD_OUT_SEGMENTS = 8  # A small corpus is cut so finely that there are so many, where that is possible.


@dataclasses.dataclass
class Corpus:
    texts: List[Tuple[str, int]] = dataclasses.field(default_factory=list)  # Paths and their bytes.
    jsonl: List[Tuple[str, int]] = dataclasses.field(default_factory=list)
    skipped_files: int = 0  # In folders: binary, no UTF-8 where that counts, or links to nothing.

    def bytes(self) -> int:
        return sum(size for _, size in self.texts + self.jsonl)


@dataclasses.dataclass
class Piece:
    """The longest stretch of one document that belongs to one part of the data."""
    text: Union[bytes, str]
    held_out: bool
    begins: bool
    ends: bool
    bytes: int = 0


def find(inputs: Sequence[str], extensions: Sequence[str] = (), jsonl: bool = True,
         check: Optional[Callable[[str], bool]] = None) -> Corpus:
    """Visits files and, below folders, the text files in order of name. `check` may leave a file out."""
    corpus = Corpus()

    def visit_file(path: str, given: bool) -> None:
        with open(path, "rb") as file:
            probe = file.read(_PROBE_BYTES)
        if not probe:
            return
        refuse_pointer(path)
        is_binary = b"\0" in probe
        if is_binary and given:
            raise InvalidArgument(f"{path} is not text: there is a NUL byte in its first {_PROBE_BYTES} bytes")
        is_jsonl = jsonl and path.endswith((".jsonl", ".ndjson"))
        if is_binary or (check and not is_jsonl and not check(path)):
            corpus.skipped_files += 1
            return
        (corpus.jsonl if is_jsonl else corpus.texts).append((path, os.path.getsize(path)))

    def visit_folder(folder: str, depth: int) -> None:
        if depth > _MOST_FOLDERS:
            raise InvalidArgument(f"folders nest more than {_MOST_FOLDERS} deep at {folder}; is there a link in a circle?")
        names = sorted(os.listdir(folder), key=os.fsencode)
        if "data.json" in names and "train_000000.bin" in names:
            corpus.skipped_files += len(names)
            return
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith("."):
                continue
            if os.path.isdir(path):
                visit_folder(path, depth + 1)
            elif extensions and not name.endswith(tuple(extensions)):
                continue
            elif not os.path.exists(path):
                corpus.skipped_files += 1
            else:
                visit_file(path, given=False)

    for path in inputs:
        visit_folder(path, 0) if os.path.isdir(path) else visit_file(path, given=True)
    if not corpus.texts and not corpus.jsonl:
        raise InvalidArgument(f"there is no text in {', '.join(inputs)} ({corpus.skipped_files} files skipped)")
    return corpus


def _read(file: BinaryIO, size: int, begin: int, end: int) -> bytes:
    """Bytes of a file that had `size`."""
    file.seek(begin)
    content = file.read(end - begin)
    if len(content) < end - begin:  # A mapping of it would end the process.
        raise InvalidArgument(f"{file.name} had {size} bytes and now has {begin + len(content)} or fewer; do not change "
                              "the corpus while it is read")
    return content


def _cut(around: bytes) -> int:
    """How much further to cut than behind the first byte: after the next end of a line, or else before a character
    of UTF-8."""
    if (end := around.find(b"\n")) >= 0:
        return end
    for i, byte in enumerate(around[1:5]):
        if byte & 0xC0 != 0x80:
            return i
    return 0


def pieces(corpus: Corpus, fraction: float) -> Iterator[Piece]:
    """The text files in order. Of segments of equal size every (1 / fraction)-th is held out."""
    total = sum(size for _, size in corpus.texts)
    segment_bytes = min(max(int(total * fraction / _HELD_OUT_SEGMENTS), _SEGMENT_BYTES[0]), _SEGMENT_BYTES[1])

    def held_out_before(segment: int) -> int:
        return math.floor(segment * fraction)

    if corpus.texts and held_out_before(total // segment_bytes) < 1:
        raise InvalidArgument(f"the corpus has {total} bytes, too few to hold out a part of {fraction:g}; "
                              f"at least {math.ceil(1 / fraction) * _SEGMENT_BYTES[0]} are needed")

    def is_held_out(segment: int) -> bool:
        return held_out_before(segment + 1) > held_out_before(segment)

    before = 0
    for path, size in corpus.texts:
        with open(path, "rb") as file:
            if (now := os.fstat(file.fileno()).st_size) != size:
                raise InvalidArgument(f"{path} had {size} bytes and now has {now}; do not change the corpus "
                                      "while it is read")
            begin = at = 0
            while at < size:
                segment = (before + at) // segment_bytes
                border = (segment + 1) * segment_bytes - before
                if border < size:
                    at = border
                    if is_held_out(segment + 1) == is_held_out(segment):
                        continue
                    at += _cut(_read(file, size, at - 1, min(size, at + segment_bytes // 2)))
                else:
                    at = size
                yield Piece(_read(file, size, begin, at), is_held_out(segment), begin == 0, at == size, at - begin)
                begin = at
        before += size


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _read_line(line: bytes, field: str) -> str:
    try:
        value = json.loads(line.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    if field not in value:
        raise ValueError(f'there is no "{field}"')
    if not isinstance(value[field], str):
        raise ValueError(f'its "{field}" is no text')
    value[field].encode()  # Half of a surrogate pair is no text.
    return value[field]


def lines(path: str, field: str, skip_bad: bool, count_bad: Callable[[], None]) -> Iterator[str]:
    """The texts of a file of JSON Lines."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip(b" \t\r\n"):
                continue
            try:
                text = _read_line(line, field)
            except ValueError as error:
                if not skip_bad:
                    raise InvalidArgument(f"{path}:{number}: {error}; --bad_lines=skip leaves such lines out") from None
                count_bad()
                continue
            yield text
