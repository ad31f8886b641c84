"""The benchmark of the codecs runs and prints what its readers look for; no time is judged."""

import json
import subprocess
import sys
import unittest

ROW = {"codec", "operation", "bytes_per_value", "gb_per_s", "memcpy_fraction",
       "all_cores_gb_per_s", "all_cores_memcpy_fraction"}
CODECS = ["fp32", "bf16", "int8", "e3m0", "e2m1", "int4", "lm2"]
OPERATIONS = ["encode", "encode_feedback", "accumulate", "apply", "validate"]


class CodecBenchTest(unittest.TestCase):
    def test_quick_run_prints_every_key(self):
        report = json.loads(subprocess.run(
            [PROGRAM, "--quick", "--json", "--threads=2"], check=True, capture_output=True,
            text=True).stdout)
        for cores in ("single_core", "all_cores"):
            self.assertEqual(set(report[cores]), {"memcpy_gb_per_s", "triad_gb_per_s"})
        self.assertEqual([(row["codec"], row["operation"]) for row in report["rows"]],
                         [(codec, operation) for codec in CODECS for operation in OPERATIONS])
        for row in report["rows"]:
            self.assertEqual(set(row), ROW)
            self.assertGreater(row["gb_per_s"], 0)

    def test_bad_flags_are_refused(self):
        for flag in ("--values=1000", "--repeats=0", "--threads=-1"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn("codec_bench: ", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
