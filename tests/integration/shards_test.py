"""Scenarios of runs over several coordinators: equal bits, kills, and what is refused."""

import unittest

from cluster import COORDINATOR, SIGKILL, run_tool
from shards import Sharded

SETTINGS = """
train { steps: 36 optimizer: MUON }
sync { pattern: BALANCED fragments: 4 steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 4 lease_ms: 8000 }
"""
ROUNDS = 24
SLOW = "--min_step_time=60ms"
WORKERS = ("east", "west")


class ShardsTest(unittest.TestCase):
    def finish(self, cluster, *processes):
        for process in processes:
            self.assertEqual(process.wait(), 0, process.log())
        self.assertEqual(cluster.coordinator.wait(), 0, cluster.coordinator.log())

    def whole(self):
        """What one coordinator publishes."""
        with Sharded() as cluster:
            cluster.start_coordinator(SETTINGS)
            self.finish(cluster, *(cluster.start_worker(name) for name in WORKERS))
            return cluster.published("coordinator")

    def check(self, cluster, whole, *shards):
        published = cluster.published("coordinator", *shards)
        self.assertEqual(len(published), ROUNDS)
        self.assertEqual(published, whole)
        summary = cluster.summary()
        self.assertEqual(summary["rounds"], ROUNDS)
        self.assertEqual(summary["hash_mismatches"], 0)
        return summary

    def test_shards_publish_the_bits_of_one_coordinator(self):
        whole = self.whole()
        for names in (("lead", "a"), ("a", "b", "lead", "c"), ("a", "b")):
            with self.subTest(names), Sharded() as cluster:
                cluster.start_lead(SETTINGS, names)
                shards = [name for name in names if name != "lead"]
                processes = [cluster.start_shard(name) for name in shards]
                processes += [cluster.start_worker(name) for name in WORKERS]
                self.finish(cluster, *processes)
                summary = self.check(cluster, whole, *shards)
                self.assertEqual(summary["hash_checks"], 2 * ROUNDS)
                own = {name: {fragment for fragment, _ in cluster.published(name)}
                       for name in (*shards, "coordinator")}
                self.assertEqual(sum(len(fragments) for fragments in own.values()), 4)
                self.assertEqual(len(own["coordinator"]), 4 // len(names) * ("lead" in names))


if __name__ == "__main__":
    unittest.main()
