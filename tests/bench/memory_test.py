"""A short run of tests/bench/memory: what is at rest is not in the coordinator's memory."""

import json
import pathlib
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(__file__).with_name("memory")


class MemoryTest(unittest.TestCase):
    def test_memory_follows_what_is_in_flight(self):
        found = {}
        for parameters in (4e6, 24e6):
            done = subprocess.run(
                [sys.executable, "-B", PROGRAM, f"--parameters={parameters}", "--fragments=16",
                 "--rounds=2", "--json"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            found[parameters] = json.loads(done.stdout)
            self.assertEqual(found[parameters]["rounds"], 2 * 16)
            # theta, momentum and published, at 4 bytes.
            self.assertGreaterEqual(found[parameters]["dropped_bytes"], 12 * parameters * 0.9)
        more = found[24e6]["resident_bytes"] - found[4e6]["resident_bytes"]
        # All of it would be 12 bytes of each of 20 million parameters, and answers.
        self.assertLess(more, 12 * 20e6 / 2)


if __name__ == "__main__":
    unittest.main()
