"""The machines of a fleet, by SkyPilot's API (0.14). `sky` is that module, or what stands in for it."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List

import yaml

from causeway.fleet._file import COORDINATOR, Fleet, FleetFileError, Place, Site

PORT = 7070
_IDLE_MINUTES = 10  # Then a site's machine ends whose trainer has ended, whoever looks.
SETS_UP = ("INIT", "PENDING", "SETTING_UP")
_RUNS = (*SETS_UP, "RUNNING")
_NO_LINE = "causeway://HOST:PORT/RUN/NAME/..."
_LINE = re.compile(r"causeway://\S+")

Start = Callable[[Callable[[], None]], "Future[None]"]


def start_thread(work: Callable[[], None]) -> Future[None]:
    """Ends with the process, which waits for no cloud."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # SkyPilot's own may be SystemExit.
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def first_line(error: BaseException) -> str:
    """For people: without colors, and without a line that it may have in it."""
    text = _LINE.sub("causeway://...", re.sub(r"\x1b\[[0-9;]*m", "", str(error))).strip()
    return text.splitlines()[0] if text else type(error).__name__


@dataclass(frozen=True)
class Machine:
    state: str  # starting, up, ending, or broken: to be taken down.
    job: str = ""  # Of one that is up: its last job as SkyPilot says; empty: it has none.
    where: str = ""

    @property
    def works(self) -> bool:
        return self.state in ("starting", "ending") or self.job in (*_RUNS, "UNKNOWN")


def _recipe(name: str) -> Dict[str, Any]:
    """deploy/skypilot, which the wheel has beside this file."""
    here = Path(__file__).resolve()
    folder = here.parent / "skypilot"
    if not folder.exists():
        folder = here.parents[4] / "deploy" / "skypilot"
    return yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))


def _resources(recipe: Dict[str, Any], place: Place) -> Dict[str, Any]:
    resources = {**recipe, "use_spot": place.spot}
    if place.accelerators or place.cpus:
        resources.pop("accelerators", None)
    given = {name: getattr(place, name) for name in ("infra", "accelerators", "cpus", "memory")}
    return {**resources, **{name: value for name, value in given.items() if value}}


class Machines:
    """Methods raise what SkyPilot raises."""

    def __init__(self, sky: Any, fleet: Fleet, start: Start = start_thread):
        self._sky = sky
        self._fleet = fleet
        self.start = start

    def task(self, site: Site, line: str) -> Any:
        """A site's task. The line is a secret there, which SkyPilot shows nobody."""
        fleet = self._fleet
        config = self._config(_recipe("site"), site.name, site.place)
        if fleet.command:
            config["envs"]["TRAIN"] = fleet.command
        config["envs"]["SHARDS"] = fleet.data
        if not fleet.data:
            del config["file_mounts"]["~/shards"]
        if fleet.setup:
            config["setup"] += fleet.setup
        if fleet.workdir:
            config["workdir"] = fleet.workdir
        return self._sky.Task.from_yaml_config(config, secrets_overrides=[("CAUSEWAY_JOIN", line)])

    def tasks(self) -> Dict[str, Any]:
        """All, as SkyPilot takes them, with a line that counts for nothing. FleetFileError: what it refuses."""
        tasks, faults = {}, {}
        wanted: Dict[str, Any] = {} if self._fleet.own is None else {COORDINATOR: self._fleet.own}
        for name, place in {**wanted, **{site.name: site for site in self._fleet.sites}}.items():
            try:
                tasks[name] = self.coordinator_task() if name == COORDINATOR else self.task(place, _NO_LINE)
            except Exception as error:
                faults[place.key] = f"{place.key}: SkyPilot refuses it: {first_line(error)}"
        if faults:
            raise FleetFileError("\n".join(faults.values()))
        return tasks

    def coordinator_task(self) -> Any:
        own = self._fleet.own
        assert own is not None
        config = self._config(_recipe("coordinator"), COORDINATOR, own.place)
        mounts = config["file_mounts"]
        mounts["~/run.textproto"] = str(own.config)
        for name in ("ca.pem", "ca.key"):
            mounts[f"~/authority/{name}"] = str(own.certificates / name)
        if not (own.certificates / "ca.key").exists():  # `up` makes it, and `plan` does without.
            del mounts["~/authority/ca.pem"], mounts["~/authority/ca.key"]
        return self._sky.Task.from_yaml_config(config)

    def _config(self, config: Dict[str, Any], name: str, place: Place) -> Dict[str, Any]:
        wheel = self._fleet.wheel
        mounts = config["file_mounts"]
        mounts.pop("~/wheels")
        mounts["~/wheels" if wheel.is_dir() else f"~/wheels/{wheel.name}"] = str(wheel)
        config.update(name=self._fleet.cluster(name), resources=_resources(config["resources"], place))
        return config

    def _launches(self) -> List[Any]:
        """Requests under way that start machines of this fleet."""
        return [request for request in self._sky.api_status()
                if (request.cluster_name or "").startswith(self._fleet.prefix)
                and request.name.endswith("launch")]

    def look(self, refresh: bool = True) -> Dict[str, Machine]:
        """All machines of this fleet by their name in it, as the clouds say if `refresh`."""
        sky, prefix = self._sky, self._fleet.prefix
        launched = {request.cluster_name[len(prefix):] for request in self._launches()}
        records = [record for record in sky.get(sky.status()) if record["name"].startswith(prefix)]
        if records and refresh:
            records = sky.get(sky.status([record["name"] for record in records],
                                         refresh=sky.StatusRefreshMode.AUTO))
        found = {name: Machine("starting") for name in launched}
        for record in records:
            name = record["name"][len(prefix):]
            state = "starting" if name in launched else {
                "UP": "up", "AUTOSTOPPING": "ending", "PENDING": "starting"}.get(record["status"].value, "broken")
            where = "/".join(filter(None, (record.get("cloud"), record.get("region"))))
            found[name] = Machine(state, self._job(record["name"]) if state == "up" else "", where)
        return found

    def _job(self, cluster: str) -> str:
        sky = self._sky
        try:
            jobs = sky.get(sky.job_status(cluster))
        except Exception:  # Its machine may be gone, which the next look says.
            return "UNKNOWN"
        last = next(iter(jobs.values()), None)
        return "" if last is None else last.value

    def launch(self, name: str, task: Any) -> None:
        """Until its job is submitted; a site's machine ends by itself once that is over."""
        sky, own = self._sky, name == COORDINATOR
        ends = {} if own else {"idle_minutes_to_autostop": _IDLE_MINUTES, "down": True}
        sky.get(sky.launch(task, cluster_name=self._fleet.cluster(name), **ends))

    def dry_run(self, name: str, task: Any) -> None:
        """SkyPilot says which machine it would take, and its price."""
        self._sky.stream_and_get(
            self._sky.launch(task, cluster_name=self._fleet.cluster(name), dryrun=True))

    def address(self) -> str:
        """HOST:PORT of the fleet's own coordinator."""
        sky = self._sky
        found = sky.get(sky.endpoints(self._fleet.cluster(COORDINATOR), PORT))
        return str(next(iter(found.values()), "")).rpartition("://")[2]

    def down(self, names: Iterable[str]) -> Dict[str, str]:
        """Takes them down, and stops what starts them. Returns why not, by name; raises nothing."""
        sky = self._sky
        names = list(names)
        clusters = {self._fleet.cluster(name): name for name in names}
        failed: Dict[str, str] = {}
        try:
            under_way = [request.request_id for request in self._launches() if request.cluster_name in clusters]
            if under_way:
                sky.get(sky.api_cancel(under_way, silent=True))
        except Exception as error:  # What is being started may come up after it.
            failed = dict.fromkeys(names, first_line(error))
        requests = {}
        for ask in (lambda cluster: requests.update({cluster: sky.down(cluster)}),
                    lambda cluster: sky.get(requests[cluster]) if cluster in requests else None):
            for cluster, name in clusters.items():
                try:
                    ask(cluster)
                except Exception as error:
                    if type(error).__name__ != "ClusterDoesNotExist":
                        failed[name] = first_line(error)
        return failed
