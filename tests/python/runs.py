"""Runs for tests of the Python package: a real coordinator, and sites in this process or in others."""

import concurrent.futures
import contextlib
import functools
import importlib.util
import json
import logging
import os
import pathlib
import re
import struct
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
if sys.argv[0].endswith("_test.py") and pathlib.Path(sys.argv[0]).resolve().parent == HERE:
    # A file of tests that was started by itself.
    os.execv(sys.executable, [sys.executable, "-B", str(HERE / "run"), pathlib.Path(sys.argv[0]).stem[:-len("_test")],
                              *sys.argv[1:]])

import numpy as np  # noqa: E402

import causeway  # noqa: E402

ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

import cluster  # noqa: E402
from cluster import (BIN, COORDINATOR, CTL, SIGKILL, Cluster, ended, folder_of, has_ipv6, output_of,  # noqa: E402
                     run_python, run_tool)

# Several processes that import torch at once may take minutes on a busy machine.
cluster.DEADLINE_S = 300
wait_until = functools.partial(cluster.wait_until, deadline_s=cluster.DEADLINE_S)

MAKE_CERTIFICATES = ROOT / "deploy" / "make_certificates"
# Training alone, bit for bit, whatever the number of rounds.
PLAIN = """
sync { fragments: 3 pattern: BALANCED steps_between_syncs: 4 }
outer { learning_rate: 1 momentum: 0 }
membership { start_workers: 1 }
"""
TWO_SITES = """
sync { steps_between_syncs: 5 } outer { learning_rate: 1 momentum: 0 }
membership { start_workers: 2 }
"""
ALONE = TWO_SITES.replace("start_workers: 2", "start_workers: 1")
STREAMING = """
sync { fragments: 3 pattern: BALANCED steps_between_syncs: 4 overlap_steps: 2 mixing: 0.5
       codec_up: LM2 codec_down: LM2 error_feedback: true }
membership { start_workers: 1 }
"""


def needs(*packages):
    """Skips a test where packages are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"{', '.join(missing)} is not installed for {sys.executable}")


def write_safetensors(path, arrays):
    """The initial values of a run."""
    cluster.write_safetensors(path, {name: ("F32", list(array.shape), np.ascontiguousarray(array, dtype="<f4").tobytes())
                                     for name, array in arrays.items()})


@contextlib.contextmanager
def beside(work, *arguments):
    """Has `work` done in a thread of its own, which has ended afterwards: what it raised is raised here."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    done = pool.submit(work, *arguments)
    try:
        yield
    finally:
        pool.shutdown(wait=False)  # A body that has failed waits for nothing.
    done.result()


class RunTest(unittest.TestCase):
    def run_of(self, settings, *flags, **more):
        """A run that is served (Run.serve) until the test ends."""
        run = Run().serving(settings, *flags, **more)
        self.addCleanup(run.__exit__)
        return run

    @contextlib.contextmanager
    def joined(self, steps=20):
        """A run, arrays, and the site s of them, which takes part in it inside."""
        run, values = self.run_of(PLAIN, steps=steps, initial=arrays()), arrays()
        with causeway.Site(run.address, values, id="s") as site:
            yield run, values, site

    @contextlib.contextmanager
    def says(self, pattern, times=1, level="WARNING"):
        """So many lines that are logged inside have it; None: one or more. Not within another one."""
        with self.assertLogs("causeway", level) as logs:
            logging.getLogger("causeway").error("a line that is always there")
            yield logs
        found = sum(bool(re.search(pattern, line)) for line in logs.output)
        self.assertTrue(found if times is None else found == times, logs.output)


class Run(Cluster):
    """A coordinator of a run without a model of Causeway's own. Use as a context manager."""

    def serve(self, settings, *flags, steps=20, initial=None, listen="127.0.0.1:0"):
        """`initial`: names and values that the run begins with; otherwise the first site has them."""
        config = self.folder / "run.textproto"
        config.write_text(f"train {{ steps: {steps} }}\n{settings}")
        self._flags = [f"--config={config}", "--retain_deltas", "--exit_when_finished", "--noexit_when_drained", *flags]
        if initial is None:
            self._flags.append("--initial=first-site")
        else:
            write_safetensors(self.folder / "initial.safetensors", initial)
            self._flags.append(f"--initial={self.folder / 'initial.safetensors'}")
        self.start_serving(*self._flags, f"--listen={listen}")

    begin = serve

    def kill_coordinator(self):
        self.coordinator.kill()

    def restart_coordinator(self):
        self.start_serving(*self._flags, f"--listen={self.address}")

    def start_program(self, name, program, *arguments, **variables):
        """A program of this folder, as a process."""
        variables.setdefault("PYTHONPATH", str(ROOT / "worker" / "python"))
        variables.setdefault("OMP_NUM_THREADS", "1")
        return self.start(f"{name}.log", sys.executable, "-B", HERE / program, *arguments,
                          variables=variables)

    def start_trainer(self, *flags, name="s", address=None):
        """numpy_trainer.py as the site s, whose checkpoint is here."""
        return self.start_program(name, "numpy_trainer.py", address or self.address, "s", self.folder / "checkpoint", *flags)

    def sent(self):
        """What sites pushed, and what was published of it."""
        return self.pushed(), self.published_hashes()

    def pushed(self):
        """Of every delta that the coordinator kept: fragment, round, and hash of its bytes."""
        found = []
        for path in (self.folder / "coordinator" / "deltas").iterdir():
            content = path.read_bytes()  # An array file (docs/formats.md).
            header = content[16:16 + struct.unpack_from("<I", content, 12)[0]]
            metadata = json.loads(header)["metadata"]
            found.append((metadata["fragment"], metadata["round"], metadata["object_hash"]))
        return sorted(found)

    def published_hashes(self):
        return sorted((line["fragment"], line["round"], line["published_hash"])
                      for line in self.rounds())

    def left(self, worker):
        """How it did, once it has."""
        self.wait_for_event("worker_left", worker=worker)
        return next(e for e in self.events() if e["event"] == "worker_left")

    def finish(self):
        """Waits until the coordinator has ended; returns its summary, without a mismatch."""
        assert self.coordinator.wait() == 0, self.coordinator.log()
        summary = self.summary()
        assert summary["hash_mismatches"] == 0 and summary["hash_checks"] > 0, summary
        return summary

    def certificates(self, *arguments, folder=None):
        folder = folder or self.folder / "certificates"
        subprocess.run([MAKE_CERTIFICATES, "--dir", folder, *arguments],
                       check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60)


def arrays(seed=0):
    """Some small tensors, one of them a scalar."""
    random = np.random.default_rng(seed)
    return {name: np.asarray(random.normal(size=shape), dtype=np.float32).reshape(shape)
            for name, shape in {"embed": (50, 8), "layers.0.w": (8, 24), "layers.0.b": (24,),
                                "layers.1.w": (24, 8), "temperature": ()}.items()}


def update(values, step, site=0):
    """A deterministic step of training, in place."""
    for index, array in enumerate(values.values()):
        pull = np.sin(np.arange(array.size, dtype=np.float32) * (index + 1) + step + 3 * site)
        array -= np.float32(0.01) * (array + pull.reshape(array.shape).astype(np.float32))


__all__ = ["BIN", "COORDINATOR", "CTL", "Cluster", "HERE", "PLAIN", "ROOT", "Run", "RunTest", "SIGKILL", "STREAMING", "arrays",
           "beside", "ended", "folder_of", "has_ipv6", "output_of", "run_python", "run_tool", "update",
           "wait_until", "write_safetensors"]
