"""Reading the folder that a run leaves behind.

    run.textproto                               the configuration
    coordinator/{rounds,events}.jsonl, summary.json, log
    worker-N/metrics.jsonl, summary.json, log

Everything is optional: a run that was cut short, or that still goes on, is read as far as it got,
and Run.notes says in sentences what is missing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from causeway.demo import config


class JsonLinesTail:
    """Follows a growing file of JSON objects, one per line. A line still being written waits."""

    def __init__(self, path: Path):
        self._path = path
        self._position = 0
        self.damaged_lines = 0

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
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            else:
                self.damaged_lines += 1
        return rows


@dataclass
class Worker:
    """What one worker wrote."""

    name: str
    metrics: list[dict] = field(default_factory=list)
    summary: dict = field(default_factory=dict)

    def rows(self, kind: str) -> list[dict]:
        return [row for row in self.metrics if row.get("kind") == kind]


@dataclass
class Run:
    """What a whole run wrote."""

    fields: dict[str, str] = field(default_factory=dict)
    coordinator: dict = field(default_factory=dict)
    rounds: list[dict] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load_run(folder: Path) -> Run:
    """Reads `folder`, as far as there is something to read."""
    run = Run()
    try:
        run.fields = config.read_fields((folder / "run.textproto").read_text(encoding="utf-8"))
    except OSError:
        run.notes.append("run.textproto is missing: the configuration is unknown.")
    run.coordinator = _read_object(folder / "coordinator" / "summary.json", run.notes)
    run.rounds = _read_lines(folder / "coordinator" / "rounds.jsonl", run.notes)

    names = {path.name for path in folder.glob("worker-*") if path.is_dir()}
    names |= {f"worker-{i}" for i in range(int(run.fields.get("membership.start_workers", "0")))}
    for name in sorted(names, key=_natural):
        worker = Worker(name)
        if not (folder / name).is_dir():
            run.notes.append(f"{name} left nothing behind: it was never started.")
            continue
        worker.metrics = _read_lines(folder / name / "metrics.jsonl", run.notes)
        worker.summary = _read_object(folder / name / "summary.json", run.notes)
        run.workers.append(worker)
    return run


def _natural(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _read_object(path: Path, notes: list[str]) -> dict:
    try:
        value = json.loads(path.read_bytes())
    except OSError:
        notes.append(f"{_name(path)} is missing: that process did not come to its end.")
        return {}
    except ValueError:
        notes.append(f"{_name(path)} is no JSON and is left out.")
        return {}
    return value if isinstance(value, dict) else {}


def _read_lines(path: Path, notes: list[str]) -> list[dict]:
    if not path.exists():
        notes.append(f"{_name(path)} is missing.")
        return []
    tail = JsonLinesTail(path)
    rows = tail.poll()
    if tail.damaged_lines:
        notes.append(f"{_name(path)} has {tail.damaged_lines} lines that are no JSON objects.")
    return rows
