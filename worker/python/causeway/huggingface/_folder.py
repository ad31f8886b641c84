"""A model's folder that is written as a whole, and takes another one's place in one step."""

from __future__ import annotations

import ctypes
import os
import shutil
from typing import Callable, Sequence

from causeway.errors import InvalidArgument
from causeway.tokenize._shards import sync

_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_HERE = -100  # AT_FDCWD


def _is_model(name: str) -> bool:
    return name in ("config.json", "model.textproto") or name.endswith((".safetensors", ".safetensors.index.json"))


def check(folder: str, replace: bool) -> None:
    """Refuses what would be written over unasked."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InvalidArgument(f"--out={folder} is a file: give a folder")
    found = next(filter(_is_model, sorted(os.listdir(folder))), None) if os.path.isdir(folder) else None
    if found and not replace:
        raise InvalidArgument(f"--out={folder} holds a model already ({found}): choose another folder, or give --replace "
                              "to write over it")


def write(folder: str, fill: Callable[[str], None], leave_out: Sequence[str] = ()) -> None:
    """Has `fill` make the model beside `folder`, where files that are not a model's stay but for `leave_out`."""
    folder = os.path.abspath(folder)
    parent, name = os.path.split(folder)
    staged = os.path.join(parent, f".{name}.replacing")
    os.makedirs(parent, exist_ok=True)
    try:
        os.mkdir(staged)
    except FileExistsError:
        raise InvalidArgument(f"{staged} exists: another process writes there, or was ended; remove it then") from None
    try:
        if os.path.isdir(folder):
            for kept in os.listdir(folder):
                path = os.path.join(folder, kept)
                if not _is_model(kept) and kept not in leave_out and os.path.isfile(path):
                    shutil.copy2(path, staged)
        fill(staged)
        for inside, _, names in os.walk(staged):
            for path in (*(os.path.join(inside, name) for name in names), inside):
                sync(path)
        if not os.path.isdir(folder):
            os.rename(staged, folder)
        else:
            renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
            if renameat2 is None or renameat2(_HERE, os.fsencode(staged), _HERE, os.fsencode(folder), _EXCHANGE) != 0:
                former = staged + ".former"
                os.rename(folder, former)  # For a moment there is no `folder`.
                try:
                    os.rename(staged, folder)
                except OSError:
                    os.rename(former, folder)
                    raise
                os.rename(former, staged)
            for kept in os.listdir(staged):  # What was no file.
                if not os.path.exists(os.path.join(folder, kept)) and os.path.isdir(os.path.join(staged, kept)):
                    os.rename(os.path.join(staged, kept), os.path.join(folder, kept))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
