"""docs/monitoring.md is what the code says. Real scrapes are in tests/integration."""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import make_monitoring  # noqa: E402  pylint: disable=wrong-import-position


class MakeMonitoringTest(unittest.TestCase):

    def test_page_is_what_the_code_says(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "docs" / "make_monitoring.py", "--check"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_call_that_is_not_understood_is_refused(self):
        with self.assertRaisesRegex(ValueError, "not understood as a text: name"):
            make_monitoring.literal("", 0, "name")
        with self.assertRaisesRegex(ValueError, "not understood as labels: more"):
            make_monitoring.labels("", 0, "more")

    def test_event_that_the_table_lacks_is_refused(self):
        self.addCleanup(setattr, make_monitoring, "RECORDING", make_monitoring.RECORDING)
        make_monitoring.RECORDING = {"Coordinator": ("worker",)}
        with self.assertRaisesRegex(ValueError, r"worker/.*:\d+: kCoordinatorEvents in .* lacks [a-z_]+, with a comment"):
            make_monitoring.events("Coordinator")


if __name__ == "__main__":
    unittest.main()
