"""Scenarios of real processes: who draws which part of the data, and what the record says of it."""

import json
import unittest

from cluster import COORDINATOR, SYNC, WORKER, Cluster, ended, output_of

STREAMING = (SYNC + "train { steps: %d optimizer: MUON } "
             "membership { start_workers: %d max_workers: 2 lease_ms: 2000 } ")
PACE = "--max_tokens_per_second=3200"


def data_parts(cluster):
    text = output_of(COORDINATOR, "inspect", "--json",
                     f"--run_dir={cluster.folder / 'coordinator'}")
    return json.loads(text)["data"]


def other_data(cluster, text):
    (cluster.folder / "other.txt").write_text(text * 2000)
    folder = cluster.folder / "other"
    output_of(WORKER, "tokenize", f"--input={cluster.folder / 'other.txt'}",
              f"--out={folder}")
    return folder


class DataPartsTest(unittest.TestCase):
    def run_joined_in_order(self, names):
        with Cluster().serving(STREAMING % (24, 2)) as cluster:
            workers = []
            for name in names:
                workers.append(cluster.start_worker(name))
                cluster.wait_for_event("worker_joined", worker=name)
            ended(*workers, cluster.coordinator)
            return cluster.published()

    def test_it_does_not_matter_who_joins_first(self):
        self.assertEqual(self.run_joined_in_order(["a", "b"]), self.run_joined_in_order(["b", "a"]))

    def test_a_worker_that_dies_before_it_has_saved_its_part_draws_the_same_windows_again(self):
        def run(dies):
            with Cluster().serving((STREAMING % (24, 2)).replace(
                "lease_ms: 2000", "quorum: 2 lease_ms: 600000")) as cluster:
                workers = [cluster.start_worker("b", PACE)]
                cluster.wait_for_event("worker_joined", worker="b")
                # The first checkpoint is that of its beginning, the second one has the part that it
                # is told when all are there.
                second = {"CAUSEWAY_CRASH_AT": "during_array_file:2"} if dies else None
                workers.append(cluster.start_worker("a", PACE, variables=second))
                if dies:
                    workers[1].wait()
                    again = cluster.start_worker("a", PACE)
                    cluster.wait_for_step("a", 8)
                    again.kill()
                    workers[1] = cluster.start_worker("a", PACE)
                ended(*workers, cluster.coordinator)
                for part in data_parts(cluster):
                    self.assertEqual((part["skipped"], part["repeated"]), (0, 0), part)
                return cluster.published()

        self.assertEqual(run(dies=True), run(dies=False))

    def test_a_part_goes_on_where_the_worker_that_left_it_ended(self):
        with Cluster().serving(STREAMING % (150, 2)) as cluster:
            stays = cluster.start_worker("a", PACE)
            leaves = cluster.start_worker("b", PACE)
            cluster.wait_for_step("b", 30)
            leaves.stop()
            comes = cluster.start_worker("c", PACE)
            ended(stays, comes, cluster.coordinator)
            first, second = data_parts(cluster)
        self.assertEqual([w["worker_id"] for w in first["trained_by"]], ["a"])
        self.assertEqual([w["worker_id"] for w in second["trained_by"]], ["b", "c"])
        for part in (first, second):
            self.assertEqual((part["skipped"], part["repeated"]), (0, 0), part)
        self.assertEqual(second["next_draw"],
                         sum(worker["count"] for worker in second["trained_by"]))

    def test_a_worker_with_other_data_is_refused_unless_they_are_its_own(self):
        with Cluster().serving(STREAMING % (24, 2)) as cluster:
            shares = cluster.start_worker("a")
            cluster.wait_for_event("worker_joined", worker="a")
            other = other_data(cluster, "whereas here it rains ")
            error = cluster.start_worker("b", f"--data={other}").refusal()
            self.assertIn("data_fingerprint differs", error)
            self.assertIn("--own_data", error)
            # The later flag counts.
            own = cluster.start_worker("b", f"--data={other}", "--own_data")
            ended(shares, own, cluster.coordinator)
            own_part, shared_part = data_parts(cluster)
        self.assertEqual((own_part["data_slot"], own_part["worker_id"]), (-1, "b"))
        self.assertEqual([w["worker_id"] for w in shared_part["trained_by"]], ["a"])
        self.assertEqual(own_part["next_draw"], shared_part["next_draw"])


if __name__ == "__main__":
    unittest.main()
