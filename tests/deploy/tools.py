"""What the tests of packages, services, images and clusters share."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CAUSEWAY_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from cluster import folder_of, free_port, run_python, wait_until  # noqa: E402,F401

SKIPPED = 77  # ctest takes it for "could not be tried here".


def run(*command, timeout=240, **options):
    """Runs a program to its end; returns (exit status, what it printed, both streams)."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=timeout, check=False, **options)
    return done.returncode, done.stdout


@functools.cache
def flags_of(program):
    """The text that has every flag of a program of this build."""
    return run(BUILD / "bin" / program, "--help")[1]


def needs(*programs):
    """Skips what follows where a program is missing."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise unittest.SkipTest(f"{', '.join(missing)} not installed (deploy/packages_deploy)")


def go_on_with_validators():
    """Starts this test again with a Python that has the packages of validators.txt; skips it where
    there is none."""
    python = os.environ.get("CAUSEWAY_VALIDATORS", str(ROOT / "build/validators/bin/python"))
    if sys.executable == python:
        return
    if not os.access(python, os.X_OK):
        print(f"SKIP: no {python}: a virtual environment with tests/deploy/validators.txt, or name its "
              "Python as CAUSEWAY_VALIDATORS")
        sys.exit(SKIPPED)
    os.execv(python, [python, "-B", *sys.argv])


def sanitized():
    """Whether the build cannot be packed: its programs want the sanitizers' runtimes."""
    for line in (BUILD / "CMakeCache.txt").read_text().splitlines():
        if line.startswith("CAUSEWAY_SANITIZE:"):
            return bool(line.partition("=")[2])
    return False


def main():
    """unittest.main, but a run in which everything was skipped says so to ctest."""
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped):
        for reason in sorted({reason for _, reason in result.skipped}):
            print(f"SKIP: {reason}")
        sys.exit(SKIPPED)
