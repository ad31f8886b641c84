"""deploy/slurm on a cluster of one machine: two nodes, real jobs, a time limit on the way."""

import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import tools
from tools import BUILD, ROOT, run

DEADLINE_S = 120
CLUSTER = """
ClusterName=causeway
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
MinJobAge=300
KillWait=5
OverTimeLimit=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=4 State=UNKNOWN
PartitionName=main Nodes=n1,n2,n3 Default=YES MaxTime=INFINITE State=UP
"""
RUN = """
model { layers: 2 width: 32 heads: 2 mlp_width: 64 sequence_length: 32 }
train { steps: 400 batch_sequences: 2 micro_batch_sequences: 1 }
sync { pattern: BALANCED fragments: 4 steps_between_syncs: 6 }
membership { start_workers: %d max_workers: 2 }
"""


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tools.needs("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
        # Some sanitizers' runtimes want more address space than a node of this cluster grants.
        if tools.sanitized():
            raise unittest.SkipTest("not with sanitizers")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway_slurm_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.daemons = []
        cls.addClassCleanup(cls.stop_daemons)
        cls.start_cluster()

    @classmethod
    def stop_daemons(cls):
        for daemon in reversed(cls.daemons):
            daemon.terminate()
        for daemon in cls.daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    @classmethod
    def daemon(cls, name, *command):
        with open(cls.folder / f"{name}.log", "wb") as log:
            cls.daemons.append(subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=cls.environment))

    @classmethod
    def start_cluster(cls):
        cls.ports = [tools.free_port() for _ in range(5)]
        (cls.folder / "state").mkdir()
        for node in ("n1", "n2", "n3"):
            (cls.folder / f"spool.{node}").mkdir()
        (cls.folder / "slurm.conf").write_text(CLUSTER.format(
            host=socket.gethostname().partition(".")[0], user=getpass.getuser(),
            folder=cls.folder, ports=cls.ports))
        cls.environment = {
            **os.environ, "SLURM_CONF": str(cls.folder / "slurm.conf"),
            "PATH": f"{BUILD}/bin:{os.environ['PATH']}", "CAUSEWAY_HOME": str(cls.folder / "home"),
            "CAUSEWAY_SITE": "site", "CAUSEWAY_PORT": str(cls.ports[4]),
            "CAUSEWAY_WORKER_FLAGS": "--threads=1 --min_step_time=50ms --checkpoint_interval=2s"}
        key = cls.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        cls.folder.chmod(0o755)
        cls.daemon("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                   f"--socket={cls.folder}/munge.socket", f"--pid-file={cls.folder}/munged.pid",
                   f"--log-file={cls.folder}/munged.log", f"--seed-file={cls.folder}/munged.seed")
        cls.wait("munged listens", lambda: (cls.folder / "munge.socket").exists())
        cls.daemon("slurmctld", "slurmctld", "-D", "-f", cls.folder / "slurm.conf")
        for node in ("n1", "n2", "n3"):
            cls.daemon(node, "slurmd", "-D", "-N", node, "-f", cls.folder / "slurm.conf")
        cls.wait("three nodes are idle", lambda: cls.slurm("sinfo", "-h", "-t", "idle", "-o", "%D") == "3")

    @classmethod
    def slurm(cls, *command):
        status, said = run(*command, env=cls.environment)
        return said.strip() if status == 0 else ""

    @classmethod
    def wait(cls, what, condition):
        """Polls an outside fact, and fails loudly when it never comes."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                                 for path in sorted(cls.folder.glob("*.log")))
                raise AssertionError(f"waited {DEADLINE_S} s in vain until {what}\n{logs}")
            time.sleep(0.2)

    def submit(self, *arguments, **variables):
        status, said = run("sbatch", "--parsable", "--chdir", self.folder, *arguments,
                           env={**self.environment, **variables})
        said = said.strip() if status == 0 else ""
        self.assertTrue(said.isdigit(), said)
        return said

    def state(self, job):
        said = self.slurm("scontrol", "show", "job", job, "--oneliner")
        return dict(part.split("=", 1) for part in said.split() if "=" in part)

    def wait_for_state(self, job, state):
        self.wait(f"job {job} is {state}", lambda: self.state(job).get("JobState") == state)

    def log(self, job):
        return "".join(path.read_text(errors="replace") for path in self.folder.glob(f"causeway-*.{job}.log"))

    def prepare(self, ids):
        """A folder for a run of these workers."""
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        (home / "run.textproto").write_text(RUN % len(ids))
        (home / "text.txt").write_text((ROOT / "docs/algorithm.md").read_text())
        status, said = run(BUILD / "bin/causeway-worker", "tokenize", f"--input={home}/text.txt",
                           f"--out={home}/shards")
        self.assertEqual(status, 0, said)
        return home

    def run_over_a_time_limit(self, ids, **variables):
        """A run on two nodes with these workers, whose job is told on the way that its time is up."""
        home = self.prepare(ids)
        # Nothing came of it: the job makes another one.
        (home / "identities").mkdir(mode=0o700)
        (home / "identities" / f"{ids[0]}.line").write_text("causeway://of/a/job/before\n")
        # The workers first: they wait for the coordinator's address. Shares of one small machine.
        export = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        workers = self.submit("--mem=0", "--nodes=2", f"--export={export}", ROOT / "deploy/slurm/workers.sbatch")
        coordinator = self.submit("--mem=0", ROOT / "deploy/slurm/coordinator.sbatch")
        self.wait("all train", lambda: self.log(workers).count("checkpoint written") >= 2 * len(ids))
        # Slurm does so when the limit comes near (--signal), after a day.
        self.assertEqual(run("scancel", "--batch", "--signal=USR1", workers, env=self.environment)[0], 0)
        self.wait("the workers' job was queued again",
                  lambda: self.state(workers).get("Restarts") == "1")
        self.assertIn("all workers have saved", self.log(workers))
        # Slurm holds a requeued job back for two minutes; here the nodes need less to be ready.
        self.slurm("scontrol", "update", f"JobId={workers}", "StartTime=now+5")
        self.wait_for_state(workers, "COMPLETED")
        self.wait_for_state(coordinator, "COMPLETED")
        log = self.log(workers)
        self.assertEqual(log.count("boarded the run"), len(ids), log)
        self.assertEqual(log.count("continuing from the checkpoint"), len(ids), log)
        status, said = run(BUILD / "bin/causeway-coordinator", "inspect", f"--run_dir={home}/run")
        self.assertEqual(status, 0, said)
        models = []
        for source in (f"--run_dir={home}/run",
                       *(f"--checkpoint={home}/workers/{name}/checkpoint" for name in ids)):
            out = home / f"exported-{len(models)}"
            status, said = run(BUILD / "bin/causeway-worker", "export", source, f"--out={out}")
            self.assertEqual(status, 0, said)
            models.append((out / "model.safetensors").read_bytes())
        self.assertEqual(models, [models[0]] * len(models))
        return log

    def test_a_run_of_two_nodes_that_meets_its_time_limit_goes_on_and_ends(self):
        self.run_over_a_time_limit(["site-0", "site-1"])

    def test_a_job_whose_line_of_a_coordinator_elsewhere_is_missing_says_so(self):
        self.prepare(["site-0"])
        job = self.submit("--mem=0", "--nodes=1", "--export=ALL,CAUSEWAY_COORDINATOR=127.0.0.1:1",
                          ROOT / "deploy/slurm/workers.sbatch")
        self.wait_for_state(job, "FAILED")
        self.assertIn("site-0.line is missing", self.log(job))

    def test_two_nodes_that_are_one_worker_meet_their_time_limit_go_on_and_end(self):
        tools.needs(f"{BUILD}/bin/emulated/causeway-worker")  # Each node has a GPU.
        # The names of these nodes are nobody's.
        log = self.run_over_a_time_limit(["site-0"], CAUSEWAY_SITE_OF_NODES=1, MASTER_ADDR="127.0.0.1",
                                         PATH=f"{BUILD}/bin/emulated:{self.environment['PATH']}")
        self.assertEqual(log.count(", the first of 2 processes with 2 GPUs"), 2, log)
        self.assertEqual(log.count("does its share of every step"), 2, log)
        self.assertFalse((self.folder / "home/workers/site-1").exists())


if __name__ == "__main__":
    tools.main()
