"""A plan is done as it says: its settings train over links as they were asked about, and move the bytes
that it counted on. How well it does in time is for planner_check.py, on a machine at rest."""

import sys
import unittest
from pathlib import Path

import planner_check

import network  # noqa: E402  (found by planner_check)

BIN = Path(sys.argv.pop(1))


class PlannerTest(unittest.TestCase):
    def test_what_is_planned_trains_and_moves_what_was_expected(self):
        case = planner_check.Case("quick", (20, 10), rtt_ms=20, step_ms=50, periods=2)
        row = planner_check.check(BIN, case)
        self.assertTrue(row["reaches_target"])
        self.assertEqual(row["rounds"], row["rounds_due"])
        for way in ("up", "down"):
            self.assertAlmostEqual(
                row["payload_per_step"][way] / row["expected_payload_per_step"], 1, delta=0.01)
        self.assertEqual(len(row["measured"]), 2)

    def test_every_case_has_a_plan_and_one_is_out_of_reach(self):
        reached = [planner_check.plan(case).reaches_target for case in planner_check.CASES]
        self.assertEqual(reached.count(False), 1)


if __name__ == "__main__":
    network.skip_if_impossible()
    unittest.main()
