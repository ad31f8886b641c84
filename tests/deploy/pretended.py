"""A cloud, a run and a time that only pretend, for tests of causeway fleet."""

import enum
import os
import sys
import types
import unittest
import unittest.mock
from concurrent.futures import Future

import tools
from tools import ROOT

sys.path.insert(0, str(ROOT / "worker" / "python"))
try:
    from causeway.fleet._file import read_fleet
    from causeway.fleet._machines import Machines
    from causeway.fleet._up import Up
except ImportError as missing:
    print(f"SKIP: {missing} (deploy/packages_deploy)")
    sys.exit(tools.SKIPPED)

GOOD = """\
name: first
coordinator:
  join: ./operator
  address: 203.0.113.5:7070
places:
  berlin: {infra: aws/eu-central-1, accelerators: H100:8}
  oslo: {infra: gcp, accelerators: A100:8, count: 2, spot: false}
budget_tokens: 1_000_000
data: shards
wheel: wheels
"""


class Status(enum.Enum):
    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"
    AUTOSTOPPING = "AUTOSTOPPING"


class Job(enum.Enum):
    RUNNING = "RUNNING"
    SETTING_UP = "SETTING_UP"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class ClusterDoesNotExist(ValueError):
    pass


class Task:
    def __init__(self, config, secrets):
        self.config = config
        self.secrets = secrets
        self.resources = config["resources"]

    @classmethod
    def from_yaml_config(cls, config, env_overrides=None, secrets_overrides=None):
        return cls(config, dict(secrets_overrides or []))


class PretendedSky:
    """SkyPilot's module as far as a fleet takes it. A request's id is what it comes to."""

    Task = Task
    StatusRefreshMode = types.SimpleNamespace(AUTO="AUTO")

    def __init__(self):
        self.clusters = {}  # Name: status, by Status.
        self.jobs = {}      # Name: Job of its last job.
        self.launched = []  # (name, task, options), in order.
        self.requests = []  # Launches under way.
        self.cancelled = []
        self.downs = []
        self.refuse = {}    # Name: errors of its next launches.
        self.away = None    # Raised by all.

    def get(self, request):
        if isinstance(request, Exception):
            raise request
        return request

    stream_and_get = get

    def status(self, cluster_names=None, refresh=None):
        if self.away:
            raise self.away
        return [{"name": name, "status": status, "cloud": "AWS", "region": "eu-central-1"}
                for name, status in self.clusters.items() if cluster_names is None or name in cluster_names]

    def job_status(self, cluster):
        return {1: self.jobs[cluster]} if cluster in self.jobs else {None: None}

    def api_status(self):
        return [types.SimpleNamespace(request_id=name, cluster_name=name, name="sky.launch")
                for name in self.requests]

    def api_cancel(self, request_ids, silent=False):
        self.cancelled += request_ids
        self.requests = [name for name in self.requests if name not in request_ids]

    def launch(self, task, cluster_name, dryrun=False, **options):
        if dryrun:
            return RuntimeError("\x1b[33mno cloud is set up\x1b[0m")
        self.launched.append((cluster_name, task, options))
        if self.refuse.get(cluster_name):
            return self.refuse[cluster_name].pop(0)
        self.clusters[cluster_name] = Status.UP
        self.jobs[cluster_name] = Job.RUNNING
        return (1, None)

    def down(self, cluster_name):
        self.downs.append(cluster_name)
        self.jobs.pop(cluster_name, None)
        if self.clusters.pop(cluster_name, None) is None:
            return ClusterDoesNotExist(cluster_name)
        return None

    def take_back(self, cluster):
        """As a cloud does."""
        del self.clusters[cluster], self.jobs[cluster]

    def endpoints(self, cluster, port):
        return {port: f"http://203.0.113.9:{port}"}

    def starts(self):
        return [name for name, _, _ in self.launched]


class PretendedRun:
    """Who has a machine whose job runs is a member, and trains 1000 tokens a second."""

    def __init__(self, sky):
        self.sky = sky
        self.tokens = 0
        self.budget = float("inf")
        self.finished = False
        self.invited = []
        self.revoked = []
        self.exported = []
        self.away = None

    def members(self):
        return [name.removeprefix("causeway-first-") for name, job in self.sky.jobs.items()
                if job is Job.RUNNING and self.sky.clusters[name] is Status.UP]

    def train(self, seconds):
        self.tokens += int(1000 * seconds) * len(self.members())
        if self.tokens >= self.budget:
            self.finished = True
            self.sky.jobs = {name: Job.SUCCEEDED for name in self.sky.jobs}

    def status(self):
        if self.away:
            raise self.away
        return {"finished": self.finished, "tokens": self.tokens, "run_step": 0,
                "config": {"train": {"steps": 10**9}},
                "workers": [{"worker_id": name, "state": "ACTIVE", "tokens_per_second": 1000.0, "step": 3,
                             "tokens": 5} for name in self.members()]}

    def invite(self, site):
        self.invited.append(site)
        return f"causeway://203.0.113.5:7070/first/{site}/secret{len(self.invited)}"

    def revoke(self, sites):
        self.revoked += sites

    def end_at(self, tokens):
        self.budget = tokens
        return True

    def export(self, folder):
        self.exported.append(folder)
        return "the model is there"


class PretendedTime:
    """Time passes while one sleeps; `at` has what happens, by second."""

    def __init__(self, run):
        self.run = run
        self.now = 0.0
        self.at = {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for second in sorted(self.at):
            if second <= self.now:
                self.at.pop(second)()
        self.run.train(seconds)
        if self.now > 100_000:
            raise AssertionError("never ends")


def at_once(work):
    future = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


class Scene(unittest.TestCase):
    """A folder with a fleet's file, and a world for it."""

    def setUp(self):
        self.folder = tools.folder_of(self)
        state = unittest.mock.patch.dict(os.environ, XDG_STATE_HOME=f"{self.folder}/state")
        state.start()
        self.addCleanup(state.stop)
        for name in ("operator", "shards", "wheels", "trainer"):
            (self.folder / name).mkdir()
        (self.folder / "run.textproto").write_text('run_name: "first"')
        self.sky = PretendedSky()
        self.run_ = PretendedRun(self.sky)
        self.clock = PretendedTime(self.run_)
        self.said = []

    def fleet(self, text=GOOD):
        (self.folder / "fleet.yaml").write_text(text)
        return read_fleet(self.folder / "fleet.yaml")

    def up(self, text=GOOD):
        fleet = self.fleet(text)
        self.machines = Machines(self.sky, fleet, at_once)
        return Up(fleet, self.run_, self.machines, self.clock, self.said.append)

    def text(self):
        return "\n".join(self.said)
