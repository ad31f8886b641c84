"""Programs that run in places of a network, with their output in files, and what they cost."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from cluster import Process, hashes, json_lines, make_data  # noqa: E402,F401


class Failed(Exception):
    """A program ended badly, or never did what it was waited for; the text says which and how."""


class Program(Process):
    """One of them. Its standard output and error are kept in folder/name.out and .log."""

    def __init__(self, place, folder, name, *command):
        self.name = name
        self.output = Path(folder) / f"{name}.out"
        super().__init__(Path(folder) / f"{name}.log", *place.command(*command), output=self.output)

    def wait(self, timeout_s):
        """Until it ends well; returns what it wrote."""
        try:
            status = self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {timeout_s:.0f} s:\n{self._tail()}") \
                from None
        if status != 0:
            raise Failed(f"{self.name} ended with {status}:\n{self._tail()}")
        return self.output.read_text()

    def _tail(self):
        return self.log()[-2000:]

    def wait_until(self, condition, what, timeout_s=60):
        end = time.monotonic() + timeout_s
        while not condition():
            if self.child.poll() is not None:
                raise Failed(f"{self.name} ended with {self.child.returncode} before {what}:\n"
                             f"{self._tail()}")
            if time.monotonic() > end:
                raise Failed(f"waited {timeout_s} s in vain until {what}:\n{self._tail()}")
            time.sleep(0.02)

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(10)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def end_with(main, interrupted):
    """Ends the program with the status of main(), or after Ctrl-C or SIGTERM with 130 and a line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print(f"\n{interrupted}", file=sys.stderr)
        sys.exit(130)


def machine_cpu_s():
    """Processor time that this machine has spent on anything, since it started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def working_folder():
    """A folder for a run's files, in memory where there is room: the disk is not what is measured."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK)
    if roomy:
        space = os.statvfs(memory)
        roomy = space.f_bavail * space.f_frsize > 4 << 30
    with tempfile.TemporaryDirectory(prefix="causeway_wan_",
                                     dir=memory if roomy else None) as folder:
        yield Path(folder)
