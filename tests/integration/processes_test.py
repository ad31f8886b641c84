"""Scenarios of real processes that speak gRPC: the run goes on, nothing hangs, the log says why."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import unittest

from cluster import COORDINATOR, SIGTERM, SYNC, Cluster, ended, free_port, output_of, wait_until

STREAMING = SYNC + "train { steps: %d optimizer: MUON } "
TWO = "membership { start_workers: 2 max_workers: 4 lease_ms: 2000 }"
ONE = "membership { start_workers: 1 max_workers: 4 lease_ms: 2000 }"
# Slow enough that others can act while it trains: 64 tokens a step, 50 steps a second.
PACE = "--max_tokens_per_second=3200"


class ModesTest(unittest.TestCase):
    def test_what_is_not_streaming(self):
        for mode, rounds, settings in (
                ("diloco", 10, "train { steps: 60 } sync { steps_between_syncs: 6 }"),
                ("data-parallel", 60, """
                 train { steps: 60 learning_rate: 0.003 }
                 sync { contribution: GRADIENT steps_between_syncs: 1 codec_up: BF16 codec_down: BF16 }
                 outer { optimizer: ADAMW } """)):
            with self.subTest(mode), Cluster().serving(settings + TWO) as cluster:
                workers = [cluster.start_worker(f"worker-{i}") for i in range(2)]
                ended(*workers, cluster.coordinator)
                summary = cluster.summary()
                self.assertEqual((summary["mode"], summary["rounds"], summary["hash_mismatches"]), (mode, rounds, 0))
                # Every worker reported the hash of every merged round and of every fetched state.
                self.assertGreaterEqual(summary["hash_checks"], 2 * summary["rounds"])
                evaluated = next(entry for entry in map(cluster.summary, ("worker-0", "worker-1")) if "eval_loss" in entry)
                self.assertLess(evaluated["eval_loss"], 0.8 * evaluated["initial_loss"])


class SystemTest(unittest.TestCase):
    """What the machine does to a process, which must not end it for good, or without a line."""

    def test_a_hangup_and_what_batch_systems_send_stop_worker_and_coordinator_in_order(self):
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU, signal.SIGQUIT):
            former = signal.signal(number, signal.SIG_DFL)  # Where tests are started by nohup, or by a script's &.
            self.addCleanup(signal.signal, number, former)
            with self.subTest(number), Cluster().serving(STREAMING % 100000 + ONE) as cluster:
                worker = cluster.start_worker("a", PACE)
                cluster.wait_for_step("a", 20)
                for _ in range(1 if number == signal.SIGQUIT else 2):
                    worker.signal(number)
                self.assertEqual(worker.wait(), 0, worker.log())
                self.assertTrue((cluster.out("a") / "checkpoint").exists())
                self.assertEqual(cluster.events("worker_left")[0]["reason"], "drained")
                cluster.coordinator.signal(number)
                self.assertEqual(cluster.coordinator.wait(), 0, cluster.coordinator.log())
                self.assertEqual(cluster.summary()["hash_mismatches"], 0)

    def test_an_address_that_nobody_knows_is_left_out_of_a_list_with_a_line(self):
        with Cluster().serving(STREAMING % 60 + ONE) as cluster:
            worker = cluster.start_worker("a", "--insecure", address=f"no-such-host.invalid:7070,{cluster.address}")
            ended(worker, cluster.coordinator)
            self.assertIn("the coordinator's address no-such-host.invalid:7070 is left out", worker.log())
            self.assertEqual(cluster.summary()["rounds"], 30)

    def test_both_go_on_when_nobody_reads_their_log(self):
        with Cluster() as cluster:
            start = cluster.start
            cluster.start = lambda log, *command, **how: start(
                log, "bash", "-c", 'exec "$@" > >(head -n 1) 2>&1', "bash", *command, **how)
            cluster.start_coordinator(STREAMING % 60 + ONE)
            worker = cluster.start_worker("a")
            ended(worker, cluster.coordinator)
            self.assertEqual(cluster.summary()["rounds"], 30)

    def test_closed_standard_descriptors_are_no_files_of_the_run(self):
        with Cluster() as cluster:
            start = cluster.start
            cluster.start = lambda log, *command, **how: start(
                log, "sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command, **how)
            cluster.start_coordinator(STREAMING % 60 + ONE)
            run = cluster.folder / "coordinator"
            pid = cluster.coordinator.child.pid
            self.assertEqual([os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)], 3 * ["/dev/null"])
            self.assertEqual((run / "LOCK").read_text().strip(), str(pid))
            worker = cluster.start_worker("a")
            ended(worker, cluster.coordinator)
            for folder in (run, cluster.out("a")):
                for line in (folder / "events.jsonl").read_text().splitlines():
                    self.assertIn("event", json.loads(line))
            self.assertEqual(cluster.summary()["rounds"], 30)

    def test_a_checkpoint_that_cannot_be_written_is_tried_again(self):
        with Cluster().serving(STREAMING % 100000 + ONE) as cluster:
            worker = cluster.start_worker("a", PACE, "--checkpoint_interval=100ms")

            cluster.wait_for_step("a", 20)
            blocked = cluster.out("a") / "checkpoint.tmp"  # Where the next one is written.
            full = cluster.folder / "full"
            full.mkdir()
            (full / "file").touch()

            def block():
                try:
                    full.rename(blocked)
                except NotADirectoryError:
                    return False
                return True

            wait_until(block, "no checkpoint is being written")
            wait_until(lambda: cluster.events("checkpoint_failed", "a"), "a checkpoint has failed")
            failed = cluster.events("checkpoint_failed", "a")[0]
            self.assertIn(str(blocked), failed["reason"])
            shutil.rmtree(blocked)
            wait_until(lambda: cluster.events("checkpoint_written", "a")[-1]["step"] > failed["step"],
                       "a later one was written")
            worker.stop()
            self.assertIn("training goes on", worker.log())

    def test_an_evaluation_whose_line_cannot_be_written_ends_nothing(self):
        with Cluster().serving(STREAMING % 100000 + "train { evaluate_every_steps: 10 }" + ONE) as cluster:
            worker = cluster.start_worker("a", PACE)
            metrics = cluster.out("a") / "metrics.jsonl"
            events = cluster.out("a") / "events.jsonl"

            def evaluations():
                return len(cluster.events("evaluated", "a"))

            cluster.wait_for_step("a", 100)
            # No file may grow beyond that: metrics.jsonl is the largest that grows.
            full = metrics.stat().st_size
            self.assertLess(2 * events.stat().st_size, full)
            limits = resource.prlimit(worker.child.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(worker.child.pid, resource.RLIMIT_FSIZE, (full, limits[1]))
            before = evaluations()
            wait_until(lambda: evaluations() >= before + 3 or worker.child.poll() is not None,
                       "three evaluations have found no room")
            self.assertIsNone(worker.child.poll(), worker.log())
            resource.prlimit(worker.child.pid, resource.RLIMIT_FSIZE, limits)
            worker.stop()
            self.assertEqual(worker.log().count("metrics not written"), 1)  # Not with every step.

    def test_a_shard_that_becomes_shorter_is_named(self):
        with Cluster().serving(STREAMING % 100000 + ONE) as cluster:
            worker = cluster.start_worker("a", PACE)
            cluster.wait_for_step("a", 10)
            shard = next(cluster.data.glob("train_*.bin"))
            os.truncate(shard, 4096)
            self.assertIn(f"{shard} became shorter while it was read", worker.refusal(status=1))
            cluster.wait_for_event("worker_left", reason="failed")

    def test_a_run_is_looked_at_and_replayed_where_nothing_can_be_written(self):
        with Cluster().serving(STREAMING % 24 + ONE, "--retain_deltas") as cluster:
            worker = cluster.start_worker("a")
            ended(worker, cluster.coordinator)
            run = cluster.folder / "coordinator"
            before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
            for path in before:
                path.chmod(0o555 if path.is_dir() else 0o444)
            run.chmod(0o555)
            for folder in (cluster.folder, run):  # mkdtemp makes folders that others cannot read.
                folder.chmod(folder.stat().st_mode | 0o555)
            # Root writes whatever the modes say.
            as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            prefix = as_nobody if os.geteuid() == 0 else []
            text = output_of(*prefix, COORDINATOR, "inspect", f"--run_dir={run}")
            self.assertIn("last round   4 of a", text)
            text = output_of(*prefix, COORDINATOR, "replay", f"--run_dir={run}")
            self.assertIn("12 rounds of run", text)
            self.assertEqual(before, {path: path.stat().st_mtime_ns for path in run.rglob("*")})
            run.chmod(0o755)
            for path in run.rglob("*"):
                path.chmod(0o755)


class MembersTest(unittest.TestCase):
    def test_a_slow_worker_does_fewer_inner_steps_between_two_syncs(self):
        with Cluster().serving(STREAMING % 180 + TWO[:-1] + "max_pace: 4 }") as cluster:
            fast = cluster.start_worker("fast", "--min_step_time=20ms")
            slow = cluster.start_worker("slow", "--min_step_time=400ms")
            cluster.wait_for_event("pace_set")
            ended(fast, slow, cluster.coordinator)
            self.assertEqual(cluster.summary("fast")["steps"], 180)
            self.assertEqual(cluster.summary("slow")["steps"], 180)
            self.assertEqual(cluster.summary("fast")["inner_steps"], 180)
            slow_steps = cluster.summary("slow")["inner_steps"]
            self.assertLess(slow_steps, 150)
            self.assertEqual(cluster.summary("slow")["tokens"], slow_steps * 64)
            summary = cluster.summary()
            self.assertEqual(summary["rounds"], 3 * 30)
            self.assertEqual(summary["hash_mismatches"], 0)
            for row in cluster.rounds():
                self.assertEqual(row["contributors"], ["fast", "slow"])

    def test_a_worker_leaves_on_a_signal_and_comes_back_from_its_checkpoint(self):
        with Cluster().serving(STREAMING % 240 + TWO) as cluster:
            stays = cluster.start_worker("stays", PACE)
            leaves = cluster.start_worker("leaves", PACE)
            cluster.wait_for_step("leaves", 20)
            leaves.stop()
            left_at = cluster.summary("leaves")["steps"]
            self.assertGreaterEqual(left_at, 20)
            self.assertTrue((cluster.out("leaves") / "checkpoint").exists())
            cluster.wait_for_step("stays", left_at + 8)  # Nobody waits for the one that left.
            again = cluster.start_worker("leaves", PACE)
            ended(again, stays, cluster.coordinator)
            self.assertIn("checkpoint", again.log())
            self.assertTrue(cluster.events("worker_left"))
            self.assertEqual(len(cluster.events("worker_joined")), 3)
            self.assertEqual(cluster.summary()["hash_mismatches"], 0)

    def test_no_thread_that_multiplies_handles_signals(self):
        # A handler's frame overwrites the heap where a product has its buffer in place of a stack.
        with Cluster().serving("train { steps: 100000 } membership { start_workers: 1 }") as cluster:
            worker = cluster.start_worker("w", "--threads=2")
            cluster.wait_for_step("w", 1)
            threads = pathlib.Path(f"/proc/{worker.child.pid}/task")
            blocked = [int(re.search(r"SigBlk:\s*(\w+)", (thread / "status").read_text())[1], 16)
                       for thread in threads.iterdir()]
            self.assertGreater(len(blocked), 3)
            for number in (SIGTERM, signal.SIGINT):
                handling = [mask for mask in blocked if not mask >> (number - 1) & 1]
                self.assertEqual(len(handling), 1, number)
            worker.stop()

    def test_a_worker_that_still_looks_for_its_coordinator_ends_on_a_signal(self):
        with Cluster() as cluster:
            # Nothing listens on a port that nobody may have.
            worker = cluster.start_worker("early", "--connect_timeout=10m", address="127.0.0.1:1")
            wait_until(lambda: "congestion control" in worker.log(), "the worker has begun")
            worker.stop()
            self.assertIn("told to stop before it had joined the run at 127.0.0.1:1", worker.log())

    def test_a_worker_whose_coordinator_has_gone_at_the_end_says_how_to_leave(self):
        with Cluster().serving("sync { fragments: 1 steps_between_syncs: 6 overlap_steps: 1 } "
                               "train { steps: 12 } membership { start_workers: 2 }") as cluster:
            done = cluster.start_worker("done", "--drain_timeout=1s")
            cluster.start_worker("slow", "--min_step_time=2s")
            cluster.wait_for_step("done", 12)
            cluster.coordinator.kill()
            wait_until(lambda: "all steps are done here" in done.log(), "it says what it waits for")
            done.stop()
            self.assertEqual(cluster.summary("done")["steps"], 12)
            self.assertTrue((cluster.out("done") / "checkpoint").exists())

    def test_a_worker_says_that_the_coordinator_is_away_and_how_far_it_gets(self):
        with Cluster() as cluster:
            port = f"--listen=127.0.0.1:{free_port()}"
            # Ten steps a second, of which 179 can be done without an answer.
            settings = """
                train { steps: 100000 }
                sync { fragments: 1 steps_between_syncs: 100 overlap_steps: 2 max_overlap_steps: 80
                       keep_in_flight: 1 } """ + ONE
            cluster.start_coordinator(settings, port)
            worker = cluster.start_worker("only", "--max_tokens_per_second=640")
            cluster.wait_for_step("only", 10)
            cluster.coordinator.kill()
            wait_until(lambda: re.search(
                r"the coordinator has been away for \d+ s(; 1 answer is late)?; training goes on, "
                r"\d+ more steps? before it waits", worker.log()), "it says that it trains on")
            wait_until(lambda: re.search(
                r"the coordinator has been away for \d+ s; training has waited (?:[5-9]|\d\d+) s for "
                r"round 1 of fragment 0", worker.log()), "it says that it waits")
            cluster.start_coordinator(settings, port)
            cluster.wait_for_step("only", 185)

            # The answer comes on another stream than the session's: either may be there first.
            wait_until(lambda: cluster.events("session_resumed", "only"), "the session is attached again")
            waited_s = cluster.events("training_waited", "only")[-1]["seconds"]
            self.assertGreaterEqual(waited_s, 5)
            self.assertGreater(cluster.events("session_resumed", "only")[-1]["away_seconds"], waited_s)

    def test_the_coordinator_stops_on_a_signal_and_keeps_what_it_has(self):
        with Cluster().serving(STREAMING % 100000 + ONE) as cluster:
            worker = cluster.start_worker("only", PACE, "--drain_timeout=1s")
            cluster.wait_for_step("only", 10)
            cluster.coordinator.stop()
            self.assertGreater(cluster.summary()["rounds"], 0)
            self.assertTrue(list((cluster.folder / "coordinator" / "snapshots").iterdir()))
            # Told to stop, it does not wait for a coordinator that may never come back.
            worker.stop()
            self.assertTrue((cluster.out("only") / "checkpoint").exists())


if __name__ == "__main__":
    unittest.main()
