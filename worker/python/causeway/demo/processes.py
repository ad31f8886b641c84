"""The processes of a run: started together, watched together, stopped together."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """In the child: asks the kernel for SIGTERM should quickstart itself be killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class ProcessDied(Exception):
    """A process ended with an error, or before it should have. refused: because it cannot use its
    settings or its data, which is all that exit status 2 means."""

    def __init__(self, what: str, refused: bool = False):
        super().__init__(what)
        self.refused = refused


@dataclass
class Process:
    name: str
    popen: subprocess.Popen
    log: Path

    def describe_end(self) -> str:
        """How it ended, and the last lines of its log. Call it once the process is gone."""
        status = self.popen.returncode
        if status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        else:
            how = f"ended with exit status {status}"
        lines = last_lines(self.log, 15)
        if not lines:
            return f"{self.name} {how}; it logged nothing ({self.log})"
        return f"{self.name} {how}; the end of {self.log}:\n" + "\n".join(
            f"  | {line}" for line in lines
        )


def last_lines(path: Path, limit: int) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-limit:]
    except OSError:
        return []


class ProcessGroup:
    """Starts processes in sessions of their own, so that Ctrl-C reaches only quickstart, which then
    stops them in order."""

    def __init__(self):
        self.processes: list[Process] = []

    def start(self, name: str, command: list[str], log: Path) -> Process:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def raise_if_died(self) -> None:
        """ProcessDied names every process that ended with an error; one that ended well is fine."""
        died = [p for p in self.processes if p.popen.poll() not in (None, 0)]
        if died:
            raise ProcessDied("\n".join(p.describe_end() for p in died),
                              refused=all(p.popen.returncode == 2 for p in died))

    def stop_all(self, patience_s: float = 10.0) -> None:
        """SIGTERM to the last started first, then SIGKILL to what is left after patience_s. The
        first process, the coordinator, is asked only when the others are gone."""
        for batch in (self.processes[1:], self.processes[:1]):
            for process in reversed(batch):
                if process.popen.poll() is None:
                    process.popen.terminate()
            end = time.monotonic() + patience_s
            for process in batch:
                try:
                    process.popen.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.popen.kill()
                    process.popen.wait()
