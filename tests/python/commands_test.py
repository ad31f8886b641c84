"""The commands that train with PyTorch: quickstart, mixed_run and cost, at their smallest."""

import json
import sys
import unittest

from runs import BIN, HERE, ROOT, cluster, folder_of, needs, run_tool

PATIENCE_S = 500


class CommandsTest(unittest.TestCase):
    def setUp(self):
        self.folder = folder_of(self)
        self.text = self.folder / "text.txt"
        self.text.write_text(cluster.text(20000))

    def run_command(self, *command):
        """Standard output of a command that ends well."""
        status, output, error = run_tool(*command, timeout=PATIENCE_S, variables={
            "CAUSEWAY_BIN": BIN, "CAUSEWAY_TORCH_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"})
        self.assertEqual(0, status, error[-4000:] + output[-1000:])
        return output

    @needs("torch")
    def test_quickstart_trains_with_pytorch(self):
        out = self.folder / "out"
        self.run_command("env", f"PYTHONPATH={ROOT / 'worker/python'}", "/usr/bin/python3", "-B", "-m",
                         "causeway.demo", f"--programs={BIN}",
                         f"--torch_python={sys.executable}", f"--out={out}", "--steps=30", f"--corpus={self.text}", "--sample_tokens=5")
        report = json.loads((out / "report.json").read_text())
        self.assertEqual("pytorch", report["trainer"])
        self.assertEqual(0, report["hash_mismatches"])
        self.assertGreater(report["hash_checks"], 0)
        self.assertEqual(30, report["steps"])
        self.assertLess(report["eval_loss"], report["initial_loss"] - 1)
        self.assertEqual([], report["notes"])

    @needs("torch", "transformers")
    def test_causeway_worker_and_transformers_train_one_model(self):
        figures = json.loads(self.run_command(HERE / "mixed_run", "--json", "--steps=30",
                                              f"--corpus={self.text}"))
        self.assertEqual(0, figures["hash_mismatches"])
        self.assertGreater(figures["rounds"], 4)
        self.assertAlmostEqual(figures["eval_loss_transformers"], figures["eval_loss_causeway"],
                               delta=1e-3)

    @needs("torch")
    def test_cost_is_measured(self):
        figures = json.loads(self.run_command(
            HERE / "cost", "--json", "--layers=1", "--width=16", "--steps=30", "--step_s=0.02"))
        self.assertGreater(figures["training_thread_share"], 0)
        self.assertLess(figures["training_thread_share"], 1)
        self.assertAlmostEqual(8, figures["host_bytes_per_parameter_by_account"], delta=0.1)
        self.assertEqual(30, figures["steps"])
