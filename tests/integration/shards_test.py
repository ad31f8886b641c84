"""Scenarios of runs over several coordinators: equal bits, kills, and what is refused."""

import json
import shutil
import socket
import unittest
from signal import SIGCONT, SIGSTOP

from cluster import (BIN, COORDINATOR, MODEL, SIGKILL, SIGTERM, WORKER, run_tool,
                     wait_until)
from security_test import make, tls, with_certificates
from shards import Sharded

SETTINGS = """
train { steps: 36 optimizer: MUON }
sync { pattern: BALANCED fragments: 4 steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 4 lease_ms: 8000 }
"""
ROUNDS = 24
SLOW = "--min_step_time=60ms"
WORKERS = ("east", "west")


def array_of(path, name):
    """The bytes of an array in a file of them (docs/formats.md)."""
    content = path.read_bytes()
    begin = 16 + int.from_bytes(content[12:16], "little")
    for array in json.loads(content[16:begin])["arrays"]:
        if array["name"] == name:
            return content[begin:begin + array["bytes"]]
        begin += array["bytes"]
    raise AssertionError(f"{path} has no {name}")


class ShardsTest(unittest.TestCase):
    def finish(self, cluster, *processes):
        for process in processes:
            self.assertEqual(process.wait(), 0, process.log())
        self.assertEqual(cluster.coordinator.wait(), 0, cluster.coordinator.log())

    def whole(self, *flags):
        """What one coordinator publishes."""
        with Sharded() as cluster:
            cluster.start_coordinator(SETTINGS, *flags)
            self.finish(cluster, *(cluster.start_worker(name) for name in WORKERS))
            return cluster.published("coordinator")

    def check(self, cluster, whole, *shards):
        published = cluster.published("coordinator", *shards)
        self.assertEqual(len(published), ROUNDS)
        self.assertEqual(published, whole)
        summary = cluster.summary()
        self.assertEqual(summary["rounds"], ROUNDS)
        self.assertEqual(summary["hash_mismatches"], 0)
        return summary

    def test_shards_publish_the_bits_of_one_coordinator(self):
        whole = self.whole()
        for names in (("lead", "a"), ("a", "b", "lead", "c"), ("a", "b")):
            with self.subTest(names), Sharded() as cluster:
                cluster.start_lead(SETTINGS, names)
                shards = [name for name in names if name != "lead"]
                processes = [cluster.start_shard(name) for name in shards]
                processes += [cluster.start_worker(name) for name in WORKERS]
                self.finish(cluster, *processes)
                summary = self.check(cluster, whole, *shards)
                # Each worker compares every round, and the state that it began with.
                self.assertEqual(summary["hash_checks"], 2 * (ROUNDS + 4))
                own = {name: {fragment for fragment, _ in cluster.published(name)}
                       for name in (*shards, "coordinator")}
                self.assertEqual(sum(len(fragments) for fragments in own.values()), 4)
                self.assertEqual(len(own["coordinator"]), 4 // len(names) * ("lead" in names))

    def test_values_that_a_run_was_given_reach_every_shard(self):
        with Sharded() as first:
            first.start_coordinator(SETTINGS)
            self.finish(first, *(first.start_worker(name) for name in WORKERS))
            exported, given = first.folder / "exported", first.folder / "given.parameters"
            for command in (["export", f"--run_dir={first.folder / 'coordinator'}",
                             f"--out={exported}"],
                            ["import", f"--from={exported}", f"--out={given}"]):
                status, _, error = run_tool(WORKER, *command)
                self.assertEqual(status, 0, error)
            whole = self.whole(f"--initial={given}")
            self.assertNotEqual(whole, first.published("coordinator"))
            with Sharded() as cluster:
                cluster.start_lead(SETTINGS, ("lead", "a", "b"), f"--initial={given}")
                processes = [cluster.start_shard(name) for name in ("a", "b")]
                processes += [cluster.start_worker(name) for name in WORKERS]
                self.finish(cluster, *processes)
                self.check(cluster, whole, "a", "b")

    def start_run(self, cluster, crash=None, flags=(), settings=SETTINGS):
        cluster.start_lead(settings, ("lead", "a", "b"))
        shards = {"a": cluster.start_shard(
            "a", *flags, variables={"CAUSEWAY_CRASH_AT": crash} if crash else None)}
        shards["b"] = cluster.start_shard("b")
        workers = [cluster.start_worker(name, SLOW) for name in WORKERS]
        return shards, workers

    def test_a_shard_that_is_killed_goes_on_wherever_it_is(self):
        whole = self.whole()
        for crash in ("before_row_commit:7", "after_row_commit:9", "before_round_row:3",
                      "after_end_note:1"):
            with self.subTest(crash), Sharded() as cluster:
                shards, workers = self.start_run(cluster, crash)
                self.assertEqual(shards["a"].wait(), -SIGKILL, shards["a"].log())
                cluster.wait_for_event("shard_detached", shard="a")
                before = (cluster.folder / "a.address").read_text()
                again = cluster.start_shard("a")  # At another port: workers are told.
                self.assertNotEqual((cluster.folder / "a.address").read_text(), before)
                self.finish(cluster, *workers, again, shards["b"])
                self.check(cluster, whole, "a", "b")

    def test_the_lead_that_is_killed_finds_its_shards_again(self):
        whole = self.whole()
        with Sharded() as cluster:
            shards, workers = self.start_run(cluster)
            cluster.wait_for_step("east", 10)
            cluster.coordinator.signal(SIGKILL)
            cluster.coordinator.wait()
            cluster.restart_lead()
            self.finish(cluster, *workers, *shards.values())
            self.check(cluster, whole, "a", "b")

    def test_lead_and_shard_give_each_other_up_when_one_is_silent(self):
        whole = self.whole()
        with Sharded() as cluster:
            # A lead that was stopped for a lease may miss a worker for a moment.
            shards, workers = self.start_run(
                cluster, settings=SETTINGS.replace("start_workers: 2", "start_workers: 2 quorum: 2"))
            cluster.wait_for_step("east", 8)
            shards["a"].signal(SIGSTOP)  # Its connection stands, as that of a machine that is gone.
            wait_until(lambda: any(e["event"] == "shard_detached"
                                   and any(why in e["reason"] for why in ("silent", "no roster"))
                                   for e in cluster.events()), "the lead gives the shard up", 40)
            shards["a"].signal(SIGCONT)
            cluster.wait_for_step("east", 12)
            cluster.coordinator.signal(SIGSTOP)
            wait_until(lambda: "nothing came for" in shards["b"].log(), "the shard gives up", 40)
            cluster.coordinator.signal(SIGCONT)
            self.finish(cluster, *workers, *shards.values())
            self.check(cluster, whole, "a", "b")

    def test_a_shard_whose_fragments_another_process_has_taken_over_ends(self):
        whole = self.whole()
        with Sharded() as cluster:
            shards, workers = self.start_run(cluster)
            cluster.wait_for_step("east", 8)
            shards["a"].signal(SIGSTOP)
            cluster.wait_for_event("shard_detached", shard="a")
            former = (cluster.folder / "a.address").read_text()
            # As on a machine that has a copy of its disk.
            shutil.copytree(cluster.folder / "a", cluster.folder / "copy")
            again = cluster.start_shard("a", run_dir="copy")
            self.assertNotEqual((cluster.folder / "a.address").read_text(), former)
            wait_until(lambda: sum(e["event"] == "shard_attached" and e["shard"] == "a"
                                   for e in cluster.events()) >= 2, "it is attached")
            shards["b"].signal(SIGSTOP)  # The run does not end meanwhile.
            shards["a"].signal(SIGCONT)
            self.assertEqual(shards["a"].wait(), 1)
            self.assertIn("is served already", shards["a"].log())
            shards["b"].signal(SIGCONT)
            self.finish(cluster, *workers, again, shards["b"])
            self.check(cluster, whole, "copy", "b")

    def test_a_shard_that_comes_back_after_the_end_ends_too(self):
        with Sharded() as cluster:
            shards, workers = self.start_run(cluster)
            self.finish(cluster, *workers, *shards.values())
            self.assertTrue((cluster.folder / "a" / "END").exists())
            again = cluster.start_shard("a")
            self.assertEqual(again.wait(), 0, again.log())
            self.assertIn("the run has reached its end", again.log())

    def test_a_lead_and_a_shard_are_lost_for_good_and_their_copies_are_served(self):
        whole = self.whole()
        replicated = "--durability=replicated"
        with Sharded() as cluster:
            cluster.start_lead(SETTINGS, ("lead", "a"), replicated)
            follow = {}

            def start_copy(name, address):
                follow[name] = cluster.start(
                    f"{name}-copy.log", COORDINATOR, "follow", f"--of={address}",
                    f"--run_dir={cluster.folder / (name + '-copy')}", "--standby_name=spare")

            def lose(name, process):
                process.signal(SIGKILL)
                process.wait()
                shutil.rmtree(cluster.folder / name)
                follow[name].signal(SIGTERM)
                self.assertEqual(follow[name].wait(), 0, follow[name].log())
                (cluster.folder / f"{name}-copy").rename(cluster.folder / name)

            start_copy("coordinator", cluster.address)
            shard = cluster.start_shard("a", replicated)
            start_copy("a", (cluster.folder / "a.address").read_text().strip())
            workers = [cluster.start_worker(name, SLOW) for name in WORKERS]
            cluster.wait_for_step("east", 10)
            lose("a", shard)
            shard = cluster.start_shard("a")
            cluster.wait_for_step("east", 20)
            lose("coordinator", cluster.coordinator)
            lead = [COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
                    f"--listen={cluster.address}", "--http=off"]
            for flags, words in (((), "a copy of the lead's"),
                                 (("--shards=lead,a,b",), "give the --shards that the run began")):
                status, _, error = run_tool(*lead, *flags)
                self.assertEqual(status, 2, error)
                self.assertIn(words, error)
            cluster.restart_lead("--shards=lead,a")
            self.finish(cluster, *workers, shard)
            self.check(cluster, whole, "a")

    def test_a_lead_that_never_listened_leaves_no_deal_to_the_next_run(self):
        with Sharded() as cluster, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            folder = cluster.folder / "coordinator"
            config = cluster.folder / "tried.textproto"
            config.write_text(MODEL + SETTINGS)
            status, _, error = run_tool(
                COORDINATOR, "serve", f"--run_dir={folder}", f"--config={config}", "--http=off",
                "--shards=lead,a", f"--listen=127.0.0.1:{taken.getsockname()[1]}")
            self.assertEqual(status, 2, error)
            self.assertTrue((folder / "shards.json").exists())
            cluster.start_coordinator(SETTINGS)
            self.assertFalse((folder / "shards.json").exists())
            cluster.coordinator.signal(SIGKILL)
            cluster.coordinator.wait()
            cluster.restart_lead()
            self.finish(cluster, *(cluster.start_worker(name) for name in WORKERS))
            self.assertEqual(len(cluster.published("coordinator")), ROUNDS)

    def test_operators_see_one_run(self):
        with Sharded() as cluster:
            shards, workers = self.start_run(cluster, flags=["--retain_deltas"])
            cluster.wait_for_step("east", 8)
            out = cluster.folder / "state"
            status, text, error = run_tool(
                BIN / "causewayctl", "export", f"--coordinator={cluster.address}", f"--out={out}",
                "--format=parameters", "--json")
            self.assertEqual(status, 0, error)
            versions = json.loads(text)["versions"]
            self.assertEqual(len(versions), 4)
            self.assertTrue(all(version >= 1 for version in versions), versions)
            self.finish(cluster, *workers, *shards.values())
            events = {(e["event"], e.get("shard")) for e in cluster.events()}
            self.assertIn(("shard_attached", "a"), events)
            status, text, error = run_tool(
                COORDINATOR, "inspect", f"--run_dir={cluster.folder / 'a'}", "--json")
            self.assertEqual(status, 0, error)
            own = {fragment for fragment, _ in cluster.published("a")}
            self.assertEqual({f["fragment"] for f in json.loads(text)["fragments"]}, own)
            status, text, error = run_tool(
                COORDINATOR, "replay", f"--run_dir={cluster.folder / 'a'}")
            self.assertEqual(status, 0, error)
            self.assertIn(f"{6 * len(own)} rounds of run", text)
            self.assertIn(f"these are {len(own)} of its 4 fragments", text)

    def test_the_folders_of_all_coordinators_are_one_run_and_part_of_them_is_none(self):
        with Sharded() as cluster, Sharded() as other:
            for run in (cluster, other):
                run.start_lead(SETTINGS, ("lead", "a", "b"), "--retain_deltas")
                shards = [run.start_shard(name, "--retain_deltas") for name in ("a", "b")]
                if run is cluster:
                    self.finish(run, *shards, *(run.start_worker(name) for name in WORKERS))
            folders = [str(cluster.folder / name) for name in ("b", "coordinator", "a")]
            every = f"--run_dir={','.join(folders)}"
            status, text, error = run_tool(COORDINATOR, "inspect", every, "--json")
            self.assertEqual(status, 0, error)
            found = json.loads(text)
            self.assertEqual([f["fragment"] for f in found["fragments"]], [0, 1, 2, 3])
            published = cluster.published("coordinator", "a", "b")
            for fragment in found["fragments"]:
                self.assertEqual(fragment["version"], 6)
                self.assertEqual(fragment["published_hash"],
                                 published[fragment["fragment"], 6])
            self.assertEqual([c["folder"] for c in found["coordinators"]], folders)
            self.assertEqual(sorted(i for c in found["coordinators"] for i in c["fragments"]),
                             [0, 1, 2, 3])
            self.assertEqual(found["state"]["hash_checks"], 2 * (ROUNDS + 4))
            self.assertEqual(len(found["members"]), 2)
            self.assertTrue(all(part["skipped"] == 0 for part in found["data"]), found["data"])
            status, text, error = run_tool(COORDINATOR, "inspect", every)
            self.assertEqual(status, 0, error)
            self.assertIn(f"  {folders[0]}: fragments ", text)
            out = cluster.folder / "replayed"
            status, text, error = run_tool(COORDINATOR, "replay", every, f"--output={out}")
            self.assertEqual(status, 0, error)
            self.assertIn(f"{ROUNDS} rounds of run", text)
            self.assertEqual(array_of(out, "parameters"),
                             array_of(cluster.out("east") / "checkpoint", "published"))
            for wrong, words in (
                    (folders[:2], "are in none of"), (folders + folders[:1], "twice"),
                    ([folders[0], folders[2]], "is the lead's, which has shards.json"),
                    ([folders[1], str(other.folder / "a")], "give the folders of one run"),
                    (folders + [str(cluster.folder / "none")], "none")):
                for command in ("inspect", "replay"):
                    with self.subTest(words, command=command):
                        if command == "replay" and str(other.folder) in wrong[1]:
                            continue  # A coordinator owns it.
                        status, _, error = run_tool(COORDINATOR, command,
                                                    f"--run_dir={','.join(wrong)}")
                        self.assertEqual(status, 1, error)
                        self.assertIn(words, error)
            status, _, error = run_tool(COORDINATOR, "replay", f"--run_dir={folders[0]}",
                                        f"--output={out}")
            self.assertEqual(status, 1, error)
            self.assertIn("--output needs all 4 fragments", error)

    def test_a_shard_proves_its_name(self):
        with Sharded() as cluster:
            with_certificates(cluster, *WORKERS)
            make(cluster, "shard", "a")
            make(cluster, "shard", "b")
            server = tls(cluster, "coordinator")

            def proof(name):
                at = cluster.folder / "certificates" / name
                return [f"--lead_tls_cert={at / 'cert.pem'}", f"--lead_tls_key={at / 'key.pem'}"]

            cluster.start_lead(SETTINGS, ("lead", "a"), *server)
            for name, words in (("worker-east", "asked to serve fragments"),
                                ("shard-b", "it and --shard must agree")):
                status, _, error = run_tool(*cluster.shard_command("a", *server, *proof(name)))
                self.assertEqual(status, 2, error)
                self.assertIn(words, error)
            shard = cluster.start_shard("a", *server, *proof("shard-a"))
            workers = [cluster.start_worker(name, *tls(cluster, f"worker-{name}"))
                       for name in WORKERS]
            self.finish(cluster, *workers, shard)
            self.check(cluster, self.whole(), "a")


class BackupsTest(unittest.TestCase):
    """The recipe of docs/shards.md, Backups."""

    FOLDERS = ("coordinator", "a", "b")

    def start_run(self, cluster):
        cluster.start_lead(SETTINGS, ("lead", "a", "b"))
        return [cluster.start_shard(name) for name in ("a", "b")]

    def start_workers(self, cluster):
        return [cluster.start_worker(name, SLOW) for name in WORKERS]

    def end(self, number, *processes):
        for process in processes:
            process.signal(number)
        for process in processes:
            process.wait()

    def restore(self, cluster):
        """The backups take the places of the folders, which are lost; returns the shards."""
        for name in self.FOLDERS:
            shutil.rmtree(cluster.folder / name)
            shutil.copytree(cluster.folder / f"backup-{name}", cluster.folder / name)
        cluster.restart_lead()
        return [cluster.start_shard(name) for name in ("a", "b")]

    def finish(self, cluster, *processes):
        for process in (*processes, cluster.coordinator):
            self.assertEqual(process.wait(), 0, process.log())
        summary = cluster.summary()
        self.assertEqual(summary["rounds"], ROUNDS)
        self.assertEqual(summary["hash_mismatches"], 0)
        published = cluster.published(*self.FOLDERS)
        self.assertEqual(len(published), ROUNDS)
        return published

    def test_folders_that_were_copied_while_all_were_stopped(self):
        with Sharded() as cluster:
            shards = self.start_run(cluster)
            workers = self.start_workers(cluster)
            cluster.wait_for_step("east", 10)
            self.end(SIGTERM, cluster.coordinator, *shards)
            for name in self.FOLDERS:
                shutil.copytree(cluster.folder / name, cluster.folder / f"backup-{name}")
            at_backup = cluster.published(*self.FOLDERS)
            self.assertGreater(len(at_backup), 4)
            # At once, while its sites are there: nobody sees a difference.
            shards = self.restore(cluster)
            whole = self.finish(cluster, *workers, *shards)
            self.assertEqual(at_backup, {key: whole[key] for key in at_backup})
            with Sharded() as undisturbed:
                undisturbed.start_coordinator(SETTINGS)
                sites = [undisturbed.start_worker(name) for name in WORKERS]
                for process in (*sites, undisturbed.coordinator):
                    self.assertEqual(process.wait(), 0, process.log())
                self.assertEqual(undisturbed.published("coordinator"), whole)
            # After all has been lost: with sites that begin anew.
            for name in WORKERS:
                shutil.rmtree(cluster.out(name))
            shards = self.restore(cluster)
            again = self.finish(cluster, *self.start_workers(cluster), *shards)
            self.assertEqual(at_backup, {key: again[key] for key in at_backup})


class RefusalsTest(unittest.TestCase):
    def refused(self, command, *words):
        status, _, error = run_tool(*command)
        self.assertEqual(status, 2, error)
        for word in words:
            self.assertIn(word, error)

    def test_flags_that_do_not_fit(self):
        with Sharded() as cluster:
            config = cluster.folder / "run.textproto"
            config.write_text(SETTINGS + "model { preset: 'tiny-1m' }")
            lead = [COORDINATOR, "serve", f"--run_dir={cluster.folder / 'x'}",
                    f"--config={config}", "--http=off"]
            self.refused(lead + ["--shards=lead,a,a"], "has a twice")
            self.refused(lead + ["--shards=lead"], "name two or more")
            self.refused(lead + ["--shards=a,b,c,d,e"], "names 5", "4 fragments")
            self.refused(lead + ["--shards=lead,a", "--lead=127.0.0.1:1"], "give one or the others")
            self.refused(lead + ["--shards=lead,a,b,c,d", "--initial=first-site"], "names 5",
                         "4 fragments")
            self.refused(lead + ["--shards=lead,a", "--etcd=127.0.0.1:1", "--listen=127.0.0.1:0"],
                         "--etcd with --shards", "leave out one")
            self.refused([COORDINATOR, "serve", f"--run_dir={cluster.folder / 'x'}", "--http=off",
                          "--shards=lead,a", "--parent=127.0.0.1:1", "--region_id=eu", "--sites=2"],
                         "--parent with --shards", "leave out one")
            self.refused(lead + ["--lead=127.0.0.1:1", "--shard=a"], "leave out --config")
            self.refused([COORDINATOR, "serve", "--run_dir=x", "--lead=127.0.0.1:1"], "go together")
            shard = cluster.shard_command("a", lead="127.0.0.1:1", listen="0.0.0.0:0")
            self.refused(shard, "--advertise")

    def test_shards_that_the_lead_does_not_take(self):
        with Sharded() as cluster, Sharded() as other:
            cluster.start_lead(SETTINGS, ("lead", "a", "b"))
            other.start_coordinator(SETTINGS)
            self.refused(cluster.shard_command("c"), "no shard c", "names a, b")
            self.refused(cluster.shard_command("a", lead=other.address), "has no shards")
            first = cluster.start_shard("a")
            cluster.wait_for_event("shard_attached", shard="a")
            self.refused(cluster.shard_command("a", run_dir="fresh"), "in another folder")
            first.signal(SIGKILL)
            first.wait()
            cluster.wait_for_event("shard_detached", shard="a")
            self.refused(cluster.shard_command("b", run_dir="a"), "has fragments", "deals it")
            self.refused(cluster.shard_command("a", run_dir="fresh"), "in another folder")
            with Sharded() as third:
                third.start_lead(SETTINGS, ("lead", "a", "b"))
                self.refused(cluster.shard_command("a", lead=third.address), "this is the run")

    def test_workers_are_told_which_shards_are_missing(self):
        with Sharded() as cluster:
            cluster.start_lead(SETTINGS, ("lead", "a", "b"))
            cluster.start_shard("b")
            cluster.wait_for_event("shard_attached", shard="b")
            worker = cluster.start_worker("east", "--connect_timeout=1s")
            self.assertNotEqual(worker.wait(), 0)
            self.assertIn("shards of this run are missing: a; start them", worker.log())

    def test_a_run_keeps_its_shards(self):
        with Sharded() as cluster:
            cluster.start_lead(SETTINGS, ("lead", "a"))
            cluster.coordinator.signal(SIGKILL)
            cluster.coordinator.wait()
            lead = [COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
                    f"--config={cluster.folder / 'run.textproto'}", "--http=off"]
            self.refused(lead + ["--shards=lead,b"], "began with --shards=lead,a")
        with Sharded() as cluster:
            cluster.start_coordinator(SETTINGS)
            cluster.coordinator.signal(SIGKILL)
            cluster.coordinator.wait()
            lead = [COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
                    f"--config={cluster.folder / 'run.textproto'}", "--http=off"]
            self.refused(lead + ["--shards=lead,a"], "has all fragments in this folder")


if __name__ == "__main__":
    unittest.main()
