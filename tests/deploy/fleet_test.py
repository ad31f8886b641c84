"""causeway fleet with a cloud that only pretends: what it starts, replaces, ends, and refuses."""

import argparse
import json
from concurrent.futures import Future
from unittest import mock

import tools
from pretended import GOOD, Job, Scene, Status, at_once
from tools import BUILD, ROOT

import yaml
from causeway.fleet import __main__ as program
from causeway.fleet import _run
from causeway.fleet._file import FleetFileError
from causeway.fleet._machines import Machines
from causeway.fleet._run import RunError
from causeway.fleet._up import take_down


class UpTest(Scene):
    def test_it_starts_all_ends_at_the_budget_fetches_the_model_and_ends_the_machines(self):
        self.sky.clusters["somebody-elses"] = Status.UP
        self.assertTrue(self.up().to_the_end())
        self.assertEqual(self.sky.starts(),
                         ["causeway-first-berlin", "causeway-first-oslo-1", "causeway-first-oslo-2"])
        self.assertEqual(self.run_.budget, 1_000_000)
        self.assertEqual(self.run_.exported, [self.folder / "model"])
        self.assertEqual(self.sky.clusters, {"somebody-elses": Status.UP})
        self.assertEqual(self.run_.invited, ["berlin", "oslo-1", "oslo-2"])
        self.assertIn("of 1M tokens, 3k tokens/s, 3 of 3 sites train", self.text())

    def test_a_site_is_the_recipe_with_the_line_as_a_secret(self):
        self.up().to_the_end()
        name, task, options = self.sky.launched[1]
        recipe = yaml.safe_load((ROOT / "deploy/skypilot/site.yaml").read_text())
        self.assertEqual(task.config["run"], recipe["run"])
        self.assertEqual(task.config["envs"], {**recipe["envs"], "SHARDS": str(self.folder / "shards")})
        self.assertEqual(task.config["name"], name)
        self.assertEqual(task.resources, {"infra": "gcp", "accelerators": "A100:8", "use_spot": False,
                                          "disk_size": 200})
        self.assertEqual(task.config["file_mounts"],
                         {"~/shards": "${SHARDS}", "~/wheels": str(self.folder / "wheels")})
        self.assertEqual(task.secrets, {"CAUSEWAY_JOIN": "causeway://203.0.113.5:7070/first/oslo-1/secret2"})
        self.assertNotIn("secret2", json.dumps(task.config))
        self.assertNotIn("secret2", self.text())
        # Nobody pays for one whose trainer has ended.
        self.assertEqual(options, {"idle_minutes_to_autostop": 10, "down": True})

    def test_a_trainer_of_ones_own_takes_its_place(self):
        self.up(GOOD.replace("data: shards\n", "command: exec torchrun train.py\nsetup: pip install mine\n"
                             "workdir: trainer\n")).to_the_end()
        config = self.sky.launched[0][1].config
        self.assertEqual(config["envs"]["TRAIN"], "exec torchrun train.py")
        self.assertNotIn("~/shards", config["file_mounts"])
        self.assertTrue(config["setup"].endswith("pip install mine"))
        self.assertEqual(config["workdir"], str(self.folder / "trainer"))

    def test_again_it_leaves_alone_what_runs_and_what_is_being_started(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP, "causeway-first-oslo-1": Status.INIT}
        self.sky.jobs = {"causeway-first-berlin": Job.RUNNING}
        self.sky.requests = ["causeway-first-oslo-1", "causeway-first-oslo-2"]

        def started():
            for name in self.sky.requests:
                self.sky.clusters[name], self.sky.jobs[name] = Status.UP, Job.SETTING_UP
            self.sky.requests = []

        def trains():
            self.sky.jobs = {name: Job.RUNNING for name in self.sky.jobs}
        self.clock.at = {90: started, 150: trains}
        self.assertTrue(self.up().to_the_end())
        self.assertEqual(self.sky.launched, [])
        self.assertEqual(self.run_.invited, [])

    def test_a_machine_that_came_up_without_its_job_gets_it(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP}
        self.up().to_the_end()
        self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 1)
        self.assertIn("berlin: starts on the machine that is there", self.text())

    def test_one_that_is_taken_back_is_replaced_under_its_name_with_a_new_line(self):
        def stopped():
            self.sky.clusters["causeway-first-oslo-1"] = Status.STOPPED
            del self.sky.jobs["causeway-first-oslo-1"]
        self.clock.at = {60: lambda: self.sky.take_back("causeway-first-berlin"), 120: stopped}
        self.assertTrue(self.up().to_the_end())
        self.assertEqual(sorted(self.run_.invited), ["berlin", "berlin", "oslo-1", "oslo-1", "oslo-2"])
        lines = [task.secrets["CAUSEWAY_JOIN"] for _, task, _ in self.sky.launched]
        self.assertEqual(len(set(lines)), 5)
        self.assertIn("berlin: its machine is gone; starts another", self.text())
        self.assertIn("oslo-1: its machine is broken or stopped; takes its machine down", self.text())

    def test_a_start_that_fails_is_tried_again_and_later_each_time(self):
        error = RuntimeError("\x1b[31mno H100 in eu-central-1\x1b[0m of causeway://a:1/b/c/secret\nmore")
        self.sky.refuse = {"causeway-first-berlin": [error] * 3}
        times = []
        launch = self.sky.launch
        self.sky.launch = lambda task, cluster_name, **options: (
            times.append(self.clock.now) if cluster_name.endswith("berlin") else None,
            launch(task, cluster_name, **options))[1]
        self.assertTrue(self.up(GOOD.replace("1_000_000", "5_000_000")).to_the_end())
        self.assertIn("berlin: SkyPilot cannot start its machine: no H100 in eu-central-1 of causeway://...; "
                      "tries again in 0:30", self.text())
        pauses = [after - before for before, after in zip(times, times[1:])]
        self.assertEqual(len(pauses), 3)
        self.assertEqual(pauses, sorted(pauses))
        self.assertGreater(pauses[2], 2 * pauses[0] - 31)

    def test_a_site_that_always_fails_is_given_up_and_the_others_train_on(self):
        launch = self.sky.launch

        def fails(task, cluster_name, **options):
            came = launch(task, cluster_name, **options)
            if cluster_name.endswith("berlin"):
                self.sky.jobs[cluster_name] = Job.FAILED
            return came
        self.sky.launch = fails
        self.assertTrue(self.up(GOOD.replace("1_000_000", "10_000_000")).to_the_end())
        self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 5)
        self.assertIn("berlin: its program has ended (FAILED), and `sky logs causeway-first-berlin` has its words "
                      "while the machine is up; it has failed 5 times, and is given up", self.said)
        self.assertNotIn("causeway-first-berlin", self.sky.clusters)

    def test_a_place_that_skypilot_refuses_is_named_before_anything_starts(self):
        class Task(self.sky.Task):
            @classmethod
            def from_yaml_config(cls, config, **more):
                if config["resources"].get("infra") == "mars/x":
                    raise ValueError("Invalid resources: 'mars/x'")
                return super().from_yaml_config(config, **more)
        self.sky.Task = Task
        with self.assertRaises(FleetFileError) as raised:
            self.up(GOOD.replace("infra: gcp", "infra: mars/x")).to_the_end()
        self.assertEqual(str(raised.exception), f"{self.folder}/fleet.yaml:7: places.oslo: SkyPilot refuses it: "
                         "Invalid resources: 'mars/x'")
        self.assertEqual((self.sky.launched, self.run_.invited), ([], []))

    def test_a_place_that_is_refused_later_is_one_that_fails(self):
        def refuse(_site, _line):
            raise ValueError("the bucket is gone")
        up = self.up()
        self.clock.at = {60: lambda: (self.sky.take_back("causeway-first-berlin"),
                                      setattr(self.machines, "task", refuse))}
        self.assertTrue(up.to_the_end())
        self.assertIn("berlin: cannot be started: the bucket is gone; tries again in 0:30", self.text())

    def test_one_that_was_drained_stays_away_until_the_next_up(self):
        self.clock.at = {60: lambda: self.sky.jobs.update({"causeway-first-berlin": Job.SUCCEEDED})}
        self.assertTrue(self.up().to_the_end())
        self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 1)
        self.assertIn("berlin: has trained to its end, or was drained; takes its machine down", self.text())

    def test_where_all_were_drained_it_ends_and_a_new_up_brings_them_back(self):
        def drained():
            self.sky.jobs = {name: Job.SUCCEEDED for name in self.sky.jobs}
        self.clock.at = {60: drained}
        self.assertFalse(self.up().to_the_end())
        self.assertIn("no site is left, and the run has not ended", self.text())
        self.run_.finished = True  # So says a coordinator whose members have all left.
        up = self.up()
        self.clock.at = {self.clock.now + 60: lambda: setattr(self.run_, "finished", False)}
        self.assertTrue(up.to_the_end())
        self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 2)

    def test_past_the_budget_it_starts_nobody_and_ends_who_trains_whatever_the_coordinator_takes(self):
        def drains(_tokens):
            self.sky.jobs = {name: Job.SUCCEEDED for name in self.sky.jobs}
            return False

        def refuses(_tokens):
            raise RunError("observers may not")
        for end_at in (drains, refuses):
            with self.subTest(end_at=end_at.__name__):
                self.setUp()
                self.run_.tokens, self.run_.end_at = 2_000_000, end_at
                self.sky.clusters = {"causeway-first-berlin": Status.UP}
                self.sky.jobs = {"causeway-first-berlin": Job.RUNNING}
                self.assertTrue(self.up().to_the_end())
                self.assertEqual((self.sky.launched, self.sky.clusters), ([], {}))
                self.assertEqual(self.run_.exported, [self.folder / "model"])
                self.assertLess(self.clock.now, 200)

    def test_a_launch_that_is_being_posted_at_the_budget_leaves_no_machine(self):
        posts = []

        def start(work):
            future = Future()
            if len(self.sky.launched) == 3 and not self.run_.finished:  # berlin's second: posted while all end.
                posts.append(lambda: (work(), future.set_result(None)))
                return future
            return at_once(work)
        down = self.sky.down

        def posted_meanwhile(name):
            came = down(name)
            if posts:
                self.sky.down = down
                posts.pop()()
            return came
        self.sky.down = posted_meanwhile
        up = self.up()
        self.machines.start = start
        self.clock.at = {60: lambda: self.sky.take_back("causeway-first-berlin")}
        self.assertTrue(up.to_the_end())
        self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 2)
        self.assertEqual(self.sky.clusters, {})
        self.assertIn("berlin: is being started; tries again", self.said)

    def test_a_trainer_that_never_joins_is_given_up(self):
        self.run_.members = list
        self.assertFalse(self.up().to_the_end())
        self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 5)
        self.assertIn("berlin: was not in the run; it has failed 5 times, and is given up", self.said)
        self.assertEqual(self.sky.clusters, {})

    def test_a_place_that_is_not_in_the_run_is_replaced_whatever_its_job_says(self):
        for job, longest_s, said in ((RuntimeError("ssh: timeout"), 1800, "30:00 (unknown)"),
                                     (Job.RUNNING, 1800, "30:00 (running)"),
                                     (Job.SETTING_UP, 7200, "2:00:00 (setting_up)")):
            with self.subTest(job):
                self.setUp()
                self.clock.now = 50_000.0  # Of whoever has been up for long.
                job_status, downs = self.sky.job_status, []

                def hangs(cluster, job=job, job_status=job_status):
                    if cluster.endswith("berlin") and "causeway-first-berlin" not in self.sky.downs:
                        self.sky.jobs[cluster] = Job.SETTING_UP  # No member.
                        return job if isinstance(job, Exception) else {1: job}
                    return job_status(cluster)
                self.sky.job_status = hangs
                down = self.sky.down
                self.sky.down = lambda name, down=down, downs=downs: (downs.append(self.clock.now), down(name))[1]
                self.assertTrue(self.up(GOOD.replace("1_000_000", "30_000_000")).to_the_end())
                self.assertEqual(self.sky.starts().count("causeway-first-berlin"), 2)
                self.assertIn(f"berlin: is not in the run since {said}; takes its machine down", self.said)
                self.assertAlmostEqual(downs[0] - 50_000, longest_s, delta=91)

    def test_what_is_away_for_a_while_changes_nothing(self):
        def away():
            self.run_.away = RunError("no answer")
            self.sky.away = RuntimeError("the API server is gone")

        def back():
            self.run_.away = self.sky.away = None
        self.clock.at = {60: away, 300: back}
        self.assertTrue(self.up().to_the_end())
        self.assertEqual(len(self.sky.launched), 3)
        self.assertEqual(self.text().count("the coordinator: no answer; tries again"), 1)
        self.assertEqual(self.text().count("SkyPilot: the API server is gone; tries again"), 1)
        self.assertIn("the coordinator: goes on", self.text())

    def test_a_coordinator_that_has_ended_is_not_waited_for_without_end(self):
        self.clock.at = {300: lambda: setattr(self.run_, "away", RunError("no answer"))}
        self.assertFalse(self.up().to_the_end())
        self.assertEqual(self.said[-1], "the coordinator has not answered for 1:00:00; then it had 810k of 1M tokens. "
                         "If its run has ended, the model is where it ran. Machines go on, and cost: `down` ends them")
        self.assertLess(self.clock.now, 300 + 3600 + 60)

    def test_a_model_that_cannot_be_fetched_keeps_the_coordinator(self):
        def refuse(_folder):
            raise RunError("the disk is full")
        self.run_.export = refuse
        self.sky.clusters["causeway-first-coordinator"] = Status.UP
        self.assertFalse(self.up().to_the_end())
        self.assertIn("the model is not fetched: the disk is full", self.text())
        self.assertEqual(list(self.sky.clusters), ["causeway-first-coordinator"])


class OwnCoordinatorTest(Scene):
    TEXT = GOOD.replace("  join: ./operator\n  address: 203.0.113.5:7070\n",
                        "  launch: {infra: aws/eu-west-1, cpus: 8+, config: run.textproto}\n")

    def setUp(self):
        super().setUp()
        folder = self.folder / "certificates"
        (folder / "operator-fleet").mkdir(parents=True)
        (folder / "ca.key").touch()
        (folder / "operator-fleet/key.pem").touch()

    def test_it_comes_first_and_goes_last(self):
        self.assertTrue(self.up(self.TEXT).to_the_end())
        name, task, options = self.sky.launched[0]
        self.assertEqual((name, options), ("causeway-first-coordinator", {}))
        self.assertEqual(task.resources, {"infra": "aws/eu-west-1", "cpus": "8+", "memory": "16+",
                                          "disk_size": 100, "use_spot": False, "ports": [7070]})
        self.assertEqual(task.config["file_mounts"]["~/authority/ca.key"],
                         str(self.folder / "certificates/ca.key"))
        self.assertEqual((self.folder / "certificates/operator-fleet/coordinator").read_text(),
                         "203.0.113.9:7070\n")
        self.assertEqual(self.sky.downs[-1], "causeway-first-coordinator")
        self.assertEqual(self.sky.clusters, {})

    def test_one_that_ended_goes_on_where_its_run_is(self):
        for status, job in ((Status.STOPPED, None), (Status.UP, Job.FAILED), (Status.UP, Job.SUCCEEDED)):
            with self.subTest(status=status, job=job):
                self.setUp()
                name = "causeway-first-coordinator"
                self.sky.clusters[name] = status
                if job:
                    self.sky.jobs[name] = job
                self.assertTrue(self.up(self.TEXT).to_the_end())
                self.assertEqual(self.sky.starts()[0], name)
                self.assertEqual(self.sky.downs.count(name), 1)

    def test_one_whose_program_fails_meanwhile_is_started_again(self):
        name = "causeway-first-coordinator"

        def fails():
            self.sky.jobs[name] = Job.FAILED
            self.run_.away = RunError("no answer")
        launch = self.sky.launch

        def back(task, cluster_name, **options):
            if cluster_name == name:
                self.run_.away = None
            return launch(task, cluster_name, **options)
        self.sky.launch = back
        self.clock.at = {150: fails}
        self.assertTrue(self.up(self.TEXT).to_the_end())
        self.assertEqual(self.sky.starts().count(name), 2)
        self.assertEqual(self.sky.clusters, {})

    def test_one_whose_machine_goes_meanwhile_is_a_run_that_is_lost(self):
        name = "causeway-first-coordinator"

        def gone():
            self.sky.take_back(name)
            self.run_.away = RunError("no answer")
        self.clock.at = {150: gone}
        with self.assertRaisesRegex(RunError, r"is gone, and the run with it.*\(berlin, oslo-1, oslo-2\)"):
            self.up(self.TEXT).to_the_end()
        self.assertEqual(self.sky.starts().count(name), 1)

    def test_its_certificates_are_made_by_the_program_of_the_package(self):
        fleet = self.fleet(self.TEXT)
        (fleet.own.certificates / "operator-fleet/key.pem").unlink()
        program_ = self.folder / "causeway/bin/causeway-make-certificates"
        program_.parent.mkdir(parents=True)
        program_.write_text(f'#!/bin/sh\necho "$@" > {self.folder}/asked\n')
        program_.chmod(0o755)
        with mock.patch.object(_run, "__file__", str(self.folder / "causeway/fleet/_run.py")):
            _run.make_operator(fleet)
        self.assertEqual((self.folder / "asked").read_text(),
                         f"operator fleet --days=730 --dir={fleet.own.certificates}\n")

    def test_a_run_that_is_lost_is_not_begun_anew_beside_its_sites(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP}
        with self.assertRaisesRegex(RunError, "the machine of the coordinator is gone"):
            self.up(self.TEXT).to_the_end()
        self.assertEqual(self.sky.launched, [])


class DownTest(Scene):
    def down(self):
        fleet = self.fleet()
        return take_down(fleet, self.run_, Machines(self.sky, fleet, at_once), self.clock, self.said.append)

    def test_it_ends_what_is_there_and_what_is_being_started_and_nothing_else(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP, "causeway-first-old": Status.STOPPED,
                             "causeway-firsts-berlin": Status.UP, "mine": Status.UP,
                             "causeway-first-coordinator": Status.UP}
        self.sky.requests = ["causeway-first-oslo-1", "causeway-other-oslo-1"]
        self.assertTrue(self.down())
        self.assertEqual(self.sky.cancelled, ["causeway-first-oslo-1"])
        self.assertEqual(list(self.sky.clusters), ["causeway-firsts-berlin", "mine"])
        self.assertEqual(self.sky.downs[-1], "causeway-first-coordinator")
        self.assertEqual(self.run_.revoked, ["berlin", "oslo-1", "oslo-2"])

    def test_what_does_not_end_is_told(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP, "causeway-first-oslo-1": Status.UP}
        down = self.sky.down
        self.sky.down = lambda name: RuntimeError("busy") if name.endswith("berlin") else down(name)
        self.assertFalse(self.down())
        self.assertEqual(self.said.count("berlin: busy; tries again"), 1)
        self.assertEqual(self.said[-2:], [
            "berlin: is not down, and may cost: busy (causeway-first-berlin)",
            "`sky status` shows them, and `down` tries again"])
        self.assertIn("oslo-1: down", self.said)

    def test_where_nobody_says_what_is_there_nothing_is_called_done(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP, "causeway-first-old": Status.UP}
        self.sky.away = RuntimeError("no answer")
        self.assertFalse(self.down())
        self.assertEqual(list(self.sky.clusters), ["causeway-first-old"])
        self.assertEqual(self.said, [
            "SkyPilot does not say what is there: no answer; ends what it knows of",
            "berlin: down", "oslo-1: down", "oslo-2: down",
            "SkyPilot does not say what is there: no answer: machines of causeway-first-* that are there cost",
            "`sky status` shows them, and `down` tries again"])

    def test_one_error_of_skypilot_leaves_no_machine_up(self):
        names = ["causeway-first-berlin", "causeway-first-coordinator", "causeway-first-oslo-1"]
        for method in ("down", "status", "api_status"):
            with self.subTest(method):
                self.setUp()
                self.sky.clusters = {name: Status.UP for name in names}
                real, left = getattr(self.sky, method), [2]

                def fails_twice(*given, real=real, left=left, **more):
                    left[0] -= 1
                    if left[0] >= 0:
                        raise RuntimeError("connection reset")
                    return real(*given, **more)
                setattr(self.sky, method, fails_twice)
                self.assertTrue(self.down())
                self.assertEqual(self.sky.clusters, {})


class CommandTest(Scene):
    """As the program has it, with the real causewayctl, and nobody at the coordinator's address."""

    def work(self, command, **more):
        self.fleet()
        options = argparse.Namespace(**{"command": command, "file": self.folder / "fleet.yaml", "json": False,
                                        "interval": 30.0, "patience": 3600.0, "programs": BUILD / "bin", **more})
        return program.work(options, self.sky, self.clock, self.said.append)

    def python(self, *words):
        """With what is in the folder as its SkyPilot."""
        return tools.run_python("-m", *words, cwd=self.folder,
                                variables={"PYTHONPATH": f"{ROOT / 'worker/python'}:{self.folder}"})

    def test_plan_starts_nothing_invites_nobody_and_says_what_there_is_to_do(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP, "causeway-first-rome": Status.UP}
        self.sky.jobs = {"causeway-first-berlin": Job.RUNNING}
        self.assertTrue(self.work("plan"))
        self.assertEqual(self.sky.launched, [])
        text = self.text()
        self.assertIn("berlin: there, RUNNING (causeway-first-berlin)", text)
        self.assertIn("oslo-2: to be started (causeway-first-oslo-2)", text)
        self.assertEqual(text.count("SkyPilot does not plan it here: no cloud is set up"), 1)
        self.assertIn("rome: there, and not in the file", text)
        self.assertIn("The run ends at 1M tokens", text)

    def test_status_has_machines_where_the_coordinator_does_not_answer(self):
        self.sky.clusters = {"causeway-first-berlin": Status.UP}
        self.sky.jobs = {"causeway-first-berlin": Job.RUNNING}
        self.assertFalse(self.work("status", json=True))
        told = json.loads(self.text())
        self.assertEqual(told["places"][0], {
            "name": "berlin", "cluster": "causeway-first-berlin", "machine": "up", "job": "RUNNING",
            "where": "AWS/eu-central-1", "state": "", "step": None, "tokens": None,
            "tokens_per_second": None})
        self.assertEqual(told["places"][1]["machine"], "none")
        self.assertIn("operator", told["trouble"])

    def test_up_and_down_of_one_fleet_exclude_each_other_whatever_becomes_of_its_file(self):
        with program.lock(self.fleet()):
            (self.folder / "fleet.yaml").unlink()
            for command in ("up", "down"):
                with self.assertRaisesRegex(RunError, "is under way"):
                    self.work(command)

    def test_a_model_that_is_there_is_not_written_over(self):
        (self.folder / "model").mkdir()
        (self.folder / "model/config.json").touch()
        with self.assertRaisesRegex(RunError, "has something in it"):
            self.work("up")
        self.assertEqual(self.sky.launched, [])

    def test_with_the_model_fetched_up_takes_down_what_is_left(self):
        self.sky.down = lambda name: RuntimeError("busy")
        up = self.up()

        def export(folder):
            folder.mkdir()
            (folder / "config.json").touch()
        self.run_.export = export
        self.assertFalse(up.to_the_end())
        del self.sky.down
        self.assertEqual(len(self.sky.clusters), 3)
        self.assertTrue(self.work("up"))
        self.assertEqual((self.sky.clusters, len(self.sky.launched)), ({}, 3))

    def test_ctrl_c_leaves_the_machines_and_says_so(self):
        self.fleet()
        (self.folder / "sky.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
        status, _, said = self.python("causeway.fleet", "up", self.folder / "fleet.yaml")
        self.assertEqual(status, 130, said)
        self.assertIn("machines of the fleet go on, and cost", said)

    def test_a_file_that_cannot_be_used_ends_with_2_and_without_skypilot_it_says_what_is_missing(self):
        self.fleet()
        (self.folder / "bad.yaml").write_text("name: 1\n")
        for skypilot, file, status, said in (
                ("raise ImportError('no sky')\n", "fleet.yaml", 1, "(no sky): pip install 'skypilot"),
                ("", "bad.yaml", 2, "bad.yaml:1: budget_tokens: is missing")):
            (self.folder / "sky.py").write_text(skypilot)
            found, _, error = self.python("causeway", "fleet", "plan", self.folder / file)
            self.assertEqual(found, status, error)
            self.assertIn(said, error)


if __name__ == "__main__":
    tools.main()
