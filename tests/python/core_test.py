"""Sites of numpy arrays: what they train, how they resume, and how they end."""

import json
import logging
import multiprocessing
import os
import signal
import unittest
from unittest import mock

import numpy as np

import causeway
from causeway._session import Orders
from causeway._site import _Outcome
from runs import (BIN, CTL, PLAIN, STREAMING, Run, RunTest, arrays, beside, ended, has_ipv6, output_of, run_tool, update,
                  wait_until)


def train(site, values, seat=0):
    with site:
        while not site.should_stop:
            update(values, site.current_step, seat)
            site.step(100)


def raised_in_child(*calls):
    """What each call raises in a forked child."""
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()

    def work():
        for call in calls:
            try:
                call()
            except causeway.Error as error:
                answers.put(error)

    child = fork.Process(target=work)
    child.start()
    raised = [answers.get(timeout=30) for _ in calls]
    child.join()
    return raised


def invite(run):
    """A line for paris."""
    return output_of(CTL, "invite", "paris", f"--join={run.folder / 'coordinator' / 'operator'}")


class CoreTest(RunTest):
    def test_two_sites_train_one_model_with_four_bits_both_ways(self):
        with Run().serving(STREAMING.replace("start_workers: 1", "start_workers: 2"), initial=arrays()) as run:
            local = [arrays(1), arrays(2)]
            sites = [causeway.Site(run.address, values, id=f"s{seat}")
                     for seat, values in enumerate(local)]
            with beside(train, sites[1], local[1], 1):
                train(sites[0], local[0])
            run.finish()
            # The two differ, what they publish does not.
            self.assertFalse(np.array_equal(local[0]["embed"], local[1]["embed"]))
            mine = local[0]["embed"].copy()
            with sites[0].published(), sites[1].published():
                for name in local[0]:
                    np.testing.assert_array_equal(local[0][name], local[1][name])
            np.testing.assert_array_equal(local[0]["embed"], mine)
            self.assertEqual(sites[0].summary()["rounds_late"], 0)

    def test_alone_it_is_plain_training_bit_for_bit(self):
        plain = arrays()
        for step in range(20):
            update(plain, step)
        with Run().serving(PLAIN, initial=arrays()) as run:
            values = arrays(5)  # Replaced by the run's.
            train(causeway.Site(run.address, values, id="s"), values)
            run.finish()
        for name in plain:
            np.testing.assert_array_equal(values[name], plain[name])

    def test_it_pushes_what_a_c_program_does(self):
        """Byte for byte, of a worker's model, with an update that each makes for itself from the run's initial values on.
        tests/site/site_test.py holds the C interface against the oracle, with every codec."""
        for codecs in ("FP32 codec_down: E2M1", "INT4 codec_down: INT8", "LM2 codec_down: LM2 error_feedback: true"):
            with self.subTest(codecs), Run() as run:
                run.start_coordinator(
                    "train { steps: 13 } membership { start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 3600000 } "
                    "sync { fragments: 3 pattern: BALANCED steps_between_syncs: 4 overlap_steps: 3 mixing: 0.5 "
                    f"codec_up: {codecs} }}", "--retain_deltas")
                values = {tensor["name"]: np.zeros(tensor["shape"], np.float32)
                          for tensor in causeway.describe(run.address)["tensors"]}
                tensors = run.folder / "tensors"
                tensors.write_text("".join(f"{name} {' '.join(map(str, array.shape))}\n"
                                           for name, array in values.items()))
                program = run.start("c.log", BIN / "c_site", run.address, "c", tensors, run.folder / "state")
                with causeway.Site(run.address, values, id="site") as site:
                    while not site.should_stop:
                        for tensor, array in enumerate(values.values()):
                            pattern = (site.next_step * 31 + tensor * 7 + np.arange(array.size)) % 17 - 8
                            array += (np.float32(1e-3) * pattern.astype(np.float32)).reshape(array.shape)
                        site.step(64)
                ended(program)
                summary, sent, rounds = run.finish(), run.pushed(), len(run.rounds())
                self.assertGreaterEqual(rounds, 9)
                self.assertEqual(sent[::2], sent[1::2])  # Both, in every round of every fragment.
                self.assertEqual((len(sent), len({one[2] for one in sent})), (2 * rounds, rounds))
                # Hashes of what each of the two merged, and of the 3 fragments that each began with.
                self.assertEqual(summary["hash_checks"], 2 * (rounds + 3))

    def test_an_invitation_boards_and_then_the_runs_name_does(self):
        with Run() as run, mock.patch.dict(os.environ, XDG_CONFIG_HOME=str(run.folder / "config")):
            run.serve('run_name: "first"\n' + PLAIN, "--tls=own", initial=arrays())
            line = invite(run)
            with self.assertRaisesRegex(causeway.InvalidArgument, "the invitation is for paris, and id is"):
                train(causeway.Site(line, arrays(), id="rome"), arrays())
            with self.assertRaisesRegex(causeway.InvalidArgument, "leave tls"):
                train(causeway.Site(line, arrays(), insecure=True), arrays())
            with self.assertRaisesRegex(causeway.InvalidArgument, "cut or changed"):
                causeway.describe(line.strip()[:-3])
            self.assertTrue(causeway.describe(line)["run_id"].startswith("first-"))
            values = arrays(5)
            site = causeway.Site("first", values)
            train(site, values)
            self.assertEqual(site.current_step, 20)
            run.finish()
        with self.assertRaisesRegex(causeway.InvalidArgument, "id must be this site's name"):
            causeway.Site("hub:7070", arrays())

    @unittest.skipUnless(has_ipv6(), "this machine has no ::1")
    def test_an_invitation_over_ipv6_in_a_folder_that_the_site_names(self):
        with Run() as run, mock.patch.dict(os.environ, HOME="", XDG_CONFIG_HOME=""):
            run.serve('run_name: "first"\n' + PLAIN, "--tls=own", initial=arrays(), listen="[::1]:0")
            line = invite(run)
            self.assertRegex(line, r"^causeway://\[::1\]:\d+/first/paris/")
            with self.assertRaisesRegex(causeway.Refused, "give identity=FOLDER"):
                causeway.describe(line)
            identity = run.folder / "identity"
            self.assertTrue(causeway.describe(line, identity=identity)["run_id"].startswith("first-"))
            with self.assertRaisesRegex(causeway.Refused, "of the run first, not of second"):
                causeway.describe("second", identity=identity)
            with self.assertRaisesRegex(causeway.InvalidArgument, "folder of an invitation"):
                causeway.describe(run.address, identity=identity)
            values = arrays(5)
            train(causeway.Site("first", values, identity=identity), values)
            run.finish()

    def test_the_first_site_brings_model_and_values(self):
        plain = arrays(7)
        for step in range(8):
            update(plain, step)
        with Run().serving(PLAIN, steps=8) as run:
            self.assertTrue(causeway.describe(run.address)["awaits_model"])
            values = arrays(7)
            site = causeway.Site(run.address, values, id="s")
            train(site, values)
            self.assertTrue(site.info.brought_model)
            run.finish()
        np.testing.assert_array_equal(values["layers.1.w"], plain["layers.1.w"])

    def test_killed_and_resumed_it_sends_the_same_bytes(self):
        sent = []
        for hold in (-1, 7, 13):
            with Run().serving(STREAMING, initial=arrays()) as run:
                first = run.start_trainer("--every=5", f"--hold={hold}", name="first")
                if hold >= 0:
                    wait_until(lambda: f"step {hold}\n" in first.log(), "the site is there")
                    first.kill()
                    first = run.start_trainer("--every=5", name="second")
                self.assertEqual(first.wait(), 0, first.log())
                self.assertIn(f"restored {hold >= 0}", first.log())
                run.finish()
                sent.append(run.sent())
        self.assertGreater(len(sent[0][0]), 10)
        self.assertEqual(sent[1:], [sent[0]] * 2)

    def test_a_state_of_data_that_are_shared_now_or_no_more_says_so_and_draws_anew(self):
        for shared_before in (True, False):
            with Run().serving(STREAMING, initial=arrays()) as run:
                values, state, shared = arrays(), None, shared_before
                for said, slot in ((0, 0 if shared else -1), (1, -1 if shared else 0), (0, -1 if shared else 0)):
                    with self.says("the checkpoint was made with data", said), \
                            causeway.Site(run.address, values, id="s", data_slot=shared, state=state) as site:
                        self.assertEqual(site.info.restored, state is not None)
                        self.assertEqual(site.data_slot, slot)
                        for _ in range(3):
                            draw = site.next_draw
                            update(values, site.current_step)
                            site.step(100)
                            self.assertEqual(site.next_draw, draw + 100)
                        state, shared = site.state_dict(), not shared_before
                        site.saved()

    def test_a_coordinator_killed_and_restarted_loses_nothing(self):
        sent = []
        for kill in (False, True):
            with Run().serving(STREAMING, steps=30, initial=arrays()) as run:
                values = arrays()
                with causeway.Site(run.address, values, id="s") as site:
                    while not site.should_stop:
                        if kill and site.current_step in (9, 18):
                            run.kill_coordinator()
                            run.restart_coordinator()
                        update(values, site.current_step)
                        site.step(100)
                run.finish()
                sent.append(run.sent())
        self.assertEqual(sent[1], sent[0])

    def test_a_value_that_is_not_finite_is_named_and_not_sent(self):
        with self.assertRaisesRegex(causeway.NotFinite, "^INVALID_ARGUMENT: layers.1.w has a value that is not finite"):
            with self.joined() as (run, values, site):
                while not site.should_stop:
                    update(values, site.current_step)
                    if site.current_step == 6:
                        values["layers.1.w"][3, 1] = np.nan
                    site.step(100)
        self.assertIn("layers.1.w", str(run.left("s")))

    def test_another_model_is_refused_by_name(self):
        with Run().serving(PLAIN, initial=arrays()) as run:
            values = arrays()
            values["embed"] = np.zeros((51, 8), np.float32)
            with self.assertRaisesRegex(causeway.Refused, r"^FAILED_PRECONDITION: .*embed has \[51, 8\]"):
                causeway.Site(run.address, values, id="s").open()

    def test_a_name_in_use_is_refused(self):
        with self.joined() as (run, _, _):
            address = run.address.replace("127.0.0.1", "localhost")
            with self.assertRaisesRegex(causeway.Refused, r"^ALREADY_EXISTS: a site s of this process has not left: "
                                        r"close\(\) it before another try"):
                causeway.Site(address, arrays(), id="s", connect_timeout_s=3).open()
        # Nor does who has left stand in the way.
        with causeway.Site(run.address, arrays(), id="s") as site:
            self.assertTrue(site.step(100))

    def test_one_that_joins_again_takes_the_place_of_a_former_of_its_process(self):
        with Run().serving(PLAIN, initial=arrays()) as run:
            former = causeway.Site(run.address, arrays(), id="s")
            former.open()  # As in a notebook whose cell runs twice.
            with self.assertLogs("causeway", logging.WARNING) as logs:
                with causeway.Site(run.address, arrays(), id="s") as site:
                    self.assertTrue(former.should_stop)
                    self.assertTrue(site.step(100))
            self.assertEqual(len(logs.output), 1)
            self.assertIn("site s: its training begins anew", logs.output[0])

    def test_certificates_let_in_whom_they_name(self):
        with Run() as run:
            run.certificates("init")
            run.certificates("coordinator", "--host", "localhost", "--ip", "127.0.0.1")
            run.certificates("worker", "s")
            of = run.folder / "certificates"
            run.serve(PLAIN, f"--tls_ca={of}/coordinator/ca.pem",
                      f"--tls_cert={of}/coordinator/cert.pem",
                      f"--tls_key={of}/coordinator/key.pem", steps=8, initial=arrays())
            with self.assertRaisesRegex(causeway.InvalidArgument, "that of worker s"):
                causeway.Site(run.address, arrays(), id="another", tls=of / "worker-s").open()
            strange = run.folder / "strange"
            run.certificates("init", folder=strange)
            run.certificates("worker", "s", folder=strange)
            stolen = {"ca": of / "ca.pem", "cert": strange / "worker-s/cert.pem",
                      "key": strange / "worker-s/key.pem"}
            for tls, message in ((None, "speaks TLS.*give tls\\['ca'\\]"),
                                 (strange / "worker-s", "certificate"), (stolen, "certificate")):
                with self.assertRaisesRegex((causeway.Refused, causeway.Unavailable), message):
                    causeway.Site(run.address, arrays(), id="s", tls=tls,
                                  connect_timeout_s=2).open()
            values = arrays()
            train(causeway.Site(run.address, values, id="s", tls=of / "worker-s"), values)
            run.finish()

    def test_nobody_there_is_said_within_the_time_limit(self):
        with self.assertRaisesRegex(causeway.Unavailable, "127.0.0.1:9"):
            causeway.Site("127.0.0.1:9", arrays(), id="s", connect_timeout_s=1).open()

    def test_ctrl_c_ends_a_wait_and_leaves_in_good_order(self):
        with Run().serving(PLAIN.replace("start_workers: 1", "start_workers: 2"), initial=arrays()) as run:
            waiting = run.start_trainer()
            run.wait_for_event("worker_ready", worker="s")
            waiting.signal(signal.SIGINT)
            self.assertEqual(waiting.wait(), 1)
            self.assertTrue(waiting.log().rstrip().endswith("interrupted"), waiting.log())
            run.wait_for_event("worker_left", worker="s")

    def test_a_forked_child_does_no_harm(self):
        with self.joined() as (run, values, site):
            while not site.should_stop:
                if site.current_step == 3:
                    for error in raised_in_child(lambda: site.step(100), site.state_dict):
                        self.assertEqual(error.code, "FAILED_PRECONDITION")
                update(values, site.current_step)
                site.step(100)
        run.finish()

    def test_a_forked_child_cannot_join_and_says_so(self):
        with Run().serving(PLAIN, initial=arrays()) as run:
            causeway.describe(run.address)
            for error in raised_in_child(causeway.Site(run.address, arrays(), id="s").open,
                                         lambda: causeway.describe(run.address)):
                self.assertIsInstance(error, causeway.Refused)
                self.assertIn("forked by one that had a site", error.message)

    def test_steps_that_a_state_lacks_of_the_run_are_said(self):
        with Run().serving("""sync { steps_between_syncs: 30 overlap_steps: 1 }
                         membership { start_workers: 1 lease_ms: 3000 }""", steps=40) as run:
            first = run.start_trainer("--every=5", "--hold=12", name="first")
            status = [CTL, "status", "--json", f"--coordinator={run.address}"]
            wait_until(lambda: json.loads(run_tool(*status)[1] or "{}").get("run_step", 0) >= 12, "the step is known")
            first.kill()
            second = run.start_trainer("--every=5", name="second")
            self.assertEqual(second.wait(), 0, second.log())
            self.assertIn("the checkpoint is 2 steps behind the run: whatever was trained here after it is trained "
                          "again", second.log())
            run.finish()

    def test_log_lines_go_to_the_logger(self):
        with Run().serving(PLAIN, steps=4, initial=arrays()) as run:
            values = arrays()
            with self.says("finished at step 4", None, "INFO"):
                train(causeway.Site(run.address, values, id="s"), values)

    def test_another_array_than_it_joined_with_is_named(self):
        with Run().serving(PLAIN) as run:
            for name, change, message in (
                    ("a", lambda values: values.update(embed=values["embed"] + 1), "embed is another array in arrays"),
                    ("b", lambda values: values.pop("layers.0.b"), "layers.0.b is gone in arrays"),
                    ("c", lambda values: values.update(x=np.zeros(2, np.float32)), "x is new in arrays")):
                values = arrays()
                with self.assertRaisesRegex(causeway.Refused, message):
                    with causeway.Site(run.address, values, id=name) as site:
                        change(values)
                        while not site.should_stop:
                            site.step(100)
                self.assertEqual(site.current_step, 0)

    def test_misuse_is_named(self):
        value = np.zeros(12, np.float32)
        cases = {
            "must be a writeable C-contiguous numpy array of float32":
                lambda: causeway.Site("h:1", {"w": np.zeros(3)}, id="s"),
            "at least one array": lambda: causeway.Site("h:1", {}, id="s"),
            "b and a overlap in memory": lambda: causeway.Site("h:1", {"a": value[4:], "b": value[:8]}, id="s"),
            "a and b overlap in memory": lambda: causeway.Site("h:1", {"a": value, "b": value}, id="s"),
            "needs a site that has joined": causeway.Site("h:1", arrays(), id="s").step,
        }
        for message, call in cases.items():
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                call()
        with self.assertRaisesRegex(causeway.DataLoss, "no state of a site"):
            causeway.Site("h:1", arrays(), id="s", state={"state": np.ones(40, np.uint8)})
        with self.assertRaisesRegex(causeway.InvalidArgument, 'state must be what state_dict.. gave, with its key "state"'):
            causeway.Site("h:1", arrays(), id="s", state={"model": {}, "causeway": {}})

    def test_another_part_of_the_data_is_to_be_saved(self):
        site = causeway.Site("h:1", arrays(), id="s")
        orders = Orders(go=True, finished=False, drain=False, anew=False, data_slot=0, next_draw=0,
                        step=0, next_step=1, end_step=10)
        for change, should_save in (({}, False), ({}, False), ({"data_slot": 1}, True),
                                    ({"data_slot": 1}, True)):
            site._take(_Outcome([], orders._replace(**change)))
            self.assertEqual(site.should_save, should_save)
        site.state_dict()
        self.assertFalse(site.should_save)
        site._take(_Outcome([], orders._replace(data_slot=1, anew=True)))
        self.assertTrue(site.should_save)

    def test_a_site_after_its_budget_says_so(self):
        with self.joined(steps=4) as (run, _, site):
            while site.step(100):
                pass
            with self.assertRaisesRegex(causeway.InvalidArgument, "should_stop"):
                site.step(100)
        run.finish()
