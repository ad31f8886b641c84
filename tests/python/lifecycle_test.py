"""How a site of numpy arrays joins, falls behind, and leaves; what its arguments may be."""

import faulthandler
import gc
import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import threading
from unittest import mock

import numpy as np

import causeway
from runs import CTL, PLAIN, STREAMING, Run, RunTest, arrays, beside, cluster, run_python, run_tool, wait_until


def noise(shape):
    """Values that do not become fewer bytes on their way."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


class SilentCoordinator:
    """Takes connections and never says a word. `called` is set when one has come."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.called = threading.Event()
        self.connections = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        try:
            while True:
                self.connections.append(self.socket.accept()[0])
                self.called.set()
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in [self.socket, *self.connections]:
            connection.close()


class BehindTest(RunTest):
    """A site that the run went on without, and one that the run goes on without while it joins."""

    def beside_one_that_trains(self, run, shape, settings, step_s, test):
        """`test` beside a site that trains for as long as it takes."""
        run.serve(settings, steps=10_000_000, initial={"w": noise(shape)})
        values = {"w": np.zeros(shape, np.float32)}
        fast = causeway.Site(run.address, values, id="fast")
        enough = threading.Event()

        def train():
            with fast:
                while not fast.should_stop and not enough.wait(step_s):  # A step takes so long.
                    values["w"] += np.float32(1e-3)
                    fast.step(100)

        with beside(train):
            try:
                run.wait_for_event("worker_ready", worker="fast")
                test(fast)
            finally:
                enough.set()

    @staticmethod
    def contributed(run, worker):
        return any(worker in line["contributors"] for line in run.rounds()[-50:])

    def test_a_site_that_fell_behind_goes_on_where_the_run_is(self):
        with Run() as run:
            def test(_fast):
                values = {"w": np.zeros(64, np.float32)}
                answers = run.folder / "coordinator" / "answers"
                with causeway.Site(run.address, values, id="slow") as site, \
                        self.assertLogs("causeway", logging.WARNING) as logs:
                    site.step(100)
                    before = site.current_step

                    def gone():
                        kept = [int(path.name.split("-r")[1].split(".")[0])
                                for path in answers.iterdir() if "-r" in path.name]
                        return kept and min(kept) > before // 5 + 8

                    wait_until(gone, "the answers that it needs are gone")
                    for _ in range(12):
                        last = site.current_step
                        self.assertTrue(site.step(100))
                        self.assertGreater(site.current_step, last)
                    self.assertGreater(site.current_step, before + 40)
                    self.assertTrue(site.should_save)
                    while not self.contributed(run, "slow"):
                        self.assertTrue(site.step(100))
                goes_on = [line for line in logs.output if "goes on at step" in line]
                self.assertEqual(len(goes_on), 1, logs.output)
                was, began = map(int, re.search(
                    "it was at step ([0-9]+), .* goes on at step ([0-9]+)$", goes_on[0]).groups())
                self.assertLess(was, before + 12)
                self.assertGreater(began, before + 40)

            self.beside_one_that_trains(run, 64, """
                sync { steps_between_syncs: 5 overlap_steps: 1 }
                outer { learning_rate: 1 momentum: 0 }
                membership { start_workers: 1 quorum: 1 grace_ms: 20 }""", 0.001, test)

    def test_a_joiner_whose_download_takes_many_rounds_takes_part_in_the_end(self):
        # At 1 Mbit/s the values take three seconds, in which the other makes four rounds of each
        # fragment; the link carries twice as many answers as there are.
        shape = (1000, 100)
        with Run() as run:
            def test(fast):
                values = {"w": np.zeros(shape, np.float32)}
                begin = fast.current_step
                with self.says("in which the run did", None, "INFO") as logs, \
                        causeway.Site(run.address, values, id="slow", max_download_mbit=1) as site:
                    self.assertGreater(site.current_step, begin + 80)
                    while not self.contributed(run, "slow"):
                        self.assertTrue(site.step(100))
                self.assertNotIn("went on without", str(logs.output))

            self.beside_one_that_trains(run, shape, """
                sync { fragments: 4 pattern: BALANCED steps_between_syncs: 40 overlap_steps: 20
                       codec_up: INT4 codec_down: INT4 }
                membership { start_workers: 1 quorum: 1 grace_ms: 2000 }""", 0.02, test)


class JoinTest(RunTest):
    def test_a_drain_while_it_joins_ends_the_join_which_calls_nobody_any_more(self):
        for thread_joins in (False, True):
            with self.subTest(thread_joins=thread_joins), SilentCoordinator() as silent:
                # Within its time nothing but the drain ends it.
                site = causeway.Site(silent.address, arrays(), id="s", connect_timeout_s=10 ** 6)

                def join():
                    with self.assertRaises(causeway.Cancelled), site:
                        self.fail("it has joined")

                def drain():
                    silent.called.wait()
                    site.drain()

                one, other = (drain, join) if not thread_joins else (join, drain)
                with beside(one):
                    other()
                self.assertTrue(site.should_stop)
                for connection in silent.connections:
                    connection.settimeout(cluster.DEADLINE_S)
                    while connection.recv(1 << 16):  # To its end.
                        pass

    def test_a_drain_before_it_joins_keeps_it_out(self):
        site = causeway.Site("127.0.0.1:9", arrays(), id="s", connect_timeout_s=120)
        site.drain()
        with self.assertRaises(causeway.Cancelled):
            site.open()

    def test_a_drain_while_values_come_leaves_as_drained(self):
        values = {"w": noise(1 << 20)}  # At 1 Mbit/s they take half a minute.
        with Run().serving(PLAIN.replace("BALANCED", "STRIDED").replace("fragments: 3", "fragments: 1"),
                           initial=values) as run:
            site = causeway.Site(run.address, values, id="s", max_download_mbit=1)

            def drain():
                run.wait_for_event("worker_joined", worker="s")
                site.drain()

            with beside(drain), self.assertRaises(causeway.Cancelled):
                site.open()
            self.assertEqual(run.left("s")["reason"], "drained")
            self.assertFalse(any(e["event"] == "worker_ready" for e in run.events()))

    def test_a_drain_while_it_waits_for_others_ends_the_wait(self):
        with Run().serving(PLAIN.replace("start_workers: 1", "start_workers: 2"), initial=arrays()) as run:
            site = causeway.Site(run.address, arrays(), id="s")

            def drain():
                run.wait_for_event("worker_ready", worker="s")
                site.drain()

            with beside(drain), site:
                self.assertTrue(site.should_stop)
            self.assertEqual(run.left("s")["reason"], "drained")

    def test_one_that_never_joins_says_so_when_it_is_thrown_away(self):
        with self.assertLogs("causeway", logging.WARNING) as logs:
            site = causeway.Site("127.0.0.1:9", arrays(), id="lonely")
            del site
            gc.collect()
        self.assertIn("site lonely never joined its run", logs.output[0])
        status, _, said = run_python("-c", "import numpy, causeway\nsite = causeway.Site('h:1', "
                                     "{'w': numpy.zeros(2, numpy.float32)}, id='lonely')\n", timeout=300)
        self.assertEqual(status, 0)
        self.assertIn("site lonely never joined its run", said)


class Waiting(logging.Handler):
    """Calls `then` at the first warning that fits."""

    def __init__(self, pattern, then):
        super().__init__(logging.WARNING)
        self.pattern, self.then, self.lines = pattern, then, []

    def emit(self, record):
        self.lines.append(record.getMessage())
        if self.then is not None and re.search(self.pattern, self.lines[-1]):
            then, self.then = self.then, None
            then()

    def __enter__(self):
        logging.getLogger("causeway").addHandler(self)
        return self

    def __exit__(self, *_):
        logging.getLogger("causeway").removeHandler(self)


class WaitTest(RunTest):
    """Lines that a person needs, with Python's default logging, while the site waits."""

    SETTINGS = """sync { steps_between_syncs: 2 }
                  membership { start_workers: 2 quorum: 2 lease_ms: 3000 }"""

    def test_whom_it_waits_for_is_said_while_it_waits(self):
        with Run().serving(self.SETTINGS, initial=arrays()) as run:
            other = causeway.Site(run.address, arrays(), id="other")
            site = causeway.Site(run.address, arrays(), id="s", drain_timeout_s=1)
            opens = threading.Thread(target=other.open)
            with Waiting("the run begins with 2 workers, and has these: s$", opens.start) as begin:
                site.open()
            opens.join()
            self.assertIsNone(begin.then, begin.lines)
            with Waiting(r"training has waited .* waiting for other \(step 0 of 2\)",
                         site.drain) as step:
                while site.step(100):
                    pass
            self.assertIsNone(step.then, step.lines)
            site.close()
            other.close()

    def test_a_pause_is_said_with_its_reason(self):
        with self.joined(steps=100_000) as (run, _, site):
            site.step(100)
            self.assertEqual(run_tool(CTL, "pause", f"--coordinator={run.address}", "--reason=repairs")[0], 0)
            with Waiting(r"the run is paused \(repairs\)", site.drain) as pause:
                while site.step(100):
                    pass
        self.assertIsNone(pause.then, pause.lines)

    def test_who_left_its_tokens_at_one_is_told_what_becomes_of_the_others(self):
        with Run().serving("""sync { steps_between_syncs: 2 overlap_steps: 1 }
                         membership { start_workers: 2 quorum: 2 }""", steps=8, initial=arrays()) as run:
            def train(name, tokens):
                with causeway.Site(run.address, arrays(), id=name) as site:
                    while site.step(tokens):
                        pass

            with self.assertLogs("causeway", logging.WARNING) as logs:
                with beside(train, "many", 4096):
                    train("one", None)
            said = [line for line in logs.output if "stands for 8192 tokens: it counts for 16" in line]
            self.assertTrue(any("worker one says 2. If that is too little, tell this site" in line
                                for line in said), logs.output)
            self.assertTrue(any(line.endswith("worker one says 2") for line in said), logs.output)
            run.finish()

    def test_a_delta_that_is_quarantined_is_said_at_its_site_with_the_settings(self):
        with Run().serving(PLAIN, steps=8, initial=arrays()) as run:
            values = arrays()
            site = causeway.Site(run.address, values, id="s")
            with self.says("of fragment 0 for round 1 .*is quarantined: it is larger than membership.norm_cap or "
                           "membership.outlier_factor allow", None), site:
                while not site.should_stop:
                    for value in values.values():
                        value += np.float32(1000)
                    site.step(100)
            run.finish()


class SignalTest(RunTest):
    """Programs without handlers of their own."""

    def test_one_that_joins_is_drained_with_a_line(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            with self.subTest(number), Run() as run, SilentCoordinator() as silent:
                joins = run.start_trainer("--default_signals", address=silent.address)
                silent.called.wait()
                joins.signal(number)
                self.assertEqual(joins.wait(), 1, joins.log())
                self.assertRegex(joins.log(), f"site s: {number.name}: it leaves the run in good")
                self.assertRegex(joins.log().rstrip().splitlines()[-1],
                                 f"Cancelled: .*{number.name} ended the join: this site takes no part")

    def test_one_that_waits_for_others_leaves_in_good_order(self):
        with Run().serving(PLAIN.replace("start_workers: 1", "start_workers: 2"), initial=arrays()) as run:
            waits = run.start_trainer("--default_signals")
            run.wait_for_event("worker_ready", worker="s")
            waits.stop()
            self.assertTrue(waits.log().rstrip().endswith("done False"), waits.log())
            self.assertEqual(run.left("s")["reason"], "drained")

    def test_one_that_trains_leaves_after_its_step(self):
        with Run().serving(PLAIN, steps=10_000_000, initial=arrays()) as run:
            trains = run.start_trainer("--default_signals")
            wait_until(lambda: "step 5\n" in trains.log(), "it trains")
            trains.stop()
            self.assertEqual(run.left("s")["reason"], "drained")

    def test_a_second_one_ends_the_program(self):
        with Run().serving(PLAIN, initial=arrays()) as run:
            holds = run.start_trainer("--default_signals", "--hold=5")
            wait_until(lambda: "step 5\n" in holds.log(), "it is there")
            holds.signal(signal.SIGTERM)
            wait_until(lambda: "A second signal ends the program" in holds.log(), "it says so")
            holds.signal(signal.SIGTERM)
            self.assertEqual(holds.wait(), -signal.SIGTERM, holds.log())

    def test_handlers_of_the_program_rule_and_others_are_there_only_while_a_site_is_open(self):
        numbers = (signal.SIGTERM, signal.SIGHUP)
        former = [signal.signal(number, signal.SIG_DFL) for number in numbers]
        for number, handler in zip(numbers, former):
            self.addCleanup(signal.signal, number, handler)

        def handler(*_):
            pass

        with Run().serving(PLAIN.replace("membership {", "membership { max_workers: 2"),
                           initial=arrays()) as run:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            with causeway.Site(run.address, arrays(), id="one"):
                with causeway.Site(run.address, arrays(), id="two"):
                    self.assertNotEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
                    self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)
                self.assertNotEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
            self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
            signal.signal(signal.SIGTERM, handler)
            with causeway.Site(run.address, arrays(), id="one"):
                self.assertIs(signal.getsignal(signal.SIGTERM), handler)
            self.assertIs(signal.getsignal(signal.SIGTERM), handler)

    def test_the_end_of_its_processor_time_is_said_every_second_and_drains_once(self):
        with Run().serving(PLAIN, initial=arrays()) as run:
            holds = run.start_trainer("--default_signals", "--hold=5")
            wait_until(lambda: "step 5\n" in holds.log(), "it is there")
            holds.signal(signal.SIGXCPU)
            wait_until(lambda: "site s: SIGXCPU: it leaves the run" in holds.log(), "it says so")
            holds.signal(signal.SIGXCPU)
            holds.signal(signal.SIGINT)
            self.assertEqual(holds.wait(), 1, holds.log())
            self.assertIn("interrupted", holds.log())

    def test_a_handler_that_is_none_of_pythons_rules(self):
        faulthandler.register(signal.SIGUSR1)
        self.addCleanup(lambda: list(map(faulthandler.unregister, (signal.SIGUSR1, signal.SIGUSR2))))
        with tempfile.TemporaryFile() as dump:
            with self.joined() as (_, _, site):
                self.assertEqual(signal.getsignal(signal.SIGUSR1), signal.SIG_DFL)
                self.assertNotEqual(signal.getsignal(signal.SIGUSR2), signal.SIG_DFL)
                self.assertTrue(site.step(100))
                faulthandler.register(signal.SIGUSR2, dump)
                signal.raise_signal(signal.SIGXCPU)
            for number in (signal.SIGUSR2, signal.SIGXCPU):  # Neither ends this process.
                signal.raise_signal(number)

    def test_a_forked_child_ends_as_ever(self):
        former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGTERM, former)
        with self.joined() as (_, _, site):
            self.assertNotEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
            child = multiprocessing.get_context("fork").Process(
                target=lambda: os._exit(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL))
            child.start()
            child.join()
            self.assertEqual(child.exitcode, 0)
            self.assertTrue(site.step(100))


class LeaveTest(RunTest):
    def test_what_ends_the_block_says_how_it_leaves(self):
        for error, said in ((SystemExit(0), "drained"), (SystemExit(None), "drained"), (SystemExit(3), "failed"),
                            (SystemExit("no more disk"), "failed"), (KeyboardInterrupt(), "drained"),
                            (ZeroDivisionError("no data left"), "ZeroDivisionError: no data left")):
            with self.subTest(repr(error)):
                with self.assertRaises(type(error)) as raised, self.joined() as (run, _, site):
                    site.step(100)
                    raise error
                self.assertIs(raised.exception, error)
                self.assertIn(said, str(run.left("s")))

    def test_after_the_budget_an_exit_merges_what_is_in_flight(self):
        with Run().serving(STREAMING, steps=8, initial=arrays()) as run:
            with self.assertRaises(SystemExit):
                with causeway.Site(run.address, arrays(), id="s") as site:
                    while site.step(100):
                        pass
                    sys.exit(0)
            self.assertEqual(run.left("s")["reason"], "finished")
            run.finish()

    def test_ctrl_c_while_an_answer_is_awaited_ends_the_sites_part_and_says_the_way_on(self):
        # As in a notebook: without a with block, and the next cell goes on.
        with Run().serving("""sync { steps_between_syncs: 2 }
                         membership { start_workers: 2 quorum: 2 }""", initial=arrays()) as run:
            other = causeway.Site(run.address, arrays(), id="other")
            site = causeway.Site(run.address, arrays(), id="s")
            former = signal.signal(signal.SIGINT, signal.default_int_handler)
            self.addCleanup(signal.signal, signal.SIGINT, former)
            with beside(other.open):
                site.open()

            def interrupt():
                deltas = run.folder / "coordinator" / "deltas"
                wait_until(lambda: deltas.exists() and any(deltas.iterdir()), "it has sent")
                os.kill(os.getpid(), signal.SIGINT)

            with self.says("Ctrl-C ended.*new join", None), self.assertRaises(KeyboardInterrupt), beside(interrupt):
                while site.step(100):
                    pass
            self.assertTrue(site.should_stop)
            with self.assertRaisesRegex(causeway.InvalidArgument, "Ctrl-C ended.*new join"):
                site.step(100)
            site.close()
            self.assertEqual(run.left("s")["reason"], "drained")
            self.assertTrue(site.should_stop)
            again = causeway.Site(run.address, arrays(), id="s")
            again.open()
            self.assertFalse(again.should_stop)
            again.close()
            other.close()

    def test_where_ctrl_c_is_ignored_a_site_says_so_once(self):
        for ignored in (True, False):
            with Run().serving(PLAIN, steps=4, initial=arrays()) as run:
                program = run.start_trainer(*(["--ignore_ctrl_c"] if ignored else []))
                self.assertEqual(program.wait(), 0, program.log())
                self.assertEqual(program.log().count("Ctrl-C is ignored"), int(ignored))


class ArgumentsTest(RunTest):
    def test_every_argument_is_checked_and_named(self):
        values = {"w": np.zeros(2, np.float32)}

        def site(**changed):
            named = {"coordinator": "h:1", "arrays": values, "id": "s", **changed}
            return causeway.Site(named.pop("coordinator"), named.pop("arrays"), **named)

        wrong = {
            "coordinator": (7070, None, b"h:1", "h:1\0", "\ud800", ""),
            "id": (5, None, "a\0b", ""),
            "arrays": ([1], 5),
            "tls": (5, "", {"ca": 1}, {"server_name": 3}, "/nowhere"),
            "data_slot": (3, "yes", None),
            "tokens_per_step": (0, -1, "7", 2.5, True, None, 2 ** 60),
            "state": (5, {"state": object()}, [1]),
            "threads": ("4", -1, 2 ** 40, 1.5),
            "connections": ("4", -1, 2 ** 33),
            "max_upload_mbit": ("fast", -1, float("nan"), True),
            "max_download_mbit": ([], float("inf")),
            "connect_timeout_s": ("3", -0.5),
            "drain_timeout_s": ({}, -1),
            "congestion_control": (1, b"bbr", ""),
            "metrics": (9100, ""),
            "output": (1, "", "a\0b"),
            "tensorboard": (2,),
            "insecure": (1, "no"),
            "device": (np.float32(1), ""),
            "software": (3, ""),
        }
        for name, cases in wrong.items():
            for value in cases:
                with self.subTest(name=name, value=value):
                    with self.assertRaisesRegex(causeway.InvalidArgument, name):
                        site(**{name: value})
        for name in ("log", "size", "tls_ca", "initial_values", "stop", "token_file", "colour"):
            with self.assertRaisesRegex(causeway.InvalidArgument, f"{name} is no option"):
                site(**{name: None})
        with self.assertRaisesRegex(causeway.InvalidArgument, "team is no option.*group"):
            site(team="us")
        for call in (lambda: causeway.describe(7070), lambda: causeway.describe("h:1", id=3),
                     lambda: causeway.describe("h:1", colour=3)):
            with self.assertRaises(causeway.InvalidArgument):
                call()
        site(threads=np.int64(2), max_upload_mbit=np.float32(3), connect_timeout_s=1,
             data_slot=np.bool_(True), metrics=None, tokens_per_step=4096.0)

    def test_figures_are_checked_and_named(self):
        site = causeway.Site("h:1", arrays(), id="s")
        wrong = {
            "tokens": (lambda: site.add("5"), lambda: site.add(-1), lambda: site.add(2.5)),
            "draws": (lambda: site.add(1, "2"),),
            "loss": (lambda: site.report("x"), lambda: site.report_evaluation(float("inf")),
                     lambda: site.report_evaluation(None)),
            "step_s": (lambda: site.report(step_s=-1), lambda: site.report(step_s=float("nan"))),
            "error": (lambda: site.close("no more data"),),
        }
        for name, calls in wrong.items():
            for call in calls:
                with self.assertRaisesRegex(causeway.InvalidArgument, name):
                    call()
        site.add(np.int32(3), 2.0)
        site.report(np.float64(1), step_s=0)
        with self.assertLogs("causeway", logging.WARNING) as logs:
            for _ in range(2):
                site.report(loss=np.float32("nan"))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("site s: the loss is nan after step 0", logs.output[0])

    def test_a_main_program_that_a_spawned_process_runs_again_joins_nothing(self):
        with mock.patch.object(multiprocessing.current_process(), "_inheriting", True, create=True):
            with self.assertRaisesRegex(causeway.Refused, "under if __name__ == .__main__.:"):
                causeway.Site("127.0.0.1:9", arrays(), id="s").open()

    def test_what_the_library_refuses_is_named_as_python_has_it(self):
        with self.assertRaisesRegex(causeway.InvalidArgument, "^INVALID_ARGUMENT: threads must be 0"):
            causeway.Site("127.0.0.1:9", arrays(), id="s", threads=10 ** 6).open()

    def test_what_cannot_work_is_refused_before_anybody_is_called(self):
        with tempfile.NamedTemporaryFile() as file:
            for named, message in (({"metrics": "x"}, "metrics: "), ({"metrics": "h:x"}, "metrics: "),
                                   ({"output": "/proc/x"}, "output must be a folder"),
                                   ({"output": file.name}, "output must be a folder"),
                                   ({"tensorboard": "/proc/x"}, "tensorboard must be a folder")):
                with self.subTest(**named), self.assertRaisesRegex(causeway.InvalidArgument, f"^[A-Z_]+: {message}"):
                    causeway.Site("127.0.0.1:9", arrays(), id="s", connect_timeout_s=600, **named).open()
