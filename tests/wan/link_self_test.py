"""The emulated link carries real TCP and UDP as its settings say. Usage: link_self_test.py PROGRAM

What is checked holds on a busy machine, too: contents, order, counts, and bounds that only a link
that is too fast could break.
"""

import hashlib
import random
import socket
import sys
import threading
import time
import unittest

import network
from network import ADDRESS, LinkSettings, Network

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else None
FAST = LinkSettings(rate_mbit=500, rtt_ms=4)
PATIENCE_S = 60


class LinkTest(unittest.TestCase):
    def network(self, settings):
        made = Network(PROGRAM, [settings])
        self.addCleanup(made.__exit__)
        self.link = made.links[0]
        self.near, self.far = made.workers[0], made.coordinator
        return made

    def connect(self):
        """Two ends of a TCP connection across the link."""
        listener = self.far.socket()
        self.addCleanup(listener.close)
        listener.bind((ADDRESS, 0))
        listener.listen()
        near = self.near.socket()
        self.addCleanup(near.close)
        near.settimeout(PATIENCE_S)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        self.addCleanup(far.close)
        far.settimeout(PATIENCE_S)
        return near, far

    def carry(self, sender, receiver, size):
        """Sends so many bytes, and checks what arrives."""
        data = random.Random(size).randbytes(size)
        thread = threading.Thread(target=sender.sendall, args=(data,))
        thread.start()
        digest = hashlib.blake2b()
        left = size
        while left > 0:
            part = receiver.recv(min(left, 1 << 20))
            self.assertTrue(part, "the stream ended early")
            digest.update(part)
            left -= len(part)
        thread.join()
        self.assertEqual(digest.digest(), hashlib.blake2b(data).digest())

    def assert_balanced(self, least=0):
        """Every segment that came is accounted for, once so many came up and nothing is under way any more."""
        end = time.monotonic() + PATIENCE_S
        while True:
            counted = self.link.counters()
            sums = [sum(counted[way][what]["packets"]
                        for what in ("delivered", "dropped_by_queue", "lost", "cut"))
                    for way in ("up", "down")]
            arrived = [counted[way]["arrived"]["packets"] for way in ("up", "down")]
            if arrived == sums and arrived[0] >= least:
                for way in ("up", "down"):
                    self.assertLessEqual(counted[way]["largest_queue_bytes"], counted[way]["queue_bytes"])
                return counted
            self.assertLess(time.monotonic(), end, f"{arrived} arrived, {sums} left")
            time.sleep(0.05)

    def test_a_queue_drops_what_does_not_fit(self):
        self.network(LinkSettings(rate_mbit=1, rtt_ms=10, queue_bytes=70_000))
        far = self.far.socket(socket.SOCK_DGRAM)
        self.addCleanup(far.close)
        far.bind((ADDRESS, 0))
        near = self.near.socket(socket.SOCK_DGRAM)
        self.addCleanup(near.close)
        for _ in range(200):  # 2.2 s of the link, of which the queue holds a quarter.
            near.sendto(bytes(1372), far.getsockname())
        counted = self.assert_balanced(200)["up"]
        self.assertGreater(counted["dropped_by_queue"]["packets"], 0)
        self.assertGreaterEqual(counted["delivered"]["packets"], 50)

    def test_streams_arrive_whole_both_ways_and_all_segments_are_counted(self):
        for loss_percent in (0, 1):
            with self.subTest(loss_percent=loss_percent):
                made = self.network(LinkSettings(rate_mbit=500, rtt_ms=4, loss_percent=loss_percent))
                near, far = self.connect()
                self.carry(near, far, 8 << 20)
                self.carry(far, near, 8 << 20)
                counted = self.assert_balanced()
                for way in ("up", "down"):
                    # 5800 segments at least: that none is lost has a probability below 1e-25.
                    self.assertEqual(counted[way]["lost"]["packets"] > 0, loss_percent > 0)
                    self.assertGreater(counted[way]["arrived"]["bytes"], (8 << 20) + counted[way]["lost"]["bytes"])
                self.assertEqual((counted["malformed"], counted["refused"], made.unseen_drops()), (0, 0, 0))

    def test_nothing_is_faster_than_the_link(self):
        settings = LinkSettings(rate_mbit=80, rtt_ms=60)
        self.network(settings)
        begin = time.monotonic()
        near, far = self.connect()
        self.assertGreaterEqual(time.monotonic() - begin, 0.06)
        begin = time.monotonic()
        size = 4 << 20
        self.carry(near, far, size)
        # The queue of the link, its wire and its rate: what comes out of it first was sent last.
        self.assertGreaterEqual(time.monotonic() - begin, size / settings.bytes_per_s + 0.03)
        report = self.link.timeline()
        most = settings.bytes_per_s * report["timeline_bin_s"]
        for carried in report["up"]["timeline"]:
            self.assertLessEqual(carried, 1.01 * most)
        self.assertGreater(max(report["up"]["timeline"]), 0)

    def test_cut_stops_everything_and_the_stream_survives_it(self):
        self.network(FAST)
        near, far = self.connect()
        self.carry(near, far, 1 << 20)
        self.link.cut(1)
        before = self.link.counters()
        begin = time.monotonic()
        thread = threading.Thread(target=self.carry, args=(near, far, 2 << 20))
        thread.start()
        time.sleep(0.3)
        meanwhile = self.link.counters()
        if time.monotonic() - begin < 0.9:  # Else this machine let the cut pass by.
            self.assertEqual(meanwhile["up"]["delivered"], before["up"]["delivered"])
            self.assertEqual(meanwhile["down"]["delivered"], before["down"]["delivered"])
        thread.join()
        counted = self.assert_balanced()
        self.assertGreater(counted["up"]["cut"]["packets"], 0)

    def test_reset_in_the_middle_of_a_stream_reaches_both_ends_and_new_connections_work(self):
        self.network(LinkSettings(rate_mbit=200, rtt_ms=20))
        near, far = self.connect()
        self.link.tell(f"when up {2 << 20} reset")
        received = 0

        def send():
            with self.assertRaises(OSError):
                while True:
                    near.sendall(bytes(1 << 20))

        thread = threading.Thread(target=send)
        thread.start()
        with self.assertRaises(ConnectionResetError):
            while True:
                received += len(far.recv(1 << 16))
        thread.join()
        # Bytes that had arrived when the connection broke, less headers; a reset drops what is
        # unread.
        self.assertLess(received, (2 << 20) + (1 << 18))
        counted = self.link.counters()
        self.assertEqual((counted["triggers_fired"], counted["connections_broken"]), (1, 1))
        self.carry(*self.connect(), 1 << 20)

    def test_settings_change_at_run_time_and_nonsense_is_refused(self):
        self.network(FAST)
        near, far = self.connect()
        self.link.change(LinkSettings(rate_mbit=20, rtt_ms=200))
        begin = time.monotonic()
        self.carry(near, far, 1000)
        near.sendall(b"?")
        far.recv(1)
        self.assertGreaterEqual(time.monotonic() - begin, 0.1)
        for line in ("set speed 3", "set delay_ms", "cut", "cut soon", "when up 5 dig",
                     "set loss_percent 101", "nonsense", ""):
            with self.assertRaises(ValueError, msg=line):
                self.link.tell(line)
        self.carry(far, near, 100_000)


if __name__ == "__main__":
    network.skip_if_impossible()
    unittest.main(verbosity=2)
