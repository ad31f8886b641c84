"""A standby as a real process: it follows, it takes over, and the run has the same bits."""

import functools
import json
import pathlib
import shutil
import sys
import unittest

from cluster import (COORDINATOR, SIGTERM, SYNC, Cluster, ended, free_port, get, hashes, output_of, refusal_of,
                     wait_until)
from metrics_export_test import Scrape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs"))
import make_monitoring  # noqa: E402

RUN = (SYNC + "train { steps: 60 optimizer: MUON } "
       "membership { start_workers: 2 max_workers: 2 lease_ms: 5000 } ")
SNAPSHOTS = "--snapshot_every_rounds=3"


class Pair(Cluster):
    """A coordinator, a standby, and workers that know both addresses."""

    def __init__(self):
        super().__init__()
        self.ports = [free_port(), free_port()]
        self.copy = self.folder / "copy"
        self.standby = None
        self.follows = 0

    @property
    def both(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start_leader(self, *flags):
        # The last --listen counts.
        self.start_coordinator(RUN, SNAPSHOTS, f"--listen=127.0.0.1:{self.ports[0]}", *flags)

    begin = start_leader

    def follow(self, *flags):
        self.follows += 1
        self.standby = self.start(f"standby{self.follows}.log", COORDINATOR, "follow", f"--run_dir={self.copy}",
                                  f"--of=127.0.0.1:{self.ports[0]}", "--standby_name=spare", *flags)
        wait_until(lambda: "follows run" in self.standby.log()
                   or self.standby.child.poll() is not None, "the standby follows")
        return self.standby

    def promote(self, *flags):
        """Ends the standby and serves its folder."""
        self.standby.stop()
        self.coordinator = self.start(
            "promoted.log", COORDINATOR, "serve", f"--run_dir={self.copy}", SNAPSHOTS,
            f"--listen=127.0.0.1:{self.ports[1]}", "--exit_when_finished", "--http=off", *flags)

    def start_workers(self):
        return [self.start_worker(f"worker-{i}", "--min_step_time=40ms", address=self.both)
                for i in range(2)]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes()
            for kind in ("deltas", "answers", "snapshots") for path in (folder / kind).iterdir()}


def inspect(folder):
    out = output_of(COORDINATOR, "inspect", f"--run_dir={folder}", "--json")
    return json.loads(out)


@functools.cache
def undisturbed():
    """What the run publishes when nothing happens, the folder and its copy of a standby that is there until the end,
    each as (files, inspection, hashes), and the events."""
    with Pair().serving() as pair:
        standby = pair.follow()
        ended(*pair.start_workers(), pair.coordinator)
        standby.stop()
        folders = [(files(folder), inspect(folder), hashes(folder))
                   for folder in (pair.folder / "coordinator", pair.copy)]
        return folders[0][2], folders, [event["event"] for event in pair.events()]


class StandbyTest(unittest.TestCase):
    def test_a_copy_is_the_folder_byte_for_byte(self):
        published, (folder, copy), events = undisturbed()
        self.assertEqual(len(published), 3 * 10)
        self.assertEqual(folder[0], copy[0])
        self.assertEqual(folder[2], copy[2])
        for part in ("commits", "fragments"):
            self.assertEqual(folder[1][part], copy[1][part])
        self.assertIn("standby_attached", events)

    def test_the_copy_takes_over_with_the_same_bits(self):
        with Pair().serving() as pair:
            pair.follow()
            workers = pair.start_workers()
            pair.wait_for_step("worker-0", 14)
            # Cuts and restarts of the standby in between.
            pair.standby.kill()
            pair.wait_for_step("worker-0", 20)
            pair.follow()
            pair.wait_for_step("worker-0", 26)
            # In order: the standby gets what there is.
            pair.coordinator.stop()
            shutil.rmtree(pair.folder / "coordinator")
            pair.promote()
            ended(*workers, pair.coordinator)
            self.assertEqual(hashes(pair.copy), undisturbed()[0])
            summary = json.loads((pair.copy / "summary.json").read_text())
            self.assertEqual(summary["hash_mismatches"], 0)


class ReplicatedTest(unittest.TestCase):
    def test_nothing_is_told_without_a_standby_and_nothing_told_is_lost(self):
        with Pair().serving("--durability=replicated") as pair:
            workers = pair.start_workers()
            pair.wait_for_event("standby_missing")
            self.assertEqual(pair.events("training_started"), [])
            pair.follow()
            pair.wait_for_event("standby_back")
            pair.wait_for_step("worker-0", 26)
            # The machine is gone for good.
            pair.coordinator.kill()
            told = hashes(pair.folder / "coordinator")
            shutil.rmtree(pair.folder / "coordinator")
            pair.promote()
            ended(*workers, pair.coordinator)
            self.assertEqual(hashes(pair.copy), undisturbed()[0])
            self.assertLessEqual(told.items(), hashes(pair.copy).items())
            summary = json.loads((pair.copy / "summary.json").read_text())
            self.assertEqual(summary["hash_mismatches"], 0)

    def test_a_leader_that_comes_back_tells_nothing_before_a_standby_has_all(self):
        with Pair().serving("--durability=replicated") as pair:
            pair.follow()
            workers = pair.start_workers()
            pair.wait_for_step("worker-0", 14)
            pair.standby.kill()
            pair.coordinator.kill()
            pair.start_leader("--durability=replicated")
            pair.wait_for_event("standby_missing")
            pair.follow()
            ended(*workers, pair.coordinator)
            self.assertEqual(hashes(pair.folder / "coordinator"), undisturbed()[0])

    def test_a_stop_without_a_standby_waits_for_none(self):
        with Pair().serving("--durability=replicated") as pair:
            pair.start_workers()
            pair.wait_for_event("standby_missing")
            pair.coordinator.signal(SIGTERM)
            self.assertIn(pair.coordinator.wait(), (0, 1), pair.coordinator.log())


class HttpTest(unittest.TestCase):
    def test_a_follower_says_how_far_its_copy_is(self):
        with Pair() as pair:
            address_file = pair.folder / "standby_http"
            pair.standby = pair.start(
                "standby.log", COORDINATOR, "follow", f"--run_dir={pair.copy}",
                f"--of=127.0.0.1:{pair.ports[0]}", "--http=127.0.0.1:0",
                f"--http_address_file={address_file}")
            wait_until(address_file.exists, "the standby serves HTTP")
            address = address_file.read_text().strip()
            wait_until(lambda: "no answer from" in get(address, "/readyz")[1], "it says why not")
            self.assertEqual(get(address, "/readyz")[0], 503)
            self.assertEqual(get(address, "/healthz")[0], 200)
            scrape = Scrape(address)
            self.assertEqual(scrape("causeway_copy_ready"), 0)
            self.assertEqual(scrape("causeway_copy_following"), 0)
            pair.start_leader()
            wait_until(lambda: get(address, "/readyz")[0] == 200, "it has everything")
            self.assertEqual(get(address, "/healthz")[1], f"follows 127.0.0.1:{pair.ports[0]}\n")
            ended(*pair.start_workers(), pair.coordinator)
            wait_until(lambda: Scrape(address)("causeway_copy_following") == 0, "it noticed")
            scrape = Scrape(address)
            self.assertEqual(scrape("causeway_copy_commits"),
                             inspect(pair.folder / "coordinator")["commits"])
            self.assertEqual(scrape("causeway_copy_behind_commits"), 0)
            documented = {name: labels for name, (_, labels, _) in make_monitoring.metrics("standby").items()
                          if "certificate" not in name and name != "causeway_copy_in_sync"}
            self.assertEqual(scrape.labels(), documented)


class RefusalTest(unittest.TestCase):
    def refused(self, *flags, status=2):
        return refusal_of(COORDINATOR, "follow", *flags, status=status).strip().splitlines()[-1]

    def test_flags(self):
        self.assertIn("--run_dir=FOLDER", self.refused("--of=127.0.0.1:1"))
        self.assertIn("--of=HOST:PORT", self.refused("--run_dir=/tmp/x"))
        self.assertIn("--of", self.refused("--run_dir=/tmp/x", "--of=nowhere"))
        self.assertIn("--standby_name", self.refused("--run_dir=/tmp/x", "--of=127.0.0.1:1",
                                                     "--standby_name=a b"))

    def test_a_folder_in_use_and_one_of_another_run(self):
        with Pair().serving() as pair:
            other = pair.folder / "other"
            of = f"--of=127.0.0.1:{pair.ports[0]}"
            own = pair.folder / "coordinator"
            self.assertIn("belongs to another process", self.refused(f"--run_dir={own}", of, status=1))
            second = pair.start(
                "second.log", COORDINATOR, "serve", f"--run_dir={other}",
                f"--config={pair.folder / 'run.textproto'}", "--listen=127.0.0.1:0", "--http=off",
                f"--address_file={pair.folder / 'second'}")
            wait_until((pair.folder / "second").exists, "another run is there")
            second.signal(SIGTERM)
            second.wait()
            before = pathlib.Path(other / "run.db").read_bytes()
            line = self.refused(f"--run_dir={other}", of)
            self.assertIn("the folder that follows holds the run", line)
            self.assertIn("move that folder away", line)
            self.assertEqual(pathlib.Path(other / "run.db").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
