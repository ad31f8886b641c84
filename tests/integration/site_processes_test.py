"""A worker of several processes, as torchrun and Slurm start them: one replica, one end for all. Each process has
an emulated GPU."""

import functools
import re
import shutil
import socket
import sys
import unittest

from cluster import BIN, SIGKILL, SIGTERM, Cluster, ended, free_port, wait_until

EMULATED = BIN / "emulated/causeway-worker"

STREAMING = """
train { steps: %d optimizer: MUON micro_batch_sequences: 1 }
sync { fragments: 2 steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5
       codec_up: INT4 codec_down: INT4 error_feedback: true }
"""
ONE = "membership { start_workers: 1 max_workers: 4 lease_ms: 2000 }"
TWO = "membership { start_workers: 2 max_workers: 4 lease_ms: 2000 }"
# Slow enough that others can act while it trains: 64 tokens a step, 50 steps a second.
PACE = "--max_tokens_per_second=3200"


def launch_of(processes, port=None):
    """What torchrun tells each process of a site."""
    return {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes,
            "MASTER_ADDR": "localhost", "MASTER_PORT": port or free_port()}


class Sites(Cluster):
    def start_site(self, worker, processes, *flags, port=None, variables=None):
        """One worker of several processes, as torchrun starts them; process 0 is the first."""
        launch = launch_of(processes, port)
        return [self.start_process(worker, rank, launch, *flags, variables=variables) for rank in range(processes)]

    def start_process(self, worker, rank, launch, *flags, program=EMULATED, variables=None):
        """Only process 0 has the data and the output folder."""
        folders = ([self.data, self.out(worker)] if rank == 0 else
                   [self.folder / "elsewhere", self.folder / "elsewhere"])
        own = {"RANK": rank, "LOCAL_RANK": rank, **launch, **(variables or {})}
        return self.start(
            f"{worker}.{rank}.log", program, "train", f"--coordinator={self.address}", f"--id={worker}",
            f"--data={folders[0]}", f"--out={folders[1]}", *flags,
            variables={name: str(value) for name, value in own.items()})


class SiteTest(unittest.TestCase):
    @staticmethod
    def published(cluster):
        """The hashes of all rounds, once the run is over."""
        ended(cluster.coordinator)
        assert cluster.summary()["hash_mismatches"] == 0
        return cluster.published()

    @staticmethod
    @functools.cache
    def undisturbed(settings):
        with Sites().serving(settings) as cluster:
            ended(*cluster.start_site("site", 2))
            return SiteTest.published(cluster), cluster.summary("site")


class TrainingTest(SiteTest):
    def test_a_site_of_two_processes_trains_with_a_plain_worker(self):
        with Sites().serving(STREAMING % 60 + TWO) as cluster:
            site = cluster.start_site("site", 2)
            plain = cluster.start_worker("plain")
            ended(*site, plain)
            self.assertEqual(len(self.published(cluster)), 3 * 10)
            for row in cluster.rounds():
                self.assertEqual(row["contributors"], ["plain", "site"])
            for worker in ("site", "plain"):
                summary = cluster.summary(worker)
                self.assertEqual(summary["rounds_merged"], 30)
                self.assertEqual(summary["tokens"], 60 * 64)
            evaluated = next(entry for entry in map(cluster.summary, ("site", "plain"))
                             if "eval_loss" in entry)
            self.assertLess(evaluated["eval_loss"], 0.8 * evaluated["initial_loss"])
            # The others of a site write nothing.
            self.assertFalse((cluster.folder / "elsewhere").exists())

    def test_a_site_draws_and_learns_as_one_process_does(self):
        settings = STREAMING % 24 + ONE
        first, summary = self.undisturbed(settings)
        with Sites().serving(settings) as cluster:
            ended(*cluster.start_site("site", 2))
            self.assertEqual(self.published(cluster), first)
        with Sites().serving(settings) as cluster:
            ended(cluster.start_worker("site", program=EMULATED))
            alone = cluster.summary("site")
        self.assertEqual(summary["tokens"], alone["tokens"])
        self.assertEqual(summary["initial_loss"], alone["initial_loss"])
        self.assertAlmostEqual(summary["eval_loss"], alone["eval_loss"], delta=0.05)

    def test_data_parallelism_sends_the_gradient_of_all_processes(self):
        settings = """
            train { steps: 30 learning_rate: 0.003 micro_batch_sequences: 1 }
            sync { contribution: GRADIENT steps_between_syncs: 1 codec_up: FP32 codec_down: FP32 }
            outer { optimizer: ADAMW } """ + ONE
        _, site = self.undisturbed(settings)
        with Sites().serving(settings) as cluster:
            ended(cluster.start_worker("alone", program=EMULATED))
            alone = cluster.summary("alone")
        self.assertAlmostEqual(site["eval_loss"], alone["eval_loss"], delta=0.02)
        self.assertLess(site["eval_loss"], 0.9 * site["initial_loss"])

    def test_beside_torchruns_own_store(self):
        with Sites() as cluster, socket.create_server(("", 0)) as store:
            cluster.start_coordinator(STREAMING % 12 + ONE)
            site = cluster.start_site(
                "site", 2, port=store.getsockname()[1],
                variables={"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"})
            ended(*site)


class EndTest(SiteTest):
    """However one of them ends, all do, and the site continues from its checkpoint bit for bit."""

    def continues(self, end):
        settings = STREAMING % 80 + ONE.replace("2000", "60000")
        with Sites().serving(settings, "--noexit_when_drained") as cluster:
            site = cluster.start_site("site", 2, PACE, "--checkpoint_interval=100ms")
            cluster.wait_for_step("site", 20)
            wait_until(lambda: site[0].log().count("checkpoint written") >= 3, "it has checkpoints")
            end(site)
            self.assertLess(cluster.steps("site"), 80)
            again = cluster.start_site("site", 2)
            ended(*again)
            steps = re.findall(r"continuing from the checkpoint at step (\d+)", again[0].log())
            self.assertEqual(len(steps), 1, again[0].log())
            self.assertGreater(int(steps[0]), 6)
            disturbed = self.published(cluster)
        self.assertEqual(disturbed, self.undisturbed(settings)[0])

    def test_one_process_is_killed(self):
        for killed in (1, 0):
            def end(site, killed=killed):
                site[killed].kill()
                other = site[1 - killed]
                self.assertEqual(other.wait(), 1)
                self.assertIn(f"the connection to process {killed} of this site is lost", other.log().splitlines()[-1])

            with self.subTest(killed=killed):
                self.continues(end)

    def test_all_are_told_to_stop(self):
        def end(site):
            for process in site:
                process.signal(SIGTERM)
            ended(*site)

        self.continues(end)

    def test_one_is_told_to_stop(self):
        def end(site):
            site[1].signal(SIGTERM)
            ended(*site)
            self.assertIn("told to stop", site[1].log())

        self.continues(end)

    def test_a_process_that_dies_while_the_run_waits_is_noticed(self):
        with Sites().serving(STREAMING % 60 + TWO) as cluster:
            site = cluster.start_site("site", 2)
            cluster.wait_for_event("worker_ready", worker="site")
            site[1].signal(SIGKILL)
            self.assertEqual(site[0].wait(), 1)
            self.assertIn("process 1 of this site is lost", site[0].log().splitlines()[-1])

    def test_they_are_told_to_stop_before_all_have_come(self):
        with Sites().serving(STREAMING % 60 + ONE) as cluster:
            launch = launch_of(3)
            site = [cluster.start_process("site", rank, launch) for rank in range(2)]
            wait_until(lambda: "has found process 0" in site[1].log(), "process 1 waits")
            site[1].signal(SIGTERM)
            ended(*site[1:])
            # Process 0 has not ended: the other one may come again.
            site[1] = cluster.start_process("site", 1, launch)
            wait_until(lambda: site[1].log().count("has found process 0") == 2, "it waits again")
            for process in site:
                process.signal(SIGTERM)
            ended(*site)


class RefusalsTest(SiteTest):
    def refused(self, cluster, processes, *texts, status=2):
        """All end with that status, and each of the lines that they end with says one of these."""
        for process, expected in zip(processes, texts):
            self.assertEqual(process.wait(), status, process.log())
            line = process.log().splitlines()[-1]
            self.assertIn(expected, line)

    def test_a_process_that_does_not_come(self):
        with Sites().serving(STREAMING % 60 + ONE) as cluster:
            first = cluster.start_process("site", 0, launch_of(3), "--site_timeout=100ms")
            self.refused(cluster, [first], "these did not come: 1, 2", status=1)
            late = cluster.start_process("site", 1, launch_of(3), "--site_timeout=100ms")
            self.refused(cluster, [late], "process 1 of this site did not reach process 0 at", status=1)

    def test_a_process_of_another_worker_and_one_with_another_secret(self):
        with Sites().serving(STREAMING % 60 + ONE) as cluster:
            launch = launch_of(2)
            secrets = []
            for text in ("0123456789abcdef", "another-0123456789"):
                secret = cluster.folder / f"{text}.secret"
                secret.write_text(text)
                secret.chmod(0o600)
                secrets.append(f"--site_secret_file={secret}")
            first = cluster.start_process("site", 0, launch, secrets[0])
            stranger = cluster.start_process("stranger", 1, launch, secrets[0])
            self.refused(cluster, [stranger], "it belongs to another worker")
            self.assertIn("turned away: one that says that it is process 1 of 2", first.log())
            stranger = cluster.start_process("site", 1, launch, secrets[1])
            self.assertNotEqual(stranger.wait(), 0)
            self.assertIn("has another site secret than this one", stranger.log())
            other = cluster.start_process("site", 1, launch, secrets[0])
            cluster.wait_for_step("site", 3)  # It kept nobody from coming.
            first.signal(SIGTERM)
            ended(first, other)

    def test_a_process_of_another_build(self):
        with Sites().serving(STREAMING % 60 + ONE) as cluster:
            launch = launch_of(2)
            other = cluster.folder / "causeway-worker"
            shutil.copy(EMULATED, other)
            with open(other, "ab") as program:
                program.write(b"\n")
            site = [cluster.start_process("site", 0, launch),
                    cluster.start_process("site", 1, launch, program=other)]
            self.refused(cluster, site, *2 * ["process 1 of this site: it runs another build"])

    def test_a_process_with_other_flags(self):
        with Sites().serving(STREAMING % 60 + ONE) as cluster:
            launch = launch_of(2)
            site = [cluster.start_process("site", 0, launch),
                    cluster.start_process("site", 1, launch, "--gradients=sharded")]
            self.refused(cluster, site, *2 * ["process 1 of this site: it has --gradients=sharded"])

    def test_what_process_0_is_refused_with_the_others_say_too(self):
        with Sites().serving(STREAMING % 60 + ONE + " model { vocabulary_size: 300 }") as cluster:
            site = cluster.start_site("site", 2)
            self.refused(cluster, site, "300", "process 0 of this site: ")


if __name__ == "__main__":
    if not EMULATED.exists():
        print(f"SKIP: no {EMULATED}: fibers take too long with ThreadSanitizer")
        sys.exit(77)
    unittest.main()
