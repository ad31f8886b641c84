"""docs/configuration.md is what config.proto says, and the script that makes it reads comments rightly."""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
sys.dont_write_bytecode = True
import make_configuration  # noqa: E402  pylint: disable=wrong-import-position

SAMPLE = """
// About the file.
syntax = "proto3";

message RunConfig {
  // Stands before. Default: 0.5.
  double before = 1;
  int32 beside = 2;  // Stands beside, and
                     // goes on. Default: a | b.
  // Describes the next one.
  optional bool next = 3;
  enum Kind {
    KIND_UNSPECIFIED = 0;  // PLAIN.
    PLAIN = 1;             // See docs/codecs.md.
  }
  Kind kind = 4;
  Part part = 5;
}

// A part.
message Part {
  enum Kind { // not understood
"""


class MakeConfigurationTest(unittest.TestCase):

    def test_page_is_what_the_comments_say(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "docs" / "make_configuration.py", "--check"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_comments_before_beside_and_going_on(self):
        page = make_configuration.page(SAMPLE.partition("  enum Kind { //")[0] + "}\n")
        self.assertIn("- `before` (number; 0.5): Stands before.\n", page)
        self.assertIn("- `beside` (integer; a | b): Stands beside, and goes on.\n", page)
        self.assertIn("- `next` (flag): Describes the next one.\n", page)
        self.assertIn("- `kind` (`Kind`; PLAIN)\n", page)
        self.assertIn("- `PLAIN`: See [codecs.md](codecs.md).\n", page)
        self.assertIn("- `part`: [below](#part)\n", page)
        self.assertIn("\n## part\n\nA part.\n", page)
        self.assertNotIn("UNSPECIFIED", page)
        self.assertNotIn("About the file", page)

    def test_line_that_is_not_understood_is_refused(self):
        with self.assertRaisesRegex(ValueError, r"config\.proto:\d+: not understood: enum Kind"):
            make_configuration.page(SAMPLE)


if __name__ == "__main__":
    unittest.main()
