"""docs/monitoring.md is what the code says, and the script that makes it reads calls rightly. Real scrapes are
in tests/integration."""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import make_monitoring  # noqa: E402  pylint: disable=wrong-import-position

SAMPLE = """
  const std::string bytes = "causeway_bytes_total";
  const std::string help = "Payload; of \\"this\\" process, "
                           "in bytes.";
  const MetricLabels labels = {{"link", kLink}, {"worker", worker.worker_id()}};
  page.Counter(bytes, help, Sum(up, down), with("direction", "up"));
"""


class MakeMonitoringTest(unittest.TestCase):

    def test_page_is_what_the_code_says(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "docs" / "make_monitoring.py", "--check"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_call_with_variables_is_understood(self):
        call = make_monitoring.EXPORT.search(SAMPLE)
        name, said, value, labels = make_monitoring.arguments(SAMPLE, call.end())
        self.assertEqual(value, "Sum(up, down)")
        self.assertEqual(make_monitoring.literal(SAMPLE, call.start(), name), "causeway_bytes_total")
        self.assertEqual(make_monitoring.literal(SAMPLE, call.start(), said), 'Payload; of "this" process, in bytes.')
        self.assertEqual(make_monitoring.labels(SAMPLE, call.start(), labels), {"direction", "link", "worker"})

    def test_call_that_is_not_understood_is_refused(self):
        with self.assertRaisesRegex(ValueError, "not understood as a text: name"):
            make_monitoring.literal(SAMPLE, len(SAMPLE), "name")
        with self.assertRaisesRegex(ValueError, "not understood as labels: more"):
            make_monitoring.labels(SAMPLE, len(SAMPLE), "more")

    def test_event_that_the_table_lacks_is_refused(self):
        self.addCleanup(setattr, make_monitoring, "RECORDING", make_monitoring.RECORDING)
        make_monitoring.RECORDING = {"Coordinator": ("worker",)}
        with self.assertRaisesRegex(ValueError, r"worker/.*:\d+: kCoordinatorEvents in .* lacks [a-z_]+, with a comment"):
            make_monitoring.events("Coordinator")


if __name__ == "__main__":
    unittest.main()
