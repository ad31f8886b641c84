"""Tables, figures and sums of tests/wan, from made-up measurements: needs no network."""

import argparse
import unittest
import unittest.mock

import exchange
import wan_run
from network import LinkSettings


def cell(rtt_ms, loss_percent, up, down):
    def way(up_share, down_share):
        return {"utilization": {"up": up_share, "down": down_share}, "connections": 4}
    return {"rate_mbit": 1000, "rtt_ms": rtt_ms, "loss_percent": loss_percent, "workers": 2,
            "link_utilization": min(up, down),
            "exchange": way(up, down) | {"cpu_s_per_gb": {"coordinator": 1.5, "workers": 0.75, "links": 0.5},
                                         "cores_busy_otherwise": 0.3},
            "plain_tcp": [way(0.2, 0.2), way(0.8, 0.9)]}


class ReportTest(unittest.TestCase):
    def test_goals_are_those_of_the_steady_state_at_100_ms(self):
        self.assertEqual(wan_run.goals_missed([cell(100, 0, 0.95, 0.90), cell(100, 0.1, 0.7, 0.7),
                                               cell(20, 0, 0.1, 0.1), cell(100, 0.01, 0.1, 0.1)]), [])
        missed = wan_run.goals_missed([cell(100, 0, 0.95, 0.89), cell(100, 0.1, 0.6, 0.7)])
        self.assertEqual(len(missed), 2)
        self.assertIn("0.89, the goal is 0.9", missed[0])

    def test_counts_between_two_samples_are_interpolated(self):
        samples = [[10.0, 0], [11.0, 100], [13.0, 400]]
        self.assertEqual(exchange.between(samples, 1, 10.5, 12.0), 200)
        self.assertEqual(exchange.between(samples, 1, 10.0, 13.0), 400)

    def test_fragments_are_the_larger_the_longer_the_link(self):
        options = argparse.Namespace(fragment_mib=0)
        for rate, rtt, expected in ((100, 20, 2), (100, 300, 2), (1000, 100, 4), (1000, 300, 8)):
            self.assertEqual(exchange.fragment_bytes(options, LinkSettings(rate, rtt)),
                             expected << 20)
        options.fragment_mib = 3
        self.assertEqual(exchange.fragment_bytes(options, LinkSettings()), 3 << 20)

    def test_links_that_this_machine_cannot_carry_are_measured_one_at_a_time(self):
        with unittest.mock.patch("os.cpu_count", return_value=2):
            options = argparse.Namespace(workers=0)
            self.assertEqual(exchange.worker_count(options, LinkSettings(100)), 2)
            self.assertEqual(exchange.worker_count(options, LinkSettings(1000)), 1)
            options.workers = 3
            self.assertEqual(exchange.worker_count(options, LinkSettings(1000)), 3)

if __name__ == "__main__":
    unittest.main()
