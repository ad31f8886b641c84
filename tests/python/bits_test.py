"""The Python binding sends the bits that the C interface sends, which are a worker's (tests/site/bits_test.cc).

For every codec of the uplink, with and without error feedback (LM2 and SIGN1 need it), with every codec of the downlink
among them: the C program c_site and a Python site make the same deterministic update, each for itself, from the run's
initial values on, with overlap and mixing. Local values carry the merges on, so the objects compare the merges, too.
Compared are
  - the objects that both pushed, byte for byte, in every round of every fragment;
  - the hash of what was published in every round: each member hashes what it merges, and the coordinator compares.
"""

import unittest

import numpy as np

import causeway
from runs import BIN, Cluster, ended, read_arrays

MEMBERS = "membership { start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 3600000 } "
STEPS = 13
TOKENS = 64  # Tokens per step: those of cluster.MODEL, and of c_site.
SYNC = "sync { fragments: 3 pattern: BALANCED steps_between_syncs: 4 overlap_steps: 3 mixing: 0.5"
# Up, down, with feedback, without it.
CASES = [("FP32", "FP32", False), ("FP32", "BF16", True),
         ("BF16", "BF16", False), ("BF16", "E2M1", True),
         ("INT8", "INT8", False), ("INT8", "FP32", True),
         ("E3M0", "E3M0", False), ("E3M0", "INT4", True),
         ("E2M1", "E2M1", False), ("E2M1", "INT8", True),
         ("INT4", "E3M0", False), ("INT4", "INT4", True),
         ("LM2", "LM2", True), ("LM2", "INT4", True),
         ("SIGN1", "SIGN1", True)]


def pushed(cluster):
    """Of every round and member: the bytes of the encoded delta, by fragment, round and name."""
    found = {}
    for path in (cluster.folder / "coordinator" / "deltas").iterdir():
        metadata, contents = read_arrays(path)
        found[metadata["fragment"], metadata["round"], metadata["worker_id"]] = contents["object"]
    return found


class BitsTest(unittest.TestCase):
    def same_pushes(self, cluster, one, other):
        """The two pushed the same in every round, and both confirmed every hash."""
        objects, summary = pushed(cluster), cluster.summary()
        rounds = {(line["fragment"], line["round"]) for line in cluster.rounds()}
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

    @staticmethod
    def update(values, step):
        """What c_site does in a step."""
        for tensor, array in enumerate(values.values()):
            pattern = (step * 31 + tensor * 7 + np.arange(array.size)) % 17 - 8
            array += (np.float32(1e-3) * pattern.astype(np.float32)).reshape(array.shape)

    def test_a_c_program_and_a_python_site_with_one_update_push_and_publish_the_same(self):
        for up, down, feedback in CASES:
            sync = f"{SYNC} codec_up: {up} codec_down: {down} error_feedback: {str(feedback).lower()}"
            with self.subTest(sync), Cluster() as cluster:
                cluster.start_coordinator(f"train {{ steps: {STEPS} }} {sync} }} {MEMBERS}", "--retain_deltas")
                values = {tensor["name"]: np.zeros(tensor["shape"], np.float32)
                          for tensor in causeway.describe(cluster.address)["tensors"]}
                tensors = cluster.folder / "tensors"
                tensors.write_text("".join(f"{name} {' '.join(map(str, array.shape))}\n"
                                           for name, array in values.items()))
                program = cluster.start("c.log", BIN / "c_site", cluster.address, "c", tensors,
                                        cluster.folder / "state")
                with causeway.Site(cluster.address, values, id="site") as site:
                    while not site.should_stop:
                        self.update(values, site.next_step)
                        site.step(TOKENS)
                ended(program, cluster.coordinator)
                self.same_pushes(cluster, "c", "site")
