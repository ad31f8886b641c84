"""Sites that bring the model to a run over several coordinators: the bits are those of one.

A lead and its shards begin with what a file has or the first site brings. Every shard keeps and
loads the values of its own fragments alone.
"""

import importlib.util
import unittest

import numpy as np

from runs import BIN, SIGKILL, STREAMING, Run, arrays, read_arrays, run_tool, wait_until
from shards import Sharded

SETTINGS = STREAMING.replace("fragments: 3", "fragments: 4").replace(
    "start_workers: 1", "start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 3600000")
NAMES = {1: (), 2: ("lead", "a"), 4: ("a", "lead", "b", "c")}
SITES = ("east", "west")
STEPS = 12


class ShardedRun(Run, Sharded):
    """Of numpy arrays, or of a PyTorch model."""

    def begin(self, names, *flags, initial=None, settings=SETTINGS):
        own = [f"--shards={','.join(names)}"] if names else []
        self.serve(settings, *own, *flags, steps=STEPS, initial=initial)
        self.shards = [name for name in names if name != "lead"]

    def start_shards_that_wait(self):
        """They listen when the model has come."""
        return {name: self.start(f"{name}.log", *self.shard_command(name, "--retain_deltas"))
                for name in self.shards}

    def start_sites(self):
        return [self.start_program(name, "numpy_trainer.py", self.address, name,
                                   self.folder / f"{name}.pickle", "--site", str(place))
                for place, name in enumerate(SITES)]

    def end(self, *processes):
        for process in processes:
            assert process.wait() == 0, process.log()
        self.finish()
        return self.published("coordinator", *self.shards)

    def kept(self, name):
        """The file of the values with which that coordinator's run began."""
        metadata, contents = read_arrays(self.folder / name / "initial.parameters")
        return metadata.get("fragments"), len(contents["parameters"])


class NumpyTest(unittest.TestCase):
    def train(self, count, initial=None):
        with ShardedRun() as run:
            run.begin(NAMES[count], initial=initial)
            shards = run.start_shards_that_wait()
            published = run.end(*run.start_sites(), *shards.values())
            if count > 1:
                own = [run.kept(name) for name in shards]
                whole, size = run.kept("coordinator")
                self.assertIsNone(whole)
                self.assertEqual(len({i for fragments, _ in own for i in fragments}),
                                 sum(len(fragments) for fragments, _ in own))
                for (fragments, held), name in zip(own, shards):
                    self.assertEqual({i for i, _ in run.published(name)}, set(fragments))
                    self.assertLess(held, size)
            return published

    def test_one_two_and_four_coordinators_publish_the_same_bits(self):
        # A file's tensors are in the order of their names, a site's in its own.
        for initial in (None, arrays()):
            whole = self.train(1, initial)
            self.assertEqual(len(whole), STEPS)
            for count in (2, 4):
                with self.subTest(f"{count} coordinators, {'a file' if initial else 'a site'}"):
                    self.assertEqual(self.train(count, initial), whole)

    def test_any_of_them_may_die_before_and_after_the_model_comes(self):
        whole = self.train(1)
        with ShardedRun() as run:
            run.begin(("lead", "a", "b"), "--snapshot_every_rounds=100")
            waiting = run.start_shards_that_wait()
            wait_until(lambda: "waits for the model" in waiting["a"].log(), "shard a waits")
            run.kill_coordinator()
            run.restart_coordinator()
            waiting["a"].signal(SIGKILL)
            waiting["a"].wait()
            a = run.start("a.log", *run.shard_command("a", "--snapshot_every_rounds=100"))
            sites = run.start_sites()
            wait_until(lambda: len(run.published("a")) >= 1, "shard a has published")
            a.signal(SIGKILL)  # Without a snapshot: it begins again with what it kept.
            a.wait()
            run.kill_coordinator()
            run.restart_coordinator()
            a = run.start_shard("a")
            self.assertEqual(run.end(*sites, a, waiting["b"]), whole)

    def test_a_shard_that_waits_can_be_stopped_and_a_lead_may_be_without_fragments(self):
        with ShardedRun() as run:
            run.begin(("a", "b"), initial=arrays())
            shards = run.start_shards_that_wait()
            published = run.end(*run.start_sites(), *shards.values())
            self.assertEqual(len(published), STEPS)
            kept = run.folder / "a" / "initial.parameters"
            status, _, error = run_tool(
                BIN / "causeway-coordinator", "serve", f"--run_dir={run.folder / 'other'}",
                f"--config={run.folder / 'run.textproto'}", f"--initial={kept}", "--http=off")
            self.assertEqual(status, 2, error)
            self.assertIn("alone, which are a shard's", error)
        with ShardedRun() as run:
            run.begin(("lead", "a"))
            shard, = run.start_shards_that_wait().values()
            wait_until(lambda: "waits for the model" in shard.log(), "the shard waits")
            shard.signal(15)
            self.assertEqual(shard.wait(), 0, shard.log())

    def test_a_file_has_the_values_that_every_coordinator_begins_with(self):
        values = arrays()
        with ShardedRun() as run:
            run.begin(NAMES[4], initial=values)
            for name in run.shards:
                run.start_shard(name)
                run.wait_for_event("shard_attached", shard=name)
            out = run.folder / "exported"
            status, _, error = run_tool(BIN / "causewayctl", "export",
                                        f"--coordinator={run.address}", f"--out={out}")
            self.assertEqual(status, 0, error)
            content = (out / "model.safetensors").read_bytes()
            for name, array in values.items():
                self.assertIn(np.ascontiguousarray(array, "<f4").tobytes(), content, name)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "torch is not installed")
class TorchTest(unittest.TestCase):
    def test_a_pytorch_site_brings_its_model_to_a_lead_and_three_shards(self):
        published = []
        for names in (NAMES[1], NAMES[4]):
            with ShardedRun() as run:
                run.begin(names, settings=SETTINGS.replace("start_workers: 2", "start_workers: 1")
                          .replace("quorum: 2", "quorum: 1"))
                shards = run.start_shards_that_wait()
                site = run.start_program("s", "torch_trainer.py", run.address)
                published.append(run.end(site, *shards.values()))
        self.assertEqual(len(published[0]), STEPS)
        self.assertEqual(published[1], published[0])


if __name__ == "__main__":
    unittest.main()
