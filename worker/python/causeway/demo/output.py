"""Reading the folder that a run leaves behind.

    run.textproto                               the configuration
    coordinator/{rounds,events}.jsonl, summary.json, log
    worker-N/metrics.jsonl, summary.json, log
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from causeway.demo import config


class JsonLinesTail:
    """Follows a growing file of JSON objects, one per line. A line still being written waits."""

    def __init__(self, path: Path):
        self._path = path
        self._position = 0

    def poll(self) -> list[dict]:
        """The objects that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return []
        complete = data.rfind(b"\n") + 1
        self._position += complete
        rows = []
        for line in data[:complete].splitlines():
            with contextlib.suppress(ValueError):  # A process that was killed tore it.
                rows.append(json.loads(line))
        return rows


@dataclass
class Worker:
    """What one worker wrote."""

    name: str
    metrics: list[dict]
    summary: dict

    def rows(self, kind: str) -> list[dict]:
        return [row for row in self.metrics if row.get("kind") == kind]


@dataclass
class Run:
    """What a whole run wrote."""

    fields: dict[str, str]
    coordinator: dict
    rounds: list[dict]
    workers: list[Worker]


def load_run(folder: Path) -> Run:
    """Reads the folder of a run that came to its end. OSError: something is missing."""
    def summary(name: str) -> dict:
        return json.loads((folder / name / "summary.json").read_bytes())

    def lines(*names: str) -> list[dict]:
        return JsonLinesTail(folder.joinpath(*names)).poll()

    fields = config.read_fields((folder / "run.textproto").read_text(encoding="utf-8"))
    names = sorted((path.name for path in folder.glob("worker-*") if path.is_dir()),
                   key=lambda name: int(name.partition("-")[2]))
    return Run(fields, summary("coordinator"), lines("coordinator", "rounds.jsonl"),
               [Worker(name, lines(name, "metrics.jsonl"), summary(name)) for name in names])
