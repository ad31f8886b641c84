"""A whole fleet: each machine is a process with a home of its own, and all else is real."""

import argparse
import json
import os
import signal
import subprocess
import threading
import time
import unittest

import tools
from pretended import Job, PretendedSky
from tools import BUILD

from causeway.fleet import __main__ as program
from causeway.fleet._file import read_fleet
from causeway.fleet._run import Run


class LocalSky(PretendedSky):
    """Machines that are processes: each has a home, and runs the task's own command."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.processes = {}
        (folder / "bin").mkdir()
        (folder / "bin/curl").write_text("#!/bin/sh\nexit 22\n")  # No cloud takes it back.
        (folder / "bin/curl").chmod(0o755)

    def launch(self, task, cluster_name, **options):
        came = super().launch(task, cluster_name, **options)
        home = self.folder / f"{cluster_name}-{len(self.launched)}"
        (home / "causeway").mkdir(parents=True)
        (home / "causeway/bin").symlink_to(BUILD / "bin")
        shards = task.config["file_mounts"]["~/shards"].replace("${SHARDS}", task.config["envs"]["SHARDS"])
        (home / "shards").symlink_to(shards)
        with open(home / "log", "wb") as log:
            self.processes[cluster_name] = subprocess.Popen(
                ["bash", "-c", task.config["run"]], cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
                env={"HOME": str(home), "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                     **task.config["envs"], **task.secrets})
        return came

    def job_status(self, cluster):
        status = self.processes[cluster].poll()
        return {1: Job.RUNNING if status is None else Job.FAILED if status else Job.SUCCEEDED}

    def down(self, cluster_name):
        self.take_back(cluster_name)
        return super().down(cluster_name)

    def take_back(self, cluster_name):
        process = self.processes.pop(cluster_name, None)
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def logs(self):
        return "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*/log")))


class WholeRunTest(unittest.TestCase):
    def test_two_places_train_to_the_budget_one_is_replaced_and_the_model_comes(self):
        folder = tools.folder_of(self)
        os.environ["XDG_STATE_HOME"] = str(folder)
        (folder / "wheels").mkdir()
        (folder / "text.txt").write_text("".join(f"line {i * i} of a text\n" for i in range(20000)))
        status, said = tools.run(BUILD / "bin/causeway-worker", "tokenize",
                                 f"--input={folder / 'text.txt'}", f"--out={folder / 'shards'}")
        self.assertEqual(status, 0, said)
        (folder / "run.textproto").write_text("""
run_name: "first"
model { preset: "tiny-1m" sequence_length: 64 }
train { steps: 1000000 batch_sequences: 4 micro_batch_sequences: 4 }
sync { steps_between_syncs: 10 fragments: 1 }
membership { start_workers: 2 max_workers: 2 lease_ms: 2000 }
""")
        with open(folder / "coordinator.log", "wb") as log:
            coordinator = subprocess.Popen(
                [BUILD / "bin/causeway-coordinator", "serve", f"--run_dir={folder / 'run'}",
                 f"--config={folder / 'run.textproto'}", "--listen=127.0.0.1:0", "--tls=own"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(coordinator.wait)
        self.addCleanup(coordinator.kill)
        (folder / "fleet.yaml").write_text("""
name: first
coordinator: {join: ./run/operator}
places: {berlin: {cpus: 2+}, oslo: {cpus: 2+}}
budget_tokens: 100000
data: shards
wheel: wheels
""")
        sky = LocalSky(folder)
        self.addCleanup(lambda: [sky.take_back(cluster) for cluster in list(sky.processes)])
        said, statuses = [], []
        fleet = read_fleet(folder / "fleet.yaml")
        run = Run(fleet, BUILD / "bin")

        class Clock:
            """Real time; once berlin trains, its machine goes."""

            taken = False
            monotonic = staticmethod(time.monotonic)

            def sleep(self, seconds):
                time.sleep(seconds)
                members = {worker["worker_id"]: worker for worker in run.status()["workers"]}
                if not self.taken and members.get("berlin", {}).get("step", 0) > 20:
                    self.taken = True
                    options = argparse.Namespace(command="status", file=folder / "fleet.yaml", json=True,
                                                 programs=BUILD / "bin")
                    program.work(options, sky, self, statuses.append)
                    sky.take_back("causeway-first-berlin")
                    del sky.clusters["causeway-first-berlin"]

        tools.wait_until((folder / "run/operator/coordinator").exists, "the coordinator listens")
        options = argparse.Namespace(command="up", file=folder / "fleet.yaml", json=False, interval=0.5,
                                     patience=60.0, programs=BUILD / "bin")
        guard = threading.Timer(150, lambda: coordinator.kill())
        guard.start()
        self.addCleanup(guard.cancel)
        done = program.work(options, sky, Clock(), said.append)
        text = "\n".join(said)
        self.assertTrue(done, f"{text}\n{sky.logs()}")
        self.assertIn("berlin: its machine is gone; starts another", text)
        self.assertEqual(sorted(sky.starts()).count("causeway-first-berlin"), 2, text)
        self.assertEqual(sky.starts().count("causeway-first-oslo"), 1, text)
        self.assertEqual(sky.clusters, {})
        self.assertTrue((folder / "model/model.safetensors").exists(), text)
        told = json.loads(statuses[0])
        self.assertEqual([place["state"] for place in told["places"]], ["ACTIVE", "ACTIVE"])
        ended = run.status()
        self.assertTrue(ended["finished"])
        self.assertGreaterEqual(ended["tokens"], 100000)
        self.assertLess(ended["tokens"], 250000)
        coordinator.terminate()
        self.assertEqual(coordinator.wait(timeout=60), 0)
        summary = json.loads((folder / "run/summary.json").read_text())
        self.assertEqual(summary["hash_mismatches"], 0)
        for _, task, _ in sky.launched:
            for log in folder.rglob("log"):
                self.assertNotIn(task.secrets["CAUSEWAY_JOIN"].rpartition("/")[2], log.read_text())


if __name__ == "__main__":
    tools.main()
