"""What trains with PyTorch beside causeway-worker, and the commands that do: quickstart and cost, at their smallest."""

import json
import sys
import unittest

from runs import BIN, HERE, ROOT, Cluster, cluster, ended, folder_of, needs, output_of, run_tool

PATIENCE_S = 500
PACKAGE = {"PYTHONPATH": str(ROOT / "worker" / "python"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
# Llama has no norms of queries and keys.
LLAMA = """
model { qk_norm: false } train { steps: 60 }
sync { pattern: BALANCED fragments: 5 steps_between_syncs: 16 overlap_steps: 2
       codec_up: LM2 codec_down: LM2 error_feedback: true }
outer { learning_rate: 1 momentum: 0 } membership { start_workers: 2 max_workers: 2 }
"""


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
        """Causeway's own model, by two processes of examples/train_from_scratch.py."""
        out = self.folder / "out"
        self.run_command("env", f"PYTHONPATH={ROOT / 'worker/python'}", "/usr/bin/python3", "-B", "-m",
                         "causeway.demo", f"--programs={BIN}",
                         "--trainer=pytorch", f"--out={out}", "--steps=30", f"--corpus={self.text}", "--sample_tokens=5")
        report = json.loads((out / "report.json").read_text())
        self.assertEqual("pytorch", report["trainer"])
        self.assertEqual(0, report["hash_mismatches"])
        self.assertGreater(report["hash_checks"], 0)
        self.assertEqual(30, report["steps"])
        self.assertLess(report["eval_loss"], report["initial_loss"] - 1)
        self.assertEqual([], report["notes"])
        summaries = [json.loads((out / f"worker-{i}" / "summary.json").read_text()) for i in range(2)]
        self.assertEqual({0, 1}, {summary["data_slot"] for summary in summaries})
        for summary in summaries:
            self.assertEqual(30 * 4 * 256, summary["tokens"])
            self.assertEqual(summary["data_slot"] == 0, len(summary.get("sample", "")) > 64)

    @needs("torch", "transformers")
    def test_causeway_worker_and_transformers_train_one_model(self):
        llama = [sys.executable, "-B", HERE / "llama_site.py"]
        with Cluster() as run:
            run.start_coordinator(LLAMA)
            sites = [run.start_worker("causeway"),
                     run.start("transformers.log", *llama, f"--coordinator={run.address}", "--id=transformers",
                               f"--data={run.data}", f"--out={run.out('transformers')}", variables=PACKAGE)]
            ended(*sites, run.coordinator)
            summary = run.summary()
            self.assertEqual(0, summary["hash_mismatches"])
            self.assertGreater(min(summary["hash_checks"], summary["rounds"]), 4)
            for name in ("causeway", "transformers"):
                losses = [row["train_loss"] for row in cluster.json_lines(run.out(name) / "metrics.jsonl")
                          if row["kind"] == "step"]
                self.assertLess(sum(losses[-6:]), sum(losses[:6]))
            model = run.folder / "model"
            output_of(cluster.WORKER, "export", f"--run_dir={run.folder / 'coordinator'}", f"--out={model}")
            ours = json.loads(output_of(cluster.WORKER, "eval", f"--checkpoint={model}", f"--data={run.data}", "--device=cpu",
                                        "--sequences=64", "--json"))["loss"]
            theirs = output_of(*llama, "evaluate", model, run.data, 64, variables=PACKAGE).split()[-1]
            self.assertAlmostEqual(float(theirs), ours, delta=1e-3)

    @needs("torch")
    def test_cost_is_measured(self):
        figures = json.loads(self.run_command(
            HERE / "cost", "--json", "--layers=1", "--width=16", "--steps=30", "--step_s=0.02"))
        self.assertGreater(figures["training_thread_share"], 0)
        self.assertLess(figures["training_thread_share"], 1)
        self.assertAlmostEqual(8, figures["host_bytes_per_parameter_by_account"], delta=0.1)
        self.assertEqual(30, figures["steps"])
