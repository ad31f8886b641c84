#!/usr/bin/env python3
"""Tests screen_methods.py over a text that is learnt in 80 steps, where there is a Python with
torch (deploy/find_torch); skipped elsewhere."""

import array
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
FIND_TORCH = HERE.parents[1] / "deploy" / "find_torch"
HEADER_VALUES = 512
WINDOW = 128
TRAINED = 80 * 16 + 2  # Windows.
HELD_OUT = 64
PYTHON = ""


def shard(path: pathlib.Path, windows: int, values: int) -> None:
    """Every other token is drawn, the next one follows from it."""
    draw = random.Random(windows)
    tokens = array.array("H", [0] * HEADER_VALUES)
    for _ in range(windows * WINDOW // 2):
        token = draw.randrange(values)
        tokens.extend((token, (token + 1) % values))
    path.write_bytes(tokens.tobytes())


class ScreenTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.data = pathlib.Path(folder.name)

    def write(self, values: int = 32) -> None:
        shard(self.data / "train_000000.bin", TRAINED, values)
        shard(self.data / "held_out_000000.bin", HELD_OUT, values)

    def run_script(self, *flags: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [PYTHON, "-B", HERE / "screen_methods.py", "--data", self.data, "--steps", "80", *flags],
            capture_output=True, text=True, check=False, timeout=300)

    def result(self, *flags: str) -> dict:
        done = self.run_script(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_sites_learn_and_repeat_themselves(self):
        self.write()
        first = self.result("--workers", "2", "--period", "10")
        self.assertLess(first["held_out_loss"], 3)  # It starts at 5.5 nats per byte.
        self.assertEqual(self.result("--workers", "2", "--period", "10"), first)
        shared = self.result("--workers", "2", "--period", "10", "--share", "momentum")
        self.assertNotEqual(shared["held_out_loss"], first["held_out_loss"])

    def test_sites_that_exchange_few_bits_learn_too(self):
        self.write()
        losses = {self.result("--workers", "2", "--period", "4", "--codec", codec)["held_out_loss"]
                  for codec in ("fp32", "int4", "lm2", "sign")}
        self.assertEqual(len(losses), 4)
        self.assertLess(max(losses), 3)

    def test_the_mean_over_the_last_fifth_and_a_rate_that_is_constant_before(self):
        self.write()
        result = self.result("--workers", "2", "--period", "4", "--decay_from", "0.8")
        self.assertLess(result["averaged_loss"], 3)
        self.assertNotEqual(result["averaged_loss"], result["held_out_loss"])
        self.assertNotEqual(self.result("--workers", "2", "--period", "4")["held_out_loss"],
                            result["held_out_loss"])

    def test_one_site_is_never_merged(self):
        self.write()
        self.assertEqual(self.result("--workers", "1", "--period", "10")["held_out_loss"],
                         self.result("--workers", "1", "--period", "40")["held_out_loss"])

    def test_what_is_no_text_is_refused(self):
        self.write(values=1000)
        done = self.run_script()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has no bytes to train on", done.stderr)

    def test_too_few_steps_are_refused(self):
        done = self.run_script("--steps", "20")
        self.assertEqual(done.returncode, 2)
        self.assertIn("at least 80", done.stderr)


if __name__ == "__main__":
    found = subprocess.run([FIND_TORCH], capture_output=True, text=True, check=False)
    PYTHON = found.stdout.strip()
    if found.returncode != 0 or not PYTHON:
        print("skipped: no Python with torch (CAUSEWAY_TORCH_PYTHON names one)")
        sys.exit(77)
    unittest.main(verbosity=2)
