"""docs/configuration.md is what config.proto says."""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
sys.dont_write_bytecode = True
import make_configuration  # noqa: E402  pylint: disable=wrong-import-position


class MakeConfigurationTest(unittest.TestCase):

    def test_page_is_what_the_comments_say(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "docs" / "make_configuration.py", "--check"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_line_that_is_not_understood_is_refused(self):
        with self.assertRaisesRegex(ValueError, r"config\.proto:\d+: not understood: enum Kind"):
            make_configuration.page('syntax = "proto3";\n\nmessage RunConfig {\n  enum Kind { // not understood\n')


if __name__ == "__main__":
    unittest.main()
