"""Protobuf's text format, as far as this project's own files have it."""

from __future__ import annotations

import re
from typing import Iterator, List, Tuple

_WORD = re.compile(r'"[^"]*"|#.*|[{}]|[^\s{}:"#]+')


def fields(text: str) -> Iterator[Tuple[Tuple[str, ...], str]]:
    """Yields the path of each scalar field, and what stands there. ValueError: the text ends within a field."""
    path: List[str] = []
    name = ""
    for word in _WORD.findall(text):
        if word.startswith("#"):
            continue
        if word == "{":
            path.append(name)
        elif word == "}":
            del path[-1:]
        elif not name:
            name = word
            continue
        else:
            yield (*path, name), word
        name = ""
    if name:
        raise ValueError(f"ends after {name}")
