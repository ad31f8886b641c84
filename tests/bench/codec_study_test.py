"""The study of block sizes and scale formats runs, and its figures are in their natural order."""

import json
import subprocess
import sys
import unittest

CODECS = ["bf16", "int8", "e3m0", "e2m1", "int4", "lm2"]


class CodecStudyTest(unittest.TestCase):
    def test_quick_run_prints_every_row(self):
        report = json.loads(subprocess.run([PROGRAM, "--quick", "--json"], check=True,
                                           capture_output=True, text=True).stdout)
        sets = ["gaussian", "student-t3"]
        self.assertEqual([(row["data"], row["codec"]) for row in report["codecs"]],
                         [(data, codec) for data in sets for codec in CODECS])
        self.assertEqual(
            [(row["data"], row["format"], row["block"], row["scale"]) for row in report["blocks"]],
            [(data, form, block, scale) for data in sets
             for form in ["int4", "e2m1", "e3m0", "lm2"] for block in [16, 32, 64, 128, 256]
             for scale in ["fp32", "bf16", "e8m0", "e4m3"]])
        errors = {(row["format"], row["block"], row["scale"]): row["error"]
                  for row in report["blocks"] if row["data"] == "gaussian"}
        self.assertLess(errors["int4", 16, "fp32"], errors["int4", 256, "fp32"])
        # The codec does what is computed here.
        for row in report["codecs"]:
            if row["data"] == "gaussian" and (row["codec"], 64, "bf16") in errors:
                self.assertAlmostEqual(row["error"] / errors[row["codec"], 64, "bf16"], 1, 3)
            self.assertTrue(0 <= row["lossless_saves"] < 1)
            self.assertGreater(row["packs_bytes_per_s"], 0)
            self.assertLessEqual(row["entropy_bits_per_value"], row["bits_per_value"] * 1.0001)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
