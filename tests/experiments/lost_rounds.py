"""Rounds that close without a worker, on purpose: a worker is stopped until one has, and goes on.

The stopped worker lives: what it had trained reaches its fragment with its next delta, as that of any
worker which is late does (docs/algorithm.md, Late deltas). The run needs a membership.grace_ms,
without which a round waits for every live member.
"""

import random
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy"))

from causeway_run.output import JsonLinesTail  # noqa: E402  (after the path is known)
from causeway_run.processes import ProcessGroup  # noqa: E402

_LOOK_S = 0.02


class LostRounds:
    """While it is entered, keeps the share of rounds without somebody near `share`: as soon as it is
    lower, one of the workers is stopped until a round has closed without it. Which one follows from
    the seed; when depends on the machine."""

    def __init__(self, rounds: Path, group: ProcessGroup, share: float, seed: int):
        """group: the coordinator first, then the workers."""
        self._rounds = JsonLinesTail(rounds)
        self._group = group
        self._share = share
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._closed = 0
        self._lost = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()
            if self._lost + 1 <= self._share * self._closed:
                self._lose_one()

    def _look(self) -> None:
        workers = len(self._group.processes) - 1
        for row in self._rounds.poll():
            self._closed += 1
            self._lost += len(row["contributors"]) < workers

    def _lose_one(self) -> None:
        victim = self._random.choice(self._group.processes[1:]).popen
        lost = self._lost
        if victim.poll() is not None:
            return
        victim.send_signal(signal.SIGSTOP)
        try:
            while self._lost == lost and not self._ended.wait(_LOOK_S):
                if any(process.popen.poll() is not None for process in self._group.processes):
                    return  # Over: nobody is left to close a round.
                self._look()
        finally:
            victim.send_signal(signal.SIGCONT)
