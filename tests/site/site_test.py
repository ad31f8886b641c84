#!/usr/bin/env python3
"""Sites through the C interface with real processes: a C program and a coordinator, and what ends a
site or disturbs it."""

import ctypes
import itertools
import os
import pathlib
import re
import sys
import threading
import unittest

for _folder in ("integration", "reference"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / _folder))

import numpy as np  # noqa: E402

import c_interface as c  # noqa: E402
from causeway_oracle import codecs, layout, streaming  # noqa: E402
from cluster import (BIN, CTL, DEADLINE_S, SIGTERM, Cluster, ended, json_lines, output_of,  # noqa: E402
                     wait_until)

C_SITE = BIN / "c_site"
SYNC = ("sync { fragments: 3 pattern: BALANCED steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5 "
        "codec_up: INT4 codec_down: INT4 %s } ")
FEEDBACK = SYNC % "error_feedback: true"
TWO = "membership { start_workers: 2 max_workers: 4 quorum: 2 lease_ms: 2000 }"
ONE = "membership { start_workers: 1 max_workers: 4 lease_ms: 2000 }"
FOR_EVER = "train { steps: 100000000 } "


def steps(count):
    return "train { steps: %d } " % count


def tensors_of(cluster):
    return [(tensor["name"], tensor["shape"]) for tensor in c.describe(cluster.address)["tensors"]]


def start_site(cluster, name, save_every=0):
    tensors = cluster.folder / "tensors"
    if not tensors.exists():
        tensors.write_text("".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in tensors_of(cluster)))
    return cluster.start(
        f"{name}.log", C_SITE, cluster.address, name, tensors, cluster.folder / f"{name}.state",
        save_every, variables={"C_SITE_OUTPUT": str(cluster.out(name))})


def last_step(process):
    found = re.findall(r"^step (\d+)$", process.log(), re.MULTILINE)
    return int(found[-1]) if found else 0


def wait_for_step(process, step):
    wait_until(lambda: last_step(process) >= step or process.child.poll() is not None,
               f"step {step}")
    assert process.child.poll() is None, process.log()


class SiteTest(unittest.TestCase):
    def finished(self, cluster, *processes):
        ended(*processes, cluster.coordinator)
        self.assertEqual(cluster.summary()["hash_mismatches"], 0)
        return cluster.published()

    def join(self, *threads):
        for thread in threads:
            thread.join(timeout=DEADLINE_S)
            self.assertFalse(thread.is_alive(), "a site's thread does not end")

    def undisturbed(self, settings):
        with Cluster().serving(settings) as cluster:
            return self.finished(cluster, *[start_site(cluster, name) for name in ("a", "b")])

    # --- Whole runs ------------------------------------------------------------------------------

    def test_c_programs_train_a_run_and_show_what_they_do(self):
        with Cluster().serving(steps(61) + FEEDBACK + TWO) as cluster:
            sites = [start_site(cluster, name) for name in ("a", "b")]
            rounds = self.finished(cluster, *sites)
            self.assertEqual(len(rounds), 3 * 10)
            for row in cluster.rounds():
                self.assertEqual(row["contributors"], ["a", "b"])
            self.assertIn("done 61", sites[0].log())
            self.assertIn('"rounds_merged": 30', sites[0].log())
            lines = json_lines(cluster.out("a") / "metrics.jsonl")
            self.assertEqual([line["step"] for line in lines if line["kind"] == "step"],
                             list(range(1, 62)))
            self.assertAlmostEqual(lines[-1]["train_loss"], 5 / 61)
            events = [e["event"] for e in json_lines(cluster.out("a") / "events.jsonl")]
            self.assertEqual([events[0], events[-1]], ["attached", "finished"])

    def test_a_site_beside_a_worker_of_ours(self):
        with Cluster().serving(steps(40) + FEEDBACK + TWO) as cluster:
            site = start_site(cluster, "a")
            worker = cluster.start_worker("b", "--own_data")
            self.finished(cluster, site, worker)
            for row in cluster.rounds():
                self.assertEqual(row["contributors"], ["a", "b"])

    def test_a_killed_site_continues_from_its_state_with_the_same_bits(self):
        settings = steps(900) + FEEDBACK + TWO
        with Cluster().serving(settings) as cluster:
            stays = start_site(cluster, "a")
            dies = start_site(cluster, "b", save_every=50)
            wait_for_step(dies, 120)
            dies.kill()
            again = start_site(cluster, "b", save_every=50)
            rounds = self.finished(cluster, stays, again)
            self.assertIn("continuing from the checkpoint at step", again.log())
        self.assertEqual(rounds, self.undisturbed(settings))

    def follow(self, site, tensors, up, down, sync, tau, steps, change=None):
        """Trains the only site of a run and holds what it has after every step against the oracle, which is given
        the site's local values before it. `change`: of all values in a step, given where fragments lie."""
        change = change or (lambda step, cuts: 1e-3 * ((step * 31 + np.arange(cuts[-1].stop)) % 17 - 8))
        arena = np.frombuffer(site.arena, np.float32)
        found = c.pointer()
        site.call("published", ctypes.byref(found))
        published = np.frombuffer((ctypes.c_float * arena.size).from_address(found.value), np.float32)
        begins = [min(piece.arena_offset for piece in site.ranges(fragment)) for fragment in range(site.info.fragments)]
        cuts = [slice(*pair) for pair in zip(begins, begins[1:] + [arena.size])]
        own = np.zeros(arena.size, bool)
        offsets = {}
        for piece in site.ranges():
            own[piece.arena_offset:piece.arena_offset + piece.count] = True
            offsets[piece.tensor] = piece.arena_offset - piece.tensor_offset
        replica = streaming.Replica(
            published.copy(), cuts, layout.gaps(sorted((offsets[i], int(np.prod(shape))) for i, (_, shape) in enumerate(tensors))),
            codecs.CODECS[up], codecs.CODECS[down], sync, None)
        merger = streaming.Merger(published.copy(), cuts, codecs.CODECS[up], codecs.CODECS[down],
                                  {"optimizer": "NESTEROV", "learning_rate": 0.7, "momentum": 0.6, "merge": "WEIGHTED_MEAN",
                                   "clip_factor": 0, "trim": 0}, None)
        schedule, answers = streaming.Schedule(len(cuts), site.info.steps_between_syncs, tau), {}
        site.call("ready")
        for step in range(1, steps + 1):
            self.assertEqual((site.wait().go, site.orders.next_step), (1, step))
            arena[own] += change(step, cuts).astype(np.float32)[own]
            replica.local = np.where(own, arena, replica.published)  # A site keeps what nobody trains as it is published.
            replica.count_tokens(64)
            for fragment, round_ in schedule.sends(step):
                answers[fragment, round_] = merger.merge(fragment, {"a": replica.send(fragment)})
            for fragment, round_ in schedule.merges(step):
                replica.merge(fragment, answers[fragment, round_])
            site.step()
            self.assertEqual(arena[own].tobytes(), replica.local[own].tobytes(), f"local values after step {step}")
            self.assertEqual(published.tobytes(), replica.published.tobytes(), f"published values after step {step}")
        self.assertGreaterEqual(len(answers), 4)

    def test_a_site_has_the_bits_of_the_oracle_with_every_codec(self):
        """Devices are held against this way by tests/python/device_test.py."""
        cuts = itertools.cycle((("fragments: 3 pattern: STRIDED steps_between_syncs: 8", 3, 0.5),
                                ("fragments: 5 pattern: BALANCED steps_between_syncs: 7", 4, 0.5),
                                ("fragments: 1 steps_between_syncs: 6", 0, 0),
                                ("fragments: 2 pattern: SEQUENTIAL steps_between_syncs: 7", 4, 0.25)))
        both = {"FP32": "BF16", "BF16": "E2M1", "INT8": "FP32", "INT4": "INT4", "E2M1": "E2M1", "E3M0": "INT8"}
        cases = [(up, down, feedback) for up, down in both.items() for feedback in (False, True)]
        for (up, down, feedback), (cut, tau, mixing) in zip(
                [*cases, ("SIGN1", "SIGN1", True), ("LM2", "LM2", True), ("FP32", "FP32", False)], cuts):
            settings = steps(26) + ONE + "outer { learning_rate: 0.7 momentum: 0.6 } sync { %s overlap_steps: %d " \
                "mixing: %g codec_up: %s codec_down: %s error_feedback: %s }" % (cut, tau, mixing, up, down, str(feedback).lower())
            with self.subTest(settings), Cluster() as cluster:
                cluster.start_coordinator(settings, model="model { layers: 3 width: 16 heads: 4 kv_heads: 2 mlp_width: 24 "
                                          "untied_head: true sequence_length: 12 vocabulary_size: 61 }")
                tensors = tensors_of(cluster)
                # Without the vocabulary's padding, and in another order than the run's.
                given = [(name, [61, 16] if shape == [128, 16] else shape) for name, shape in tensors][::-1]
                site = c.Site(cluster.address, given, id="a")
                self.follow(site, tensors[::-1], up, down,
                            {"mixing": mixing, "keep_in_flight": 0, "error_feedback": feedback, "error_feedback_decay": 1},
                            tau, 26)
                site.wait()
                site.fragments("finish")
                site.leave(c.FINISHED)
                site.free()
                self.finished(cluster)

    def test_values_that_are_awkward_to_encode(self):
        """Against values of 0, of which differences are exact, and against what came of them."""
        def change(step, cuts):
            """Of the one fragment that is sent: another kind in every round, and every kind in the first."""
            round_, fragment = divmod(step - 1, 6)
            cut = cuts[fragment]
            noise, places = np.random.default_rng(step), np.arange(cut.stop - cut.start)
            normal, any_of = noise.normal(size=places.size), noise.integers(0, 110, places.size)
            values = np.zeros(cuts[-1].stop)
            values[cut] = (
                2e-3 * normal,
                1e-3 * normal ** 4,  # Heavy tails.
                # Quarters of integers, of which the block's largest makes halfway cases of one codec or the other.
                np.ldexp(np.where(places % 64 == 0, 6 + places // 64 % 3, (any_of % 49 - 24) / 4), places // 64 % 10 - 4),
                np.where(places % 128 == any_of, normal, 0),  # Whole blocks of zeros.
                np.ldexp(normal, -130 - any_of % 19),
                np.ldexp(normal, any_of - 100))[(fragment + round_) % 6]
            return values

        def zero(_, tensor, offset, count, values):
            ctypes.memset(values, 0, 4 * count)
            return 0

        tensors = [(f"h.{block}", shape) for block, shape in enumerate(([4200], [64, 65], [4159], [63], [65, 65]))]
        tensors.append(("last", [4097]))
        for codec in codecs.CODECS:
            feedback = codec != "FP32"  # It leaves nothing out.
            settings = steps(18) + ONE[:-1] + "norm_cap: 1e30 } outer { learning_rate: 0.7 momentum: 0.6 } sync { fragments: 5 " \
                "steps_between_syncs: 6 codec_up: %s codec_down: %s %s }" % (
                    codec, codec, "error_feedback: true error_feedback_decay: 0.95" if feedback else "")
            with self.subTest(codec), Cluster() as cluster:
                cluster.start_coordinator(settings, "--initial=first-site", "--noexit_when_drained", model="")
                site = c.Site(cluster.address, tensors, id="a", initial_values=c.lib.ValuesFunction(zero))
                self.follow(site, tensors, codec, codec, {"mixing": 0, "keep_in_flight": 0, "error_feedback": feedback,
                                                          "error_feedback_decay": 0.95}, 0, 18, change)
                site.free()

    # --- Orders ----------------------------------------------------------------------------------

    def test_a_site_that_is_told_to_leaves_and_hands_over(self):
        for drain in (lambda cluster, site: output_of(CTL, "drain", "a", f"--coordinator={cluster.address}"),
                      lambda cluster, site: site.signal(SIGTERM)):
            with Cluster().serving(FOR_EVER + FEEDBACK + ONE) as cluster:
                site = start_site(cluster, "a")
                wait_for_step(site, 30)
                drain(cluster, site)
                self.assertEqual(site.wait(), 0, site.log())
                cluster.wait_for_event("worker_left", worker="a")
                self.assertIn("left the run at step", site.log())

    def test_a_slow_site_does_fewer_steps(self):
        with Cluster().serving(
            FOR_EVER + FEEDBACK + TWO[:-1] + "max_pace: 4 }", "--noexit_when_drained") as cluster:
            tensors = tensors_of(cluster)
            sites = {name: c.Site(cluster.address, tensors, id=name) for name in ("fast", "slow")}
            done = threading.Event()
            advances = {"fast": set(), "slow": set()}
            problems = []

            def train(name, step_s):
                site = sites[name]
                try:
                    site.call("ready")
                    while site.wait().go:
                        advances[name].add(site.orders.next_step - site.orders.step)
                        site.change()
                        site.report(1.0, step_s)
                        site.step()
                        if name == "slow" and max(advances[name]) == 4:
                            done.set()
                except c.SiteError as error:
                    if error.code != c.CANCELLED:
                        problems.append(error)

            threads = [threading.Thread(target=train, args=arguments, daemon=True)
                       for arguments in (("fast", 0.02), ("slow", 0.08))]
            for thread in threads:
                thread.start()
            paced = done.wait(DEADLINE_S)
            # Neither can leave first: the other one would wait for a second worker.
            for site in sites.values():
                site.cancel()
            self.join(*threads)
            for site in sites.values():
                site.free()
            self.assertTrue(paced, advances)
            self.assertEqual(problems, [])
            self.assertEqual(advances["fast"], {1})

    # --- Any model -------------------------------------------------------------------------------

    TENSORS = [("conv.weight", [4, 2, 3, 3]), ("scale", []), ("h.0.weight", [8, 16]),
               ("h.1.weight", [8, 16])]

    def first_site(self, cluster):
        """A run that waits for its model."""
        cluster.start_coordinator(
            steps(20) + "sync { fragments: 2 pattern: BALANCED steps_between_syncs: 6 overlap_steps: 2 codec_up: INT4 "
            "codec_down: FP32 }" + TWO, "--initial=first-site", model="")

    @staticmethod
    def value(tensor, index):
        return float(tensor + 1) + index / 64

    def test_the_first_site_brings_the_model(self):
        def joined(name, tensors, give=None):
            return c.Site(cluster.address, tensors, id=name, **({"initial_values": c.lib.ValuesFunction(give)} if give else {}))

        def give(_, tensor, offset, count, values):
            asked.append(tensor)
            for i in range(count):
                values[i] = self.value(tensor, offset + i)
            return 0

        asked = []
        with Cluster() as cluster:
            self.first_site(cluster)
            self.assertIn("brings none", self.error(c.FAILED_PRECONDITION, joined, "a", self.TENSORS))
            self.assertIn("conv.weight", self.error(c.ABORTED, joined, "a", self.TENSORS, lambda *_: 1))
            self.assertTrue(c.describe(cluster.address)["awaits_model"], "who gave up leaves the run waiting")
            first = joined("a", self.TENSORS, give)
            self.assertEqual(asked, [0, 1, 2, 3] * 2)
            second = joined("b", self.TENSORS[::-1], lambda *_: 1)  # Is not asked.
            self.assertEqual((first.info.brought_model, second.info.brought_model), (1, 0))
            for site, order in ((first, [0, 1, 2, 3]), (second, [3, 2, 1, 0])):
                self.assertEqual(sum(piece.count for piece in site.ranges()), 72 + 1 + 128 + 128)
                for piece in site.ranges():
                    for i in range(piece.count):
                        self.assertEqual(site.arena[piece.arena_offset + i],
                                         self.value(order[piece.tensor], piece.tensor_offset + i))
                site.free()

    # --- One site in this process ----------------------------------------------------------------

    def alone(self, cluster, settings=FOR_EVER + FEEDBACK + ONE, **fields):
        cluster.start_coordinator(settings, "--noexit_when_drained")
        return c.Site(cluster.address, tensors_of(cluster), id="a", **fields)

    def error(self, code, function, *arguments, **fields):
        with self.assertRaises(c.SiteError) as caught:
            function(*arguments, **fields)
        self.assertEqual(caught.exception.code, code, caught.exception)
        return str(caught.exception)

    def begin(self, site):
        site.call("ready")
        site.wait()

    def test_a_weight_that_is_not_a_number_ends_the_site_with_its_cause(self):
        with Cluster() as cluster:
            site = self.alone(cluster)
            self.begin(site)
            site.arena[site.ranges()[0].arena_offset] = float("nan")
            with self.assertRaises(c.SiteError) as caught:
                for _ in range(12):
                    site.step()
                    site.wait()
            self.assertIn("cannot be encoded", str(caught.exception))
            self.error(c.FAILED_PRECONDITION, site.wait)
            self.error(c.FAILED_PRECONDITION, site.save)
            site.leave(c.FAILED, str(caught.exception).encode())
            cluster.wait_for_event("worker_left", worker="a")
            site.free()

    def test_a_child_may_not_use_the_site_of_its_parent(self):
        with Cluster() as cluster:
            site = self.alone(cluster, FOR_EVER + ONE + (SYNC % "").replace("INT4", "FP32"))
            self.begin(site)
            children = []
            for step in range(60):
                site.change()
                site.step()  # Something is in flight at most steps.
                if step % 10 == 3:
                    children.append(self.fork(site))
                site.wait()
            for child in children:
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            site.leave(c.DRAINED)
            site.free()
            self.assertEqual([line for line in site.lines if line[0] > 0], [])

    def fork(self, site):
        """A child that tries everything, and exits with 0 if it was refused."""
        child = os.fork()
        if child != 0:
            return child
        status = 1
        try:
            for name, (_, takes) in c.lib._header.functions.items():
                if not name.startswith("causeway_site_") or takes[0] != c.pointer or len(takes) == 1:
                    continue
                given = [kind(kind._type_()) if hasattr(kind, "contents") else kind() for kind in takes[1:-1]]
                self.assertIn("its child", self.error(
                    c.FAILED_PRECONDITION, c.call, name.removeprefix("causeway_"), site.handle, *given))
            site.cancel()
            c.LIBRARY.causeway_site_drain(site.handle)
            if c.LIBRARY.causeway_site_arena(site.handle) is None:
                site.free()
                status = 0
        finally:
            os._exit(status)

    def train(self, site, problems):
        """Until the end of the budget."""
        try:
            while not site.wait().finished:
                site.change()
                site.step()
            site.fragments("finish")
            site.leave(c.FINISHED)
            site.free()
        except c.SiteError as error:
            problems.append(error)

    def test_a_cancelled_step_is_continued_from_the_state_with_the_same_bits(self):
        settings = steps(30) + FEEDBACK + TWO
        runs = []
        for cancelled in (True, False):
            with Cluster().serving(settings) as cluster:
                tensors = tensors_of(cluster)
                site, other = (c.Site(cluster.address, tensors, id=name) for name in ("a", "b"))
                site.call("ready")
                other.call("ready")
                problems = []
                peer = threading.Thread(target=self.train, args=(other, problems), daemon=True)
                if cancelled:
                    # The first answer does not come: the other site has not begun.
                    canceller = threading.Timer(0.5, site.cancel)
                    canceller.start()
                    with self.assertRaises(c.SiteError) as caught:
                        while True:
                            site.wait()
                            site.change()
                            site.step()
                    self.assertEqual(caught.exception.code, c.CANCELLED)
                    canceller.join()
                    state, local = site.save(), list(site.arena)
                    site.free()  # Without a word, as a process that is killed.
                    peer.start()
                    site = c.Site(cluster.address, tensors, state=state, id="a")
                    self.assertEqual(site.info.restored, 1)
                    merged = site.fragments("changed")
                    self.assertEqual(len(merged), 1)
                    for piece in site.ranges():
                        if not any(piece.arena_offset == other_piece.arena_offset
                                   for other_piece in site.ranges(merged[0])):
                            at = slice(piece.arena_offset, piece.arena_offset + piece.count)
                            site.arena[at] = local[at]
                    site.call("ready")
                else:
                    peer.start()
                self.train(site, problems)
                self.join(peer)
                self.assertEqual(problems, [])
                runs.append(self.finished(cluster))
        self.assertEqual(*runs)

    def test_a_wait_has_a_limit_and_changes_nothing(self):
        with Cluster().serving(FOR_EVER + FEEDBACK + TWO, "--noexit_when_drained") as cluster:
            site = c.Site(cluster.address, tensors_of(cluster), id="a")
            site.call("ready")
            self.assertIn("the run has not started", self.error(c.DEADLINE_EXCEEDED, site.wait, 0.2))
            self.error(c.DEADLINE_EXCEEDED, site.wait, 0)
            threading.Timer(0.2, site.cancel).start()
            self.error(c.CANCELLED, site.wait)
            self.error(c.CANCELLED, site.wait)
            site.free()

    def test_calls_out_of_order(self):
        with Cluster() as cluster:
            site = self.alone(cluster)
            self.assertIn("causeway_site_ready comes first",
                          self.error(c.FAILED_PRECONDITION, site.wait))
            site.call("ready")
            self.error(c.FAILED_PRECONDITION, site.call, "ready")
            self.assertIn("causeway_site_wait", self.error(c.FAILED_PRECONDITION, site.step))
            self.assertIn("causeway_site_wait", self.error(c.FAILED_PRECONDITION, site.pass_step))
            site.wait()
            site.step()
            self.error(c.FAILED_PRECONDITION, site.step)
            site.leave(c.DRAINED)
            self.assertIn("has left", self.error(c.FAILED_PRECONDITION, site.wait))
            site.free()

    def test_all_changes_are_to_be_taken_over_once(self):
        with Cluster() as cluster:
            site = self.alone(cluster)
            self.assertEqual(site.fragments("changed"), [0, 1, 2])
            self.assertEqual(site.fragments("changed"), [])
            site.free()

    def test_states_of_others_are_refused(self):
        with Cluster() as cluster:
            site = self.alone(cluster)
            tensors = tensors_of(cluster)
            state = site.save()
            site.leave(c.DRAINED)
            site.free()

            def join(state, name="a"):
                c.Site(cluster.address, tensors, state=state, id=name)

            self.assertIn("belongs to site a", self.error(c.FAILED_PRECONDITION, join, state, "b"))
            damaged = bytearray(state)
            damaged[len(damaged) // 2] ^= 1
            with self.assertRaisesRegex(c.SiteError, "saved state is damaged"):
                join(bytes(damaged))
            with self.assertRaisesRegex(c.SiteError, "saved state is damaged"):
                join(state[:-9])

    def test_arguments_are_checked(self):
        tensors = [("a", [1])]
        refused = lambda **fields: self.error(  # noqa: E731
            c.INVALID_ARGUMENT, c.Site, "127.0.0.1:1", tensors, **{"id": "a", **fields})
        self.assertIn("options->size is 7", refused(size=7))
        self.assertIn("expected HOST:PORT", self.error(c.INVALID_ARGUMENT, c.Site, "nowhere", tensors,
                                                       id="a"))
        self.assertIn("id", refused(id="../etc"))
        self.assertIn("threads", refused(threads=-1))
        self.assertIn("connections", refused(connections=99))
        self.assertIn("max_upload_mbit", refused(max_upload_mbit=float("nan")))
        self.assertIn("connect_timeout_s", refused(connect_timeout_s=-1))
        links = c.pointer()
        for rank, ranks in ((0, 1), (-1, 2), (2, 2)):
            self.assertIn("2 or more, numbered", self.error(c.INVALID_ARGUMENT, c.call, "links_open", rank, ranks,
                                                            ctypes.byref(links)))
        c.call("links_open", 0, 2, ctypes.byref(links))
        self.assertIn("options->start must not be NULL", refused(links=links))
        self.assertIn("rank 0 joins", self.error(
            c.INVALID_ARGUMENT, c.call, "site_follow", ctypes.byref(c.make_options("", links=links)),
            c.make_tensors(tensors), 1, b"x", 1, ctypes.byref(c.pointer())))
        c.LIBRARY.causeway_links_close(links)
        c.LIBRARY.causeway_links_free(links)
        c.call("links_open", 1, 2, ctypes.byref(links))
        self.assertIn("start is not what", self.error(
            c.INVALID_ARGUMENT, c.call, "site_follow", ctypes.byref(c.make_options("", links=links)),
            c.make_tensors(tensors), 1, b"\xff", 1, ctypes.byref(c.pointer())))
        c.LIBRARY.causeway_links_free(links)
        tensors = [("", [1])]
        self.assertIn("tensors[0] has no name", refused())
        tensors = [("a", [1] * 9)]
        self.assertIn("0 .. 8 sizes", refused())
        tensors = []
        self.assertIn("tensor_count must be", refused())
        for handle in (ctypes.byref(c.pointer()), None):
            self.error(c.INVALID_ARGUMENT, c.call, "site_join", None, None, 0, None, 0, handle)
        for function in ("site_ready", "site_wait", "site_pass", "site_step", "site_next", "site_save"):
            takes = getattr(c.LIBRARY, f"causeway_{function}").argtypes[:-1]
            self.error(c.INVALID_ARGUMENT, c.call, function, *(kind() for kind in takes))
        self.assertEqual(c.LIBRARY.causeway_site_ready(None, None), c.INVALID_ARGUMENT)
        c.LIBRARY.causeway_site_free(None)
        c.LIBRARY.causeway_site_cancel(None)
        c.LIBRARY.causeway_state_free(None)
        with Cluster() as cluster:
            site = self.alone(cluster)
            self.error(c.INVALID_ARGUMENT, site.ranges, 3)
            self.error(c.INVALID_ARGUMENT, site.ranges, -2)
            self.error(c.INVALID_ARGUMENT, site.call, "wait", 1, None)
            site.orders.size = 3
            self.assertIn("orders->size is 3", self.error(c.INVALID_ARGUMENT, site.wait))
            self.assertIn("orders->size is 3", self.error(c.INVALID_ARGUMENT, site.pass_step))
            site.orders.size = ctypes.sizeof(c.lib.OrdersStruct)
            self.begin(site)
            self.error(c.INVALID_ARGUMENT, site.step, -1)
            self.error(c.INVALID_ARGUMENT, site.pass_step, -1)
            self.error(c.INVALID_ARGUMENT, site.call, "pass", 1, 1, None, ctypes.byref(site.orders))
            self.error(c.INVALID_ARGUMENT, site.step, 1, 2**62)
            self.error(c.INVALID_ARGUMENT, site.report, 1.0, -1)
            self.error(c.INVALID_ARGUMENT, site.call, "report_evaluation", float("inf"))
            self.error(c.INVALID_ARGUMENT, site.call, "saved", 7)
            self.error(c.INVALID_ARGUMENT, site.leave, 9)
            site.step()  # Nothing of that changed anything.
            site.free()


if __name__ == "__main__":
    unittest.main(verbosity=2)
