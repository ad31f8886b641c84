"""deploy/skypilot and deploy/kubeflow, by what reads them; and a spot machine's end, with clouds that only pretend."""

import contextlib
import copy
import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import tools
from tools import ROOT, flags_of, folder_of

if __name__ == "__main__":
    tools.go_on_with_validators()

# SkyPilot keeps files below HOME, and tells its authors who uses it.
HOME = tempfile.TemporaryDirectory(prefix="causeway_recipes_")
os.environ.update(HOME=HOME.name, SKYPILOT_DISABLE_USAGE_COLLECTION="1")

import sky  # noqa: E402
import sky.optimizer  # noqa: E402
import yaml  # noqa: E402
from kubeflow_trainer_api import models  # noqa: E402
from sky.skylet import constants  # noqa: E402
from sky.utils import dag_utils  # noqa: E402

sys.path.insert(0, str(ROOT / "worker" / "python"))

from causeway.fleet import __main__ as program  # noqa: E402
from causeway.fleet._file import read_fleet  # noqa: E402
from causeway.fleet._machines import Machines  # noqa: E402

# A cloud's machines, and their price an hour.
CATALOG = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
8x_H100_SECURE,H100,8,160,1504,,23.9,14.5,US,US-CA-2
8x_H100_SECURE,H100,8,160,1504,,23.9,12.5,CZ,EU-CZ-1
8x_H100_DEAR,H100,8,160,1504,,40,30,CZ,EU-CZ-1
"""
LINE = "causeway://203.0.113.5:7070/first/berlin/pin.secret"
# Says what it is asked, until the cloud takes the machine back.
CURL = """#!/bin/sh
echo "$*" >>"{folder}/asked"
case "$*" in
  *computeMetadata*) test -e "{folder}/back" && echo TRUE ;;
  *) exit 22 ;;
esac
"""
WORKER = """#!/bin/bash
trap 'echo handed over >>"{folder}/said"; exit 0' TERM
printf '%s\\n' "$@" >"{folder}/flags"
mkfifo "{folder}/never"
read -r answer <>"{folder}/never" & wait
"""


def flags_fit(test, text):
    """Every flag of a program that a script starts is one of its."""
    for started, flags in re.findall(r"(causeway-(?:coordinator|worker)) \w+((?:\\\n|[^\n&])*)", text):
        found = re.findall(r"--[a-z]\w*", flags)
        test.assertGreater(len(found), 2)
        for flag in found:
            test.assertIn(flag, flags_of(started))


class SkyPilot(unittest.TestCase):
    def fleet(self, coordinator_and_places):
        folder = folder_of(self)
        for made in ("shards", "wheels"):
            (folder / made).mkdir()
        (folder / "run.textproto").touch()
        (folder / "fleet.yaml").write_text(
            f"name: first\nbudget_tokens: 1000\ndata: shards\nwheel: wheels\n{coordinator_and_places}")
        return read_fleet(folder / "fleet.yaml")

    def config(self, name):
        return yaml.safe_load((ROOT / f"deploy/skypilot/{name}.yaml").read_text())

    def test_it_takes_both_files(self):
        hub = sky.Task.from_yaml_config(self.config("coordinator"))
        resources = next(iter(hub.resources))
        self.assertEqual((resources.ports, resources.use_spot), (["7070"], False))
        self.assertEqual(hub.file_mounts["~/authority/ca.key"], "certificates/ca.key")
        site = sky.Task.from_yaml_config(self.config("site"), secrets_overrides=[("CAUSEWAY_JOIN", LINE)])
        self.assertEqual(site.file_mounts["~/shards"], "shards")
        self.assertTrue(all(resources.use_spot for resources in site.resources))
        flags_fit(self, self.config("coordinator")["run"])
        flags_fit(self, self.config("site")["envs"]["TRAIN"])

    def test_a_line_is_shown_to_nobody(self):
        site = sky.Task.from_yaml_config(self.config("site"), secrets_overrides=[("CAUSEWAY_JOIN", LINE)])
        self.assertNotIn("pin.secret", str(site.to_yaml_config(use_user_specified_yaml=True)))
        self.assertNotIn("pin.secret", repr(site.secrets))
        self.assertEqual(site.secrets["CAUSEWAY_JOIN"].get_secret_value(), LINE)

    def test_it_takes_every_task_of_a_fleet(self):
        fleet = self.fleet("""
coordinator:
  launch: {infra: aws/eu-west-1, config: run.textproto}
places:
  berlin: {infra: aws/eu-central-1, accelerators: H100:8}
  oslo: {accelerators: {A100: 8, A100-80GB: 8}, spot: false}
  rome: {infra: gcp, cpus: 8+, count: 2}
""")
        machines = Machines(sky, fleet)
        tasks = {site.name: machines.task(site, LINE) for site in fleet.sites}
        self.assertEqual(list(tasks), ["berlin", "oslo", "rome-1", "rome-2"])
        berlin, = tasks["berlin"].resources
        self.assertEqual((str(berlin.cloud), berlin.region, berlin.accelerators, berlin.use_spot),
                         ("AWS", "eu-central-1", {"H100": 8}, True))
        self.assertEqual({next(iter(one.accelerators)) for one in tasks["oslo"].resources},
                         {"A100", "A100-80GB"})
        rome, = tasks["rome-1"].resources
        self.assertEqual((rome.accelerators, rome.cpus), (None, "8+"))
        self.assertEqual(tasks["rome-1"].file_mounts["~/shards"], fleet.data)
        hub, = machines.coordinator_task().resources
        self.assertEqual((hub.ports, hub.use_spot, hub.region), (["7070"], False, "eu-west-1"))
        # What a fleet asks of the module, as it is there.
        for call, given in (("launch", {"cluster_name", "idle_minutes_to_autostop", "down", "dryrun"}),
                            ("status", {"cluster_names", "refresh"}), ("job_status", {"cluster_name"}),
                            ("endpoints", {"cluster", "port"}), ("down", {"cluster_name"}),
                            ("api_cancel", {"request_ids", "silent"}), ("api_status", set()),
                            ("get", {"request_id"}), ("stream_and_get", {"request_id"})):
            self.assertLessEqual(given, set(inspect.signature(getattr(sky, call)).parameters), call)
        self.assertEqual(sky.StatusRefreshMode.AUTO.value, "AUTO")
        self.assertLessEqual({"INIT", "UP", "STOPPED", "AUTOSTOPPING", "PENDING"},
                             {status.value for status in sky.ClusterStatus})
        self.assertEqual({status.value for status in sky.JobStatus.nonterminal_statuses()},
                         {"INIT", "PENDING", "SETTING_UP", "RUNNING"})

    def test_its_plan_by_a_catalog_is_the_machine_that_costs_least(self):
        """What `causeway fleet plan` has it do, but for its server, and for accounts with a cloud."""
        planned = []

        def launch(task, cluster_name, dryrun):
            self.assertTrue(dryrun)
            dag = dag_utils.convert_entrypoint_to_dag(task)
            with mock.patch.object(sky.optimizer.sky_check, "get_cached_enabled_clouds_or_refresh",
                                   return_value=[sky.clouds.RunPod()]):
                sky.optimizer.Optimizer.optimize(dag, quiet=True)
            planned.append((cluster_name, dag.tasks[0].best_resources))

        catalogs = pathlib.Path(HOME.name, ".sky/catalogs", constants.CATALOG_SCHEMA_VERSION)
        for name, text in (("runpod/vms.csv", CATALOG),
                           ("common/accelerators.csv", "AcceleratorName,Clouds\nH100,['RunPod']\n")):
            (catalogs / name).parent.mkdir(parents=True, exist_ok=True)
            (catalogs / name).write_text(text)
        fleet = self.fleet("""
coordinator: {join: ./operator, address: "203.0.113.5:7070"}
places: {berlin: {infra: runpod, accelerators: "H100:8"}, oslo: {infra: runpod, accelerators: "H100:4"}}
""")
        offline = types.SimpleNamespace(Task=sky.Task, launch=launch, status=list, api_status=list,
                                        get=lambda came: came, stream_and_get=lambda came: came)
        said = []
        self.assertTrue(program.plan(fleet, Machines(offline, fleet), said.append))
        (cluster, taken), = planned
        self.assertEqual((cluster, taken.instance_type, taken.zone, taken.use_spot),
                         ("causeway-first-berlin", "8x_H100_SECURE", "EU-CZ-1", True))
        self.assertEqual(taken.get_cost(3600), 12.5)
        # There is no machine with four.
        self.assertIn("oslo: to be started (causeway-first-oslo)", said)
        self.assertEqual(sum("SkyPilot does not plan it here" in line for line in said), 1)

    def start_site(self, folder):
        """The script of a site, whose cloud and worker are those of above."""
        home = folder / "home"
        (home / "causeway/bin").mkdir(parents=True)
        (folder / "bin").mkdir()
        for path, text in ((folder / "bin/curl", CURL), (home / "causeway/bin/causeway-worker", WORKER)):
            path.write_text(text.format(folder=folder))
            path.chmod(0o755)
        script = subprocess.Popen(
            ["bash", "-c", self.config("site")["run"]], start_new_session=True, stdin=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(home), "PATH": f"{folder}/bin:{os.environ['PATH']}",
                 "CAUSEWAY_JOIN": LINE, **self.config("site")["envs"]})
        self.addCleanup(script.wait)
        self.addCleanup(self.kill, script.pid)
        return script

    @staticmethod
    def kill(group):
        with contextlib.suppress(ProcessLookupError):  # All have ended.
            os.killpg(group, signal.SIGKILL)

    def test_a_machine_that_is_taken_back_hands_over_and_stays_until_it_goes(self):
        folder = folder_of(self)
        script = self.start_site(folder)
        tools.wait_until(lambda: (folder / "asked").exists() and (folder / "flags").exists(), "the cloud is asked")
        self.assertEqual((folder / "flags").read_text().split(),
                         ["train", "--connect_timeout=10m", f"--data={folder}/home/shards",
                          f"--out={folder}/home/out"])
        self.assertFalse((folder / "said").exists())
        (folder / "back").touch()
        tools.wait_until((folder / "said").exists, "the worker hands over")
        # Ended well it would not be started again elsewhere.
        tools.wait_until(lambda: pathlib.Path(f"/proc/{script.pid}/comm").read_text() == "sleep\n",
                         "it waits for the end")
        self.assertEqual((folder / "said").read_text(), "handed over\n")

    def test_one_that_is_asked_to_end_hands_over_and_ends(self):
        folder = folder_of(self)
        script = self.start_site(folder)
        tools.wait_until((folder / "never").exists, "the worker runs")
        script.terminate()
        self.assertEqual(script.wait(timeout=60), 0)
        self.assertEqual((folder / "said").read_text(), "handed over\n")


class Kubeflow(unittest.TestCase):
    def setUp(self):
        self.runtime, self.job = yaml.safe_load_all((ROOT / "deploy/kubeflow/site.yaml").read_text())

    def kept(self, item):
        """What Kubeflow's types keep of it: all, unless a name is wrong."""
        kind = getattr(models, f"TrainerV1alpha1{item['kind']}")
        return json.loads(kind.from_dict(item).to_json())

    def test_its_types_have_every_field(self):
        for item in (self.runtime, self.job):
            self.assertEqual(self.kept(item), item)

    def test_a_field_that_is_none_is_found(self):
        job = copy.deepcopy(self.job)
        job["spec"]["trainer"]["numNode"] = job["spec"]["trainer"].pop("numNodes")
        self.assertNotEqual(self.kept(job), job)

    def test_the_job_is_one_of_the_runtime_and_its_worker_has_the_flags(self):
        self.assertEqual(self.job["spec"]["runtimeRef"]["name"], self.runtime["metadata"]["name"])
        pod = self.runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        flags_fit(self, container["args"][0])
        given = {item["name"] for item in container["env"]}
        for name in re.findall(r"\$([A-Z]\w+)", container["args"][0]):
            self.assertTrue(name in given or name.startswith("PET_"), name)
        # A PyTorch site keeps its key there.
        kept, = (item["value"] for item in container["env"] if item["name"] == "XDG_CONFIG_HOME")
        self.assertTrue(any(kept.startswith(f"{mount['mountPath']}/") for mount in container["volumeMounts"]))


if __name__ == "__main__":
    tools.main()
