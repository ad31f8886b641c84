"""The Python binding sends the bits that the C++ programs send.

ReplayTest, for every codec of the uplink, with and without error feedback (LM2 and SIGN1 need it),
with every codec of the downlink among them: a causeway-worker and a Python site train one run. The
worker trains by its own data and writes a checkpoint after every step. The Python site is driven by
the same update: at every step it takes the local values from that checkpoint. Compared are
  - the objects that both pushed, byte for byte, in every round of every fragment;
  - the hash of what was published in every round: each member hashes what it merges, and the
    coordinator compares;
  - the published values at the end: the site's, and those in the worker's last checkpoint.
Then a new run of the same configuration without the worker: two Python sites replay the recorded
local values, one under the worker's name. Compared with the record are all pushed objects, byte for
byte, and the published hash of every round. What a worker trains between two checkpoints is not
compared: a replay has no model.

The overlap is one step in these runs. The worker then waits for the site before it overwrites the
checkpoint that belongs to a send. Longer overlaps and other patterns: tests/site/bits_test.cc.

UpdateTest: the C program c_site and a Python site make the same deterministic update, each for
itself, from the run's initial values on, with overlap and mixing. Local values carry the merges on,
so the objects compare the merges, too.
"""

import threading
import unittest

import numpy as np

import causeway
from runs import BIN, Cluster, ended, read_arrays, wait_until

MEMBERS = "membership { start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 3600000 } "
STEPS = 13
TOKENS = 64  # Tokens per step: those of cluster.MODEL, and of c_site.
SYNC = "sync { fragments: 3 pattern: BALANCED steps_between_syncs: 4 "
REPLAYED = SYNC + "overlap_steps: 1 mixing: 0.5 "
# Up, down, with feedback, without it.
CASES = [("FP32", "FP32", False), ("FP32", "BF16", True),
         ("BF16", "BF16", False), ("BF16", "E2M1", True),
         ("INT8", "INT8", False), ("INT8", "FP32", True),
         ("E3M0", "E3M0", False), ("E3M0", "INT4", True),
         ("E2M1", "E2M1", False), ("E2M1", "INT8", True),
         ("INT4", "E3M0", False), ("INT4", "INT4", True),
         ("LM2", "LM2", True), ("LM2", "INT4", True),
         ("SIGN1", "SIGN1", True)]


def start(cluster, sync):
    cluster.start_coordinator(f"train {{ steps: {STEPS} }} {sync} }} {MEMBERS}", "--retain_deltas")


def zeros(cluster):
    """Arrays of the run's tensors."""
    return {tensor["name"]: np.zeros(tensor["shape"], np.float32)
            for tensor in causeway.describe(cluster.address)["tensors"]}


def finish(cluster, *processes):
    ended(*processes, cluster.coordinator)
    return cluster.summary()


def pushed(cluster):
    """Of every round and member: the bytes of the encoded delta, by fragment, round and name."""
    found = {}
    for path in (cluster.folder / "coordinator" / "deltas").iterdir():
        metadata, contents = read_arrays(path)
        found[metadata["fragment"], metadata["round"], metadata["worker_id"]] = contents["object"]
    return found


def published(cluster):
    return {(line["fragment"], line["round"]): line["published_hash"] for line in cluster.rounds()}


def take(site, values, arena):
    """Writes values in the arena's order, as checkpoints have them, to the arrays."""
    flat = [array.reshape(-1) for array in values.values()]
    for fragment in range(site.info.fragments):
        for piece in site._session.ranges(fragment):
            flat[piece.tensor][piece.tensor_offset:piece.tensor_offset + piece.count] = \
                arena[piece.arena_offset:piece.arena_offset + piece.count]


def checkpoint_at(path, step, worker):
    """The worker's checkpoint of this step or a later one: its step and the local values."""
    found = []

    def is_there():
        assert worker.child.poll() is None, worker.log()
        if path.exists():
            metadata, contents = read_arrays(path)
            if metadata["step"] >= step:
                found[:] = metadata["step"], np.frombuffer(contents["parameters"], np.float32)
        return found

    wait_until(is_there, f"there is a checkpoint of step {step}")
    return found


class BitsTest(unittest.TestCase):
    def same_pushes(self, cluster, one, other):
        """The two pushed the same in every round, and every member confirmed every hash."""
        objects, rounds, summary = pushed(cluster), published(cluster), cluster.summary()
        for fragment in range(3):
            self.assertIn((fragment, 3), rounds)
        self.assertEqual(set(objects), {(*key, name) for key in rounds for name in (one, other)})
        for fragment, number in rounds:
            self.assertTrue(objects[fragment, number, one] == objects[fragment, number, other],
                            f"{one} and {other} differ in round {number} of fragment {fragment}")
        self.assertEqual(len(set(objects.values())), len(rounds))
        self.assertEqual(summary["hash_mismatches"], 0)
        # Hashes of what each of the two merged, and of the 3 fragments that each began with.
        self.assertEqual(summary["hash_checks"], 2 * (len(rounds) + 3))
        return objects, rounds, summary["hash_checks"]


class ReplayTest(BitsTest):
    @classmethod
    def setUpClass(cls):
        cls.with_data = Cluster()
        cls.data = cls.with_data.data
        cls.addClassCleanup(cls.with_data.__exit__)

    def record(self, sync):
        """What a worker and a site pushed and what was published, and the worker's local values
        after every step that it sent at."""
        with Cluster() as cluster:
            start(cluster, sync)
            (cluster.folder / "data").symlink_to(self.data)
            worker = cluster.start_worker("worker", "--own_data", "--checkpoint_interval=1ns")
            path = cluster.out("worker") / "checkpoint"
            values, local = zeros(cluster), {}
            with causeway.Site(cluster.address, values, id="site") as site:
                while not site.should_stop:
                    step, parameters = checkpoint_at(path, site.next_step, worker)
                    local[step] = parameters
                    take(site, values, parameters)
                    site.step(TOKENS)
            finish(cluster, worker)
            with site.published():
                of_site = {name: array.copy() for name, array in values.items()}
            arena = np.frombuffer(read_arrays(path)[1]["published"], np.float32)
            take(site, values, arena)
            for name, array in values.items():
                self.assertEqual(array.tobytes(), of_site[name].tobytes(), name)
            return *self.same_pushes(cluster, "worker", "site"), local

    def replay(self, sync, local):
        """The same without a worker, from its local values."""
        with Cluster() as cluster:
            start(cluster, sync)
            problems = []

            def train(name):
                try:
                    values = zeros(cluster)
                    with causeway.Site(cluster.address, values, id=name) as site:
                        while not site.should_stop:
                            if site.next_step in local:
                                take(site, values, local[site.next_step])
                            site.step(TOKENS)
                except causeway.Error as error:
                    problems.append(error)

            sites = [threading.Thread(target=train, args=(name,)) for name in ("worker", "site")]
            for site in sites:
                site.start()
            for site in sites:
                site.join()
            self.assertEqual(problems, [])
            finish(cluster)
            return self.same_pushes(cluster, "worker", "site")

    def test_a_recorded_worker_replayed_through_python_sends_and_publishes_the_same(self):
        for up, down, feedback in CASES:
            case = f"{up} up, {down} down, {'with' if feedback else 'without'} feedback"
            sync = REPLAYED + f"codec_up: {up} codec_down: {down} " \
                f"error_feedback: {str(feedback).lower()}"
            with self.subTest(case):
                objects, rounds, checks, local = self.record(sync)
                again, rounds_again, checks_again = self.replay(sync, local)
                self.assertEqual(rounds_again, rounds)
                for key, content in objects.items():
                    self.assertTrue(again[key] == content, key)
                print(f"{case}: {len(objects)} objects of {sum(map(len, objects.values()))} bytes "
                      f"and {len(rounds)} published hashes equal; {checks} + {checks_again} hash "
                      "checks, none mismatched", flush=True)


class UpdateTest(BitsTest):
    @staticmethod
    def update(values, step):
        """What c_site does in a step."""
        for tensor, array in enumerate(values.values()):
            pattern = (step * 31 + tensor * 7 + np.arange(array.size)) % 17 - 8
            array += (np.float32(1e-3) * pattern.astype(np.float32)).reshape(array.shape)

    def test_a_c_program_and_a_python_site_with_one_update_push_and_publish_the_same(self):
        for codecs in ("codec_up: FP32 codec_down: FP32", "codec_up: INT4 codec_down: INT4",
                       "codec_up: INT4 codec_down: E2M1 error_feedback: true",
                       "codec_up: LM2 codec_down: INT8 error_feedback: true"):
            with self.subTest(codecs), Cluster() as cluster:
                start(cluster, SYNC + "overlap_steps: 3 mixing: 0.5 " + codecs)
                values = zeros(cluster)
                tensors = cluster.folder / "tensors"
                tensors.write_text("".join(f"{name} {' '.join(map(str, array.shape))}\n"
                                           for name, array in values.items()))
                program = cluster.start("c.log", BIN / "c_site", cluster.address, "c", tensors,
                                        cluster.folder / "state")
                with causeway.Site(cluster.address, values, id="site") as site:
                    while not site.should_stop:
                        self.update(values, site.next_step)
                        site.step(TOKENS)
                finish(cluster, program)
                objects, rounds, checks = self.same_pushes(cluster, "c", "site")
                print(f"{codecs}: {len(objects)} objects in {len(rounds)} rounds, equal in pairs; "
                      f"{checks} hash checks, none mismatched", flush=True)


if __name__ == "__main__":
    unittest.main()
