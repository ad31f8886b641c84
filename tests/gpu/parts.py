"""Parts of a run: each states PASS, FAIL or SKIP with a reason, and none stops the others."""

import dataclasses
import os
import signal
import subprocess
import time
import traceback

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"


class Skip(Exception):
    """The part cannot be run here; the text says why."""


class Failed(Exception):
    """The part has found something wrong; `data` is what is known all the same."""

    def __init__(self, reason, data=None):
        super().__init__(reason)
        self.data = data or {}


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

    def __init__(self, root, pack, out, deadline, *, log):
        self.root = root          # The repository.
        self.pack = pack          # The unpacked folder.
        self.out = out            # For results.
        self.deadline = deadline  # time.monotonic() at which all must be over.
        self.log = log            # Called with the name and output of every command.
        self.gpu = None           # Of the part `environment`.
        self.no_gpu = "the part environment has not looked for one"
        self.variables = dict(os.environ)
        self.results = {}

    def left(self):
        return self.deadline - time.monotonic()

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
        with subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                cwd=folder or self.out, env={**self.variables, **(variables or {})}) as child:
            try:
                output, _ = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                os.killpg(child.pid, signal.SIGKILL)
                output, _ = child.communicate()
        text = output.decode(errors="replace")
        done = Done(child.returncode, text, time.monotonic() - begin, timed_out)
        ended = f"stopped after {timeout_s:.0f} s" if timed_out else f"status {done.status}"
        self.log(name, f"$ {' '.join(str(part) for part in command)}\n{text}\n[{ended}, "
                       f"{done.seconds:.1f} s]\n")
        return done


def run_part(name, function, context):
    """The function's result: (reason, data) if it passes."""
    begin = time.monotonic()
    data = {}
    try:
        if context.left() <= 0:
            raise Skip("no time is left; give more --minutes, or fewer --parts")
        reason, data = function(context)
        status = PASS
    except Skip as skip:
        status, reason = SKIP, str(skip)
    except Failed as failed:
        status, reason, data = FAIL, str(failed), failed.data
    except Exception as error:  # One part that breaks does not stop the others.
        context.log(name, traceback.format_exc())
        status, reason = FAIL, f"{type(error).__name__}: {error}"
    result = Result(name, status, reason, time.monotonic() - begin, data)
    context.results[name] = result
    return result
