"""Parts of a run: each states PASS, FAIL or SKIP with a reason, and none stops the others."""

import dataclasses
import os
import signal
import subprocess
import tempfile
import time
import traceback

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
# Stands in the report of a run that was ended from outside.
UNDONE = "UNDONE"

# A process that a driver holds may outlive SIGKILL: it is left behind after so long.
KILLED_S = 10


class Skip(Exception):
    """The part cannot be run here; the text says why."""


class Failed(Exception):
    """The part has found something wrong."""


@dataclasses.dataclass
class Result:
    part: str
    status: str
    reason: str
    seconds: float
    data: dict


@dataclasses.dataclass
class Done:
    """A command that has come to its end, or was stopped."""
    status: int
    output: str
    seconds: float
    timed_out: bool

    def last_lines(self, count=3):
        return " | ".join(line.strip() for line in self.output.strip().splitlines()[-count:])


class Context:
    """What all parts share: the unpacked programs, the GPU, the time that is left."""

    def __init__(self, root, pack, out, deadline, *, log, tell=lambda text: None):
        self.root = root          # The repository.
        self.pack = pack          # The unpacked folder.
        self.out = out            # A folder that is gone in the end.
        self.deadline = deadline  # time.monotonic() at which all must be over.
        self.log = log            # Called with the name and output of every command.
        # Called with each figure as soon as there is one. `results` has it by then.
        self.tell = tell
        self.gpu = None           # Set by the part `environment`.
        self.no_gpu = "the part environment has not looked for one"
        self.variables = dict(os.environ)
        self.program_variables = {}
        self.study = None         # Of the part quality; None: its own.
        self.changes = []         # Settings of the part quality, KEY=VALUE.
        self.compared = {}        # Data of parts of an earlier run, by name.
        self.results = {}
        self.data = {}            # The present part's figures, reported whatever becomes of it.
        self.part_deadline = deadline

    def left(self):
        """Seconds for the present part."""
        return min(self.deadline, self.part_deadline) - time.monotonic()

    def program(self, name):
        path = self.pack / "bin" / name
        if not path.exists():
            raise Skip(f"the pack has no {name}")
        return path

    def need_gpu(self):
        if self.gpu is None:
            raise Skip(f"no GPU: {self.no_gpu}")

    def run(self, name, *command, timeout_s, variables=None, folder=None):
        """Runs a command to its end, or to the limit of time, with everything that it started."""
        timeout_s = max(1, min(timeout_s, self.left()))
        begin = time.monotonic()
        timed_out = False
        with tempfile.TemporaryFile() as output:
            # Not a context, which would wait for as long as it takes.
            child = subprocess.Popen(  # pylint: disable=consider-using-with
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, cwd=folder or self.out,
                env={**self.variables, **(variables or {})})
            try:
                child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                end_group(child)
            output.seek(0)
            text = output.read().decode(errors="replace")
        done = Done(child.returncode, text, time.monotonic() - begin, timed_out)
        ended = f"stopped after {timeout_s:.0f} s" if timed_out else f"status {done.status}"
        if done.status is None:
            ended += ", and not gone"
        self.log(name, f"$ {' '.join(str(part) for part in command)}\n{text}\n[{ended}, "
                       f"{done.seconds:.1f} s]\n")
        return done


def end_group(child):
    """Ends a process that leads a session, with all of it."""
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(KILLED_S)
    except subprocess.TimeoutExpired:
        pass


def run_part(name, function, context, limit_s=None):
    """The function's result: a reason if it passes. `limit_s`: all its commands together."""
    begin = time.monotonic()
    context.data = {}
    context.part_deadline = context.deadline if limit_s is None else begin + limit_s
    context.results[name] = Result(name, UNDONE, "the run was ended from outside", 0, context.data)
    try:
        if context.left() <= 0:
            raise Skip("no time is left; give more --minutes, or fewer --parts")
        status, reason = PASS, function(context)
    except Skip as skip:
        status, reason = SKIP, str(skip)
    except Failed as failed:
        status, reason = FAIL, str(failed)
    except Exception as error:  # One part that breaks does not stop the others.
        context.log(name, traceback.format_exc())
        status, reason = FAIL, f"{type(error).__name__}: {error}"
    result = Result(name, status, reason, time.monotonic() - begin, context.data)
    context.results[name] = result
    return result
