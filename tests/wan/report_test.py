"""Goals and sums of tests/wan, from made-up measurements: needs no network."""

import unittest

import exchange
import wan_run


def cell(rtt_ms, loss_percent, utilization):
    return {"rate_mbit": 1000, "rtt_ms": rtt_ms, "loss_percent": loss_percent, "link_utilization": utilization}


class ReportTest(unittest.TestCase):
    def test_goals_are_those_of_the_steady_state_at_100_ms(self):
        self.assertEqual(wan_run.goals_missed([cell(100, 0, 0.90), cell(100, 0.1, 0.7), cell(20, 0, 0.1),
                                               cell(100, 0.01, 0.1)]), [])
        missed = wan_run.goals_missed([cell(100, 0, 0.89), cell(100, 0.1, 0.6)])
        self.assertEqual(len(missed), 2)
        self.assertIn("0.89, the goal is 0.9", missed[0])

    def test_counts_between_two_samples_are_interpolated(self):
        samples = [[10.0, 0], [11.0, 100], [13.0, 400]]
        self.assertEqual(exchange.between(samples, 1, 10.5, 12.0), 200)
        self.assertEqual(exchange.between(samples, 1, 10.0, 13.0), 400)


if __name__ == "__main__":
    unittest.main()
