"""What a person sees while a run trains: one block that stays in place on a terminal, a line every
few seconds elsewhere."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

from causeway.demo import units

_BAR_CELLS = 10
_SMOOTHING = 0.9  # Weight of the shown loss at each step.


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


class WorkerView:
    """The newest of one worker, from its metrics."""

    def __init__(self, name: str, metrics: Path):
        self.name = name
        self.loss: float | None = None
        self._tail = JsonLinesTail(metrics)
        self._rows: dict[str, dict] = {}

    def update(self) -> None:
        for row in self._tail.poll():
            self._rows[row["kind"]] = row
            if row["kind"] == "step":
                loss = row["train_loss"]
                self.loss = loss if self.loss is None else _SMOOTHING * self.loss + (1 - _SMOOTHING) * loss

    def last(self, kind: str, name: str, otherwise: float | None = None) -> float | None:
        """A figure of the last row of that kind."""
        row = self._rows.get(kind)
        return otherwise if row is None else row[name]

    def now(self, name: str) -> float:
        """A figure of its last step."""
        return self.last("step", name, 0)

    @property
    def step(self) -> int:
        return int(self.now("step"))

    @property
    def utilization(self) -> float:
        """As the summaries count it: without the time of evaluations."""
        return 1.0 - self.blocked if self.now("compute_s") > 0 else 0.0

    @property
    def blocked(self) -> float:
        busy = self.now("compute_s") + self.now("blocked_s")
        return self.now("blocked_s") / busy if busy > 0 else 0.0


class Progress:
    """Call update() a few times a second, and finish() at the end."""

    def __init__(self, out: Path, steps: int, workers: int, stream: TextIO | None = None,
                 line_every_s: float = 5.0):
        self._steps = steps
        self._views = [
            WorkerView(name, out / name / "metrics.jsonl")
            for name in (f"worker-{i}" for i in range(workers))
        ]
        self._rounds = JsonLinesTail(out / "coordinator" / "rounds.jsonl")
        self._round_count = 0
        self._stream = stream or sys.stdout
        self._in_place = self._stream.isatty()
        self._every_s = 0.2 if self._in_place else line_every_s
        self._begin = self._last_shown = time.monotonic()
        self._lines_up = 0
        self._shown_state = ""

    def update(self) -> None:
        now = time.monotonic()
        if now - self._last_shown < self._every_s:
            return
        self._last_shown = now
        self._show(now)

    def finish(self) -> None:
        """Shows the final state, unless the last line of a log says it already."""
        self._read()
        if self._state() != self._shown_state:
            self._show(time.monotonic())

    def _read(self) -> None:
        for view in self._views:
            view.update()
        self._round_count += len(self._rounds.poll())

    def _show(self, now: float) -> None:
        self._read()
        elapsed = now - self._begin
        if self._in_place:
            self._repaint(self.block(elapsed))
        else:
            print(self.line(elapsed), file=self._stream, flush=True)
            self._shown_state = self._state()

    def _repaint(self, lines: list[str]) -> None:
        width = shutil.get_terminal_size().columns - 1
        up = f"\x1b[{self._lines_up}A" if self._lines_up else ""
        body = "".join(f"\x1b[2K{line[:width]}\n" for line in lines)
        self._stream.write(up + body)
        self._stream.flush()
        self._lines_up = len(lines)

    def _remaining(self) -> str:
        if all(view.step >= self._steps for view in self._views):
            return "done"
        seconds = 0.0
        for view in self._views:
            started = view.last("start", "unix_s")
            if not view.step or started is None:
                return "starting"
            pace = (view.now("unix_s") - started) / view.step
            seconds = max(seconds, pace * (self._steps - view.step))
        return f"{units.duration(seconds)} left"

    def _exchange(self) -> str:
        up, down = (sum(view.now(name) for view in self._views) for name in ("bytes_up", "bytes_down"))
        blocked = sum(view.blocked for view in self._views) / len(self._views)
        return (f"{self._round_count} rounds, {units.size(up)} up, {units.size(down)} down, "
                f"blocked {units.percent(blocked)}")

    def _published(self) -> str:
        for view in self._views:
            if (loss := view.last("eval", "eval_loss")) is not None:
                return f"published loss {loss:.3f} at step {view.last('eval', 'step')}"
        return "published loss not measured yet"

    def block(self, elapsed_s: float) -> list[str]:
        """For a terminal."""
        lines = []
        for view in self._views:
            filled = round(_BAR_CELLS * view.step / self._steps)
            bar = "#" * filled + "." * (_BAR_CELLS - filled)
            loss = "  -  " if view.loss is None else f"{view.loss:.3f}"
            lines.append(  # Fits 80 columns.
                f"     {view.name:<10}{bar} {view.step:>{len(str(self._steps))}}/{self._steps}"
                f"  loss {loss}  {units.count(view.now('tokens_per_second')):>5} tok/s"
                f"  computing {units.percent(view.utilization):>7}"
            )
        lines.append(f"     {self._exchange()}")
        lines.append(f"     {self._published()}; {units.duration(elapsed_s)}, {self._remaining()}")
        return lines

    def line(self, elapsed_s: float) -> str:
        """For a log."""
        return f"     {units.duration(elapsed_s)}  {self._state()}"

    def _state(self) -> str:
        steps = " ".join(str(view.step) for view in self._views)
        losses = " ".join("-" if v.loss is None else f"{v.loss:.3f}" for v in self._views)
        rate = sum(view.now("tokens_per_second") for view in self._views)
        computing = sum(view.utilization for view in self._views) / len(self._views)
        return (f"step {steps} of {self._steps}, loss {losses}, {units.count(rate)} tokens/s, "
                f"computing {units.percent(computing)}, {self._exchange()}, "
                f"{self._published()}, {self._remaining()}")
