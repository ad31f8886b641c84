"""A cell with a way of a few lines in place of a peer, over real links between real namespaces.
Usage: cell_test.py FOLDER_OF_PROGRAMS"""

import argparse
import sys
import types
import unittest
from pathlib import Path

import cell
import network
import peers_report
from network import LinkSettings
from ways import Row

BIN = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
LINK = LinkSettings(rate_mbit=100, rtt_ms=40)
KB = 100_000  # Bytes that a site sends to the server, and to its neighbour, at each step.
SERVER = """
import socketserver, sys
class Swallow(socketserver.StreamRequestHandler):
    def handle(self):
        while self.request.recv(1 << 16):
            pass
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Swallow).serve_forever()
"""
SITE = """
import json, os, socket, socketserver, subprocess, sys, threading, time
folder, hub, port, own, other, site, steps, step_s, size = sys.argv[1:]
assert socket.gethostname() == own, socket.gethostname()
subprocess.Popen([sys.executable, "-c", os.environ["SERVER"], own, port])
def send(address):
    for _ in range(200):
        try:
            with socket.create_connection((address, int(port)), 1) as link:
                return link.sendall(bytes(int(size)))
        except OSError:
            time.sleep(0.05)
    sys.exit("nobody there")
log = open(f"{folder}/steps-{site}.jsonl", "a")
def say(**line):
    log.write(json.dumps({"t": time.time(), **line}) + "\\n")
    log.flush()
say(start=True)
for step in range(int(steps)):
    begin = time.time()
    time.sleep(float(step_s))
    if step:
        send(hub)
        send(other)
    say(step=step, begin=begin, loss=1.0)
final = f"{folder}/final-{site}.json"
with open(final + ".new", "w") as out:
    json.dump({"end": time.time(), "loss": 2.0 + int(site), "sha256": "same", "parameters": 1}, out)
os.rename(final + ".new", final)
time.sleep(60)
"""


class CellTest(unittest.TestCase):
    def run_cell(self, fault=None, steps=12):
        stub = types.ModuleType("ways.stub")
        stub.server = lambda one: [sys.executable, "-c", SERVER, one.hub, one.port]
        stub.command = lambda one, site: [
            "env", f"SERVER={SERVER}", sys.executable, "-c", SITE, one.folder, one.hub, one.port,
            one.addresses[site], one.addresses[1 - site], site, one.steps, one.step_s, KB]
        sys.modules["ways.stub"] = stub
        options = argparse.Namespace(bin=BIN, python=sys.executable, text=Path("/dev/null"), starts={"1m": None})
        model = cell.Model("1m", 1, batch=1, steps=steps, step_s=0.1, limit_s=60)
        result = cell.Cell(options, Row("stub", "", "stub", ""), model, LINK, fault).run()
        self.assertEqual(result["done"][:2], [steps, steps], result)
        return result

    def test_bytes_time_and_memory_are_those_of_the_interfaces_and_processes(self):
        result = self.run_cell()
        self.assertTrue(result["whole"] and result["equal"])
        self.assertEqual(result["loss"], 2.5)
        # To the server and to the neighbour, and what the neighbour sends: all steps but the first.
        for way, sent in (("up", 2 * KB), ("down", KB)):
            self.assertGreater(result["bytes_per_step"][way], 0.7 * sent)
            self.assertLess(result["bytes_per_step"][way], 1.25 * sent)
        self.assertGreater(result["wall_s"], 12 * 0.1)
        self.assertGreaterEqual(result["share"], 12 * 0.1 / result["wall_s"] - 1e-9)
        self.assertLess(result["share"], 1)
        self.assertGreater(result["machine_memory"]["site"], 4 << 20)
        self.assertGreater(result["machine_memory"]["server"], 4 << 20)

    def test_site_that_is_killed_comes_back_and_is_judged(self):
        undisturbed = {"longest_pause_s": 5, "whole": True, "wall_s": 1, "loss": 2.5,
                       "bytes_per_step": {"up": KB, "down": KB}}
        result = self.run_cell("site", steps=24)
        became = peers_report.judge(result, result["logs"], undisturbed)
        self.assertEqual(sum("start" in line for line in result["logs"][1]), 2)
        self.assertTrue(became["trained_after"])
        self.assertEqual(became["begun_at"], 0)
        # The neighbour stood still until there was somebody to send to again.
        self.assertGreater(became["waited_s"], cell.AWAY_S - 1)
        self.assertRegex(became["text"], r"^waits \d+ s, \+0\.000$")


if __name__ == "__main__":
    network.skip_if_impossible()
    unittest.main(verbosity=2)
