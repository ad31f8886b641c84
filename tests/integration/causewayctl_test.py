"""causewayctl against a real run: what it shows, that its orders are followed, its exit statuses."""

import json
import subprocess
import unittest

from cluster import BIN, CTL, SIGKILL, SYNC, Cluster, ended, output_of, refusal_of, run_tool, wait_until

SETTINGS = (SYNC + "train { steps: %d optimizer: MUON } "
            "membership { start_workers: 2 max_workers: 4 lease_ms: 2000 } ")
PACE = "--max_tokens_per_second=3200"


class CausewayCtlTest(unittest.TestCase):
    def ctl(self, cluster, *arguments, status=0):
        found, output, error = run_tool(CTL, *arguments, f"--coordinator={cluster.address}")
        self.assertEqual(found, status, error)
        return output if status == 0 else error

    def run_status(self, cluster):
        return json.loads(self.ctl(cluster, "status", "--json"))

    def test_a_run_is_shown_paused_resumed_and_stopped(self):
        with Cluster().serving(SETTINGS % 100000) as cluster:
            self.assertIn("waits for 2 workers", self.ctl(cluster, "status"))
            workers = [cluster.start_worker(name, PACE) for name in ("a", "b")]
            cluster.wait_for_step("a", 10)
            wait_until(lambda: self.run_status(cluster)["run_step"] > 0, "the status shows steps")
            text = self.ctl(cluster, "status")
            self.assertIn("training, step", text)
            self.assertIn("WORKER", text)
            self.assertIn("FRAGMENT", text)
            self.assertIn("active", self.ctl(cluster, "workers"))
            self.assertIn("OPEN ROUND", self.ctl(cluster, "rounds"))

            self.ctl(cluster, "pause", "--reason=for a look")
            paused = self.run_status(cluster)
            self.assertTrue(paused["paused"])
            cluster.wait_for_event("paused", reason="for a look")
            self.assertIn("resumed", self.ctl(cluster, "resume"))
            cluster.wait_for_step("a", paused["run_step"] + 10)

            self.assertIn("will not be merged",
                          self.ctl(cluster, "reject", "b", "--reason=out of line"))
            cluster.wait_for_event("worker_rejected", worker="b", undo=False, reason="out of line")
            self.assertIn("may count again", self.ctl(cluster, "reject", "b", "--undo"))

            self.assertIn("asked to hand over", self.ctl(cluster, "drain", "b"))
            self.assertEqual(workers[1].wait(), 0, workers[1].log())
            step = self.run_status(cluster)["run_step"] + 40
            self.assertIn(f"ends at step {step}", self.ctl(cluster, "stop", f"--at_step={step}"))
            ended(workers[0], cluster.coordinator)
            self.assertEqual(cluster.summary("a")["steps"], step)

    def test_watch_does_not_wait_for_ever_for_a_coordinator_that_is_gone(self):
        with Cluster().serving(SETTINGS % 100000) as cluster:
            with subprocess.Popen([str(CTL), "watch", "--json", "--interval=100ms", "--patience=300ms",
                                   f"--coordinator={cluster.address}"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watch:
                self.assertIn("run_id", json.loads(watch.stdout.readline()))
                cluster.coordinator.signal(SIGKILL)
                error = watch.communicate(timeout=60)[1]
            self.assertEqual(watch.returncode, 3)
            self.assertIn("no answer from the coordinator", error)

    def test_events_are_listed(self):
        with Cluster().serving(SETTINGS % 100000) as cluster:
            self.ctl(cluster, "pause")
            cluster.wait_for_event("paused")
            told = [json.loads(line) for line in self.ctl(cluster, "events", "--json").splitlines()]
            self.assertEqual([event["event"] for event in told], ["coordinator_started", "paused"])
            self.assertEqual((told[-1]["level"], told[-1]["reason"]), ("info", "asked to by the operator"))
            lines = self.ctl(cluster, "events", "--last=2").splitlines()
            self.assertEqual(len(lines), 2)
            self.assertRegex(lines[-1], r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  info   paused: asked to by the operator$")
            self.assertEqual(self.ctl(cluster, "events", "--level=error"), "")
            self.assertIn("--level", self.ctl(cluster, "events", "--level=loud", status=2))

    def test_the_published_parameters_come_out_while_training_goes_on(self):
        with Cluster().serving(SETTINGS % 100000) as cluster:
            workers = [cluster.start_worker(name, PACE) for name in ("a", "b")]
            cluster.wait_for_step("a", 60)
            folder = cluster.folder / "exported"
            text = self.ctl(cluster, "export", f"--out={folder}")
            self.assertIn("parameters of run", text)
            self.assertIn("qk_norm: true", (folder / "model.textproto").read_text())
            (folder / "notes.txt").write_text("mine")
            first = (folder / "model.safetensors").stat().st_size
            self.assertIn("holds a model already",
                          self.ctl(cluster, "export", f"--out={folder}", status=2))

            done = json.loads(self.ctl(cluster, "export", f"--out={folder}", "--replace",
                                       "--dtype=bf16", "--json"))
            self.assertEqual(done["out"], str(folder))
            self.assertTrue(all(version >= 1 for version in done["versions"]), done)
            second = (folder / "model.safetensors").read_bytes()
            self.assertLess(len(second), 0.6 * first)
            self.assertEqual((folder / "notes.txt").read_text(), "mine")
            self.assertEqual([path.name for path in cluster.folder.glob(".*")], [])

            # One that comes too late leaves what there is.
            late = self.ctl(cluster, "export", f"--out={folder}", "--replace", "--deadline=1ns",
                            status=3)
            self.assertRegex(late, "--deadline=1ns is over: .* come, and nothing was written; "
                                   "give it more time")
            self.assertEqual((folder / "model.safetensors").read_bytes(), second)

            # The run goes on, and the model has learnt something: at first its loss is log 256.
            self.ctl(cluster, "drain", "--all")
            ended(*workers, cluster.coordinator)
            output = output_of(
                BIN / "causeway-worker", "eval", f"--checkpoint={folder}",
                f"--data={cluster.data}", "--sequences=8", "--json")
            self.assertLess(json.loads(output)["loss"], 5.53)

    def test_orders_and_configurations_speak_json(self):
        with Cluster().serving(SETTINGS % 60) as cluster:
            self.assertEqual(json.loads(self.ctl(cluster, "pause", "--json")),
                             {"done": "paused: workers finish their step and wait; causewayctl "
                                      "resume lets them go on"})
            self.assertEqual(json.loads(self.ctl(cluster, "resume", "--json"))["done"], "resumed")
            self.assertIn("at step 50", json.loads(
                self.ctl(cluster, "stop", "--at_step=50", "--json"))["done"])
            config = json.loads(self.ctl(cluster, "config", "show", "--json"))
            self.assertEqual(config["sync"]["codec_up"], "LM2")

    def test_what_is_asked_for_wrongly_is_refused_with_a_reason(self):
        with Cluster().serving(SETTINGS % 60) as cluster:
            self.assertIn("no worker c", self.ctl(cluster, "drain", "c", status=1))
            self.assertIn("no worker c", self.ctl(cluster, "reject", "c", status=1))
            for arguments in (["reject"], ["reject", "a", "--fragment=1"], ["drain"], ["drain", "a", "--all"], ["stop"],
                              ["stop", "--at_step=3", "--at_tokens=4"], ["frobnicate"], [],
                              ["status", "now"], ["config"], ["config", "diff", "one"],
                              ["completion", "fish"], ["watch", "--interval=1ms"], ["export"],
                              ["export", "--out=x", "--dtype=f64"], ["export", "--out=x", "--deadline=0s"],
                              ["export", "--out=x", "--max_file_gb=0"],
                              ["simulate", "--table=paper", "--need"],
                              ["export", f"--out={cluster.folder}/run.textproto"],
                              ["export", f"--out={cluster.folder}/run.textproto", "--replace"],
                              ["events", "--last=-1"], ["events", "--interval=1ms"],
                              ["export", "now"]):
                with self.subTest(arguments=arguments):
                    error = self.ctl(cluster, *arguments, status=2)
                    self.assertEqual(error.count("\n"), 1, error)

    def test_no_answer_has_an_exit_status_of_its_own(self):
        self.assertIn("no answer from the coordinator at 127.0.0.1:1", refusal_of(
            CTL, "status", "--coordinator=127.0.0.1:1", "--timeout=5s", status=3))
        self.assertIn("--tls_ca", refusal_of(CTL, "status", "--coordinator=10.0.0.1:7070"))

    def test_configurations_are_checked_and_compared(self):
        with Cluster() as cluster:
            one, two = cluster.folder / "one.textproto", cluster.folder / "two.textproto"
            model = 'model { preset: "tiny-1m" } '
            one.write_text(model + "train { steps: 100 }")
            two.write_text(model + "train { steps: 200 }")
            output = output_of(CTL, "config", "check", one, "--preset=best")
            self.assertIn("steps: 100", output)
            self.assertIn("codec_up: LM2", output)
            status, output, _ = run_tool(CTL, "config", "diff", one, two)
            self.assertEqual(status, 1)
            self.assertIn("train.steps", output)
            status, output, _ = run_tool(CTL, "config", "diff", one, two, "--json")
            self.assertEqual(status, 1)
            self.assertIn("train.steps: 100 -> 200", json.loads(output)["differences"])
            status, output, _ = run_tool(CTL, "config", "diff", one, one, "--json")
            self.assertEqual((status, json.loads(output)), (0, {"differences": []}))
            # Fewer steps than H of the defaults, and not of the preset.
            two.write_text(model + "train { steps: 60 }")
            self.assertEqual(run_tool(CTL, "config", "diff", one, two)[0], 2)
            status, output, _ = run_tool(CTL, "config", "diff", one, two, "--preset=best")
            self.assertEqual((status, "train.steps: 100 -> 60" in output), (1, True), output)
            status, output, _ = run_tool(CTL, "config", "presets")
            self.assertIn("best", output)
            self.assertIn("gpt2-124m-shape", output)
            self.assertIn("best", json.loads(output_of(CTL, "config", "presets", "--json"))["runs"])
            self.assertIn("none", refusal_of(CTL, "config", "check", cluster.folder / "none"))
            cluster.start_coordinator(SETTINGS % 60)
            self.assertIn("steps_between_syncs: 6", self.ctl(cluster, "config", "show"))


if __name__ == "__main__":
    unittest.main()
