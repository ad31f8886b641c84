"""Training over long links publishes the bits that training without them does, and what is planned trains
as the plan says.
Usage: training_test.py FOLDER_OF_PROGRAMS"""

import argparse
import sys
import unittest
from pathlib import Path

import network
import planner
from network import LinkSettings, Network
from processes import working_folder
from training import make_data, train

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
CONFIG = """
model { layers: 2 width: 64 heads: 2 mlp_width: 128 sequence_length: 32 qk_norm: true }
train { steps: 20 batch_sequences: 2 seed: 5 evaluation_sequences: 2 }
sync { fragments: 4 pattern: BALANCED steps_between_syncs: 8 overlap_steps: 2 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 2 quorum: 2 }
"""
SHORT = LinkSettings(rate_mbit=1000, rtt_ms=0)
LONG = LinkSettings(rate_mbit=20, rtt_ms=50, loss_percent=0.1)


class TrainingTest(unittest.TestCase):
    def train(self, settings, disturb=None):
        with Network(BIN / "causeway-wan-link", [settings] * 2) as made, \
                working_folder() as folder:
            if disturb:
                made.links[0].tell(disturb)
            result = train(made, BIN, folder, CONFIG, make_data(BIN, folder), timeout_s=120)
            self.assertEqual(made.links[0].counters()["triggers_fired"], 1 if disturb else 0)
            self.assertGreater(made.links[1].counters()["up"]["delivered"]["packets"], 0)
        for worker in result["workers"]:
            self.assertEqual(worker["summary"]["steps"], 20)
        return result["hashes"]

    def test_long_lossy_and_broken_links_change_no_bit(self):
        expected = self.train(SHORT)
        self.assertGreater(len(expected), 4)
        self.assertEqual(self.train(LONG), expected)
        self.assertEqual(self.train(LONG, disturb="when up 100000 reset"), expected)

    def test_what_is_planned_trains_and_moves_what_was_expected(self):
        case = planner.Case("quick", (20, 10), rtt_ms=20, step_ms=50, periods=2)
        row = planner.check(argparse.Namespace(bin=BIN), case)
        self.assertTrue(row["reaches_target"])
        self.assertEqual(row["rounds"], row["rounds_due"])
        for way in ("up", "down"):
            self.assertAlmostEqual(row["payload_per_step"][way] / row["expected_payload_per_step"][way], 1, delta=0.01)
        self.assertEqual(len(row["measured"]), 2)


if __name__ == "__main__":
    network.skip_if_impossible()
    unittest.main(verbosity=2)
