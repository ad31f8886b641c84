"""What a person sees while a run trains: one block that stays in place on a terminal, a line every
few seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from causeway.demo import units
from causeway.demo.output import JsonLinesTail

_BAR_CELLS = 10
_SMOOTHING = 0.9  # Weight of the shown loss at each step.
_RATE_WINDOW_S = 10.0


@dataclass
class WorkerView:
    """The newest of one worker, from its metrics."""

    name: str
    tail: JsonLinesTail
    step: int = 0
    loss: float | None = None
    tokens: int = 0
    compute_s: float = 0.0
    blocked_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    started_unix_s: float | None = None
    seen_unix_s: float = 0.0
    published_loss: float | None = None
    published_step: int = 0
    recent: list[tuple[float, int]] | None = None  # (unix_s, tokens) of the last seconds.

    def update(self) -> None:
        for row in self.tail.poll():
            kind = row.get("kind")
            if kind == "start":
                self.started_unix_s = row["unix_s"]
            elif kind == "eval":
                self.published_loss, self.published_step = row["eval_loss"], row["step"]
            elif kind == "step":
                self._take_step(row)

    def _take_step(self, row: dict) -> None:
        loss = row["train_loss"]
        self.loss = loss if self.loss is None else _SMOOTHING * self.loss + (1 - _SMOOTHING) * loss
        for name in ("step", "tokens", "compute_s", "blocked_s", "bytes_up", "bytes_down"):
            setattr(self, name, row[name])
        self.seen_unix_s = row["unix_s"]
        self.recent = self.recent or []
        self.recent.append((row["unix_s"], row["tokens"]))
        while len(self.recent) > 2 and row["unix_s"] - self.recent[1][0] > _RATE_WINDOW_S:
            self.recent.pop(0)

    @property
    def tokens_per_second(self) -> float:
        if not self.recent or self.recent[-1][0] <= self.recent[0][0]:
            return 0.0
        (first_s, first), (last_s, last) = self.recent[0], self.recent[-1]
        return (last - first) / (last_s - first_s)

    @property
    def utilization(self) -> float:
        """As the summaries count it: without the time of evaluations."""
        return 1.0 - self.blocked if self.compute_s > 0 else 0.0

    @property
    def blocked(self) -> float:
        busy = self.compute_s + self.blocked_s
        return self.blocked_s / busy if busy > 0 else 0.0


class Progress:
    """Call update() a few times a second, and finish() at the end."""

    def __init__(self, out: Path, steps: int, workers: int, stream: TextIO | None = None,
                 line_every_s: float = 5.0):
        self._steps = steps
        self._views = [
            WorkerView(name, JsonLinesTail(out / name / "metrics.jsonl"))
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
            if not view.step or view.started_unix_s is None:
                return "starting"
            pace = (view.seen_unix_s - view.started_unix_s) / view.step
            seconds = max(seconds, pace * (self._steps - view.step))
        return f"{units.duration(seconds)} left"

    def _exchange(self) -> str:
        up = sum(view.bytes_up for view in self._views)
        down = sum(view.bytes_down for view in self._views)
        blocked = sum(view.blocked for view in self._views) / len(self._views)
        return (f"{self._round_count} rounds, {units.size(up)} up, {units.size(down)} down, "
                f"blocked {units.percent(blocked)}")

    def _published(self) -> str:
        for view in self._views:
            if view.published_loss is not None:
                return f"published loss {view.published_loss:.3f} at step {view.published_step}"
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
                f"  loss {loss}  {units.count(view.tokens_per_second):>5} tok/s"
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
        rate = sum(view.tokens_per_second for view in self._views)
        computing = sum(view.utilization for view in self._views) / len(self._views)
        return (f"step {steps} of {self._steps}, loss {losses}, {units.count(rate)} tokens/s, "
                f"computing {units.percent(computing)}, {self._exchange()}, "
                f"{self._published()}, {self._remaining()}")
