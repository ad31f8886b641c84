"""Token files as llm.c has them, and a folder in which they appear as a whole."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from causeway.errors import InvalidArgument
from causeway.tokenize._tokenizer import read_json

MOST_SHARD_TOKENS = (1 << 31) - 1
_MAGIC = {np.uint16: (20240520, 1), np.uint32: (20240801, 7)}
_DATA = re.compile(r"(train|held_out)(_.*\.bin|\.documents)")
_STAGED = re.compile(_DATA.pattern + r"|data\.json|LOCK|tokenizer\.(json|model)|tokenizer_config\.json")


def sync(path: str) -> None:
    """A file, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: str, *parts: Any) -> None:
    """Appears under its name when it is whole and synced."""
    with open(path + ".tmp", "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)


class Part:
    """One of the two sequences, to train on or held out."""

    def __init__(self, folder: str, prefix: str, vocabulary_size: int, shard_tokens: int, form: str):
        self._folder, self._prefix, self._shard_tokens = folder, prefix, shard_tokens
        self._vocabulary_size, self._has_header = vocabulary_size, form == "llmc"
        self._type = np.uint32 if form == "uint32" or (form == "llmc" and vocabulary_size > 65536) else np.uint16
        self._waiting: List[np.ndarray] = []
        self._waiting_tokens = 0
        self._starts: List[int] = []
        self._continues = False
        self.tokens = self.bytes = 0
        self.names: List[str] = []

    def append(self, tokens: Sequence[int], begins: bool, ends: bool, size: int, before: Sequence[int],
               after: Sequence[int]) -> None:
        """`before` and `after` stand at a document's begin and end."""
        # Text from within a document, after a stretch of the other part, begins a document here.
        if begins or not self._continues:
            self._starts.append(self.tokens)
        kind = np.frombuffer(tokens, np.uint8) if isinstance(tokens, bytes) else np.asarray(tokens, np.int64)
        for values in (before if begins else (), kind, after if ends else ()):
            if len(values):
                self._waiting.append(np.asarray(values).astype(self._type))
                self._waiting_tokens += len(values)
                self.tokens += len(values)
        self._continues = not ends
        self.bytes += size
        while self._waiting_tokens >= self._shard_tokens:
            self._write(self._shard_tokens)

    def interrupt(self) -> None:
        """The other part goes on."""
        self._continues = False

    def _write(self, count: int) -> None:
        waiting = np.concatenate(self._waiting)
        name = f"{self._prefix}_{len(self.names):06d}.bin"
        header = np.zeros(256 if self._has_header else 0, "<i4")
        if self._has_header:
            header[:4] = (*_MAGIC[self._type], count, self._vocabulary_size)
        write_file(os.path.join(self._folder, name), header.tobytes(),
                   waiting[:count].astype(np.dtype(self._type).newbyteorder("<")).tobytes())
        self.names.append(name)
        self._waiting, self._waiting_tokens = [waiting[count:]], len(waiting) - count

    def finish(self) -> str:
        """The name of the index that it writes; empty if there are no tokens."""
        if self._waiting_tokens:
            self._write(self._waiting_tokens)
        if not self.tokens:
            return ""
        # A document without tokens begins where the next does.
        starts = np.unique(np.asarray(self._starts, "<i8"))
        starts = starts[starts < self.tokens].tobytes()
        header = json.dumps({"__metadata__": {"tokens": str(self.tokens)},
                             "starts": {"dtype": "I64", "shape": [len(starts) // 8], "data_offsets": [0, len(starts)]}},
                            separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        name = f"{self._prefix}.documents"
        write_file(os.path.join(self._folder, name), len(header).to_bytes(8, "little"), header, starts)
        return name


class StagedData:
    """Writes into FOLDER/unfinished, data.json last, and moves all of it up, data.json last again."""

    def __init__(self, folder: str, replace: bool):
        self._folder, self.folder = folder, os.path.join(folder, "unfinished")
        self._is_new = not os.path.isdir(folder)
        self._lock: Optional[Any] = None
        self._is_whole = False
        if os.path.isdir(self.folder):
            self._check_own()
        elif not self._is_new:
            self._check_vacant(replace)
        os.makedirs(self.folder, exist_ok=True)
        self._take_lock()
        # What a process left that died: it is whole, or goes.
        if os.path.exists(os.path.join(self.folder, "data.json")):
            self._move_up(read_json(os.path.join(self.folder, "data.json")))
            self._is_whole = False
            os.makedirs(self.folder)
            self._take_lock()
        else:
            self._clear(keep=("LOCK",))
        try:
            self._check_vacant(replace)
        except InvalidArgument:
            self.discard()
            raise

    def _take_lock(self) -> None:
        self._lock = open(os.path.join(self.folder, "LOCK"), "a+", encoding="ascii")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().strip()
            raise InvalidArgument(f"another process ({owner}) writes into {self.folder}: wait for it") from None
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def _check_own(self) -> None:
        for name in sorted(os.listdir(self.folder)):
            if not _STAGED.fullmatch(name[:-4] if name.endswith(".tmp") else name):
                raise InvalidArgument(f"{self.folder} holds {name}, which is not written here and would be removed: "
                                      f"move it elsewhere, or choose another folder than {self._folder}")

    def _check_vacant(self, replace: bool) -> None:
        found = next((name for name in sorted(os.listdir(self._folder))
                      if name == "data.json" or _DATA.fullmatch(name)), None)
        if found and not replace:
            raise InvalidArgument(f"{self._folder} holds data already ({found}); choose another folder, or give "
                                  "--replace")

    def _clear(self, keep: Sequence[str] = ()) -> None:
        for name in os.listdir(self.folder):
            if name not in keep:
                os.unlink(os.path.join(self.folder, name))

    def discard(self) -> None:
        """After an error: everything is as it was."""
        if self._is_whole:
            return
        self._clear()
        os.rmdir(self.folder)
        if self._is_new:
            os.rmdir(self._folder)

    def copy_tokenizer(self, path: str) -> str:
        name = "tokenizer.json" if path.endswith(".json") else "tokenizer.model"
        shutil.copyfile(path, os.path.join(self.folder, name))
        config = os.path.join(os.path.dirname(path), "tokenizer_config.json")
        if os.path.exists(config):
            shutil.copyfile(config, os.path.join(self.folder, "tokenizer_config.json"))
        return name

    def finish(self, description: Dict[str, Any]) -> None:
        sync(self.folder)
        write_file(os.path.join(self.folder, "data.json"), json.dumps(description, indent=2).encode() + b"\n")
        self._move_up(description)

    def _move_up(self, description: Dict[str, Any]) -> None:
        self._is_whole = True
        new = [name for name in os.listdir(self.folder) if name not in ("LOCK", "data.json")]
        present = os.path.join(self._folder, "data.json")
        copied: Sequence[str] = ()
        if os.path.exists(present):
            # Only the tokenizer that was copied along goes. The description first, so that at no
            # moment it tells of files that are not there.
            try:
                before = read_json(present).get("tokenizer", "bytes")
                copied = ("tokenizer_config.json", before) if before != "bytes" else ()
            except InvalidArgument:
                pass
            os.unlink(present)
            sync(self._folder)
        for name in os.listdir(self._folder):
            kept = (*new, *description["train_shards"], *description["held_out_shards"],
                    description["train_documents"], description["held_out_documents"], description["tokenizer"])
            if (_DATA.fullmatch(name) or name in copied) and name not in kept:
                os.unlink(os.path.join(self._folder, name))
        for name in new:
            os.rename(os.path.join(self.folder, name), os.path.join(self._folder, name))
        sync(self._folder)
        os.rename(os.path.join(self.folder, "data.json"), present)
        sync(self._folder)
        self._clear()
        os.rmdir(self.folder)
