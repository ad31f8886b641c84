"""fleet.yaml: what may stand in it. Every fault is told, with its line and key."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import yaml

COORDINATOR = "coordinator"  # The machine of that name, where the fleet has one of its own.
MOST_SITES = 64


class FleetFileError(Exception):
    """The file cannot be used; says all that is wrong with it."""


@dataclass(frozen=True)
class Place:
    """Where machines are, and of which kind; what is empty is as the recipe has it."""

    infra: str = ""
    accelerators: Any = None
    cpus: str = ""
    memory: str = ""
    count: int = 1
    spot: bool = True


@dataclass(frozen=True)
class Site:
    name: str  # As the coordinator knows it.
    place: Place
    key: str = ""  # Where its place stands in the file.


@dataclass(frozen=True)
class OwnCoordinator:
    """A coordinator that is a machine of the fleet."""

    place: Place
    config: Path
    certificates: Path  # The authority's folder; made with it.
    key: str = ""  # Where it stands in the file.


@dataclass(frozen=True)
class Fleet:
    name: str
    join: str  # An operator's, as causewayctl takes it.
    address: str  # HOST:PORT where sites reach the coordinator; empty: where it says.
    own: Optional[OwnCoordinator]
    sites: Tuple[Site, ...]
    budget_tokens: int
    model: Path
    wheel: Path
    data: str = ""
    command: str = ""
    setup: str = ""
    workdir: str = ""

    @property
    def prefix(self) -> str:
        """Of its clusters' names. A fleet's name has no dash, so that no other fleet's begins so."""
        return f"causeway-{self.name}-"

    def state(self, what: str) -> Path:
        """A file with what this user's machine knows of the fleet, in a folder that is there."""
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "causeway", "fleet")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.name}.{what}"

    def cluster(self, name: str) -> str:
        return self.prefix + name


# Reads a value, or raises ValueError with what was expected.
Read = Callable[[yaml.Node], Any]


def _said(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        shown = re.sub(r"causeway://[^\s\"']+", "causeway://...", node.value)  # A line is a secret.
        return f'"{shown}"' if shown else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _text(node: yaml.Node, pattern: str = ".+", what: str = "text") -> str:
    if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(pattern, node.value, re.DOTALL):
        raise ValueError(f"expected {what}, got {_said(node)}")
    return node.value


def _name(node: yaml.Node) -> str:
    return _text(node, "[a-z][a-z0-9]{0,19}", "1 .. 20 small letters and digits, a letter first")


def _address(node: yaml.Node) -> str:
    return _text(node, r"\S+:\d+", "HOST:PORT")


def _flag(node: yaml.Node) -> bool:
    return _text(node, "true|false", "true or false") == "true"


def _whole(most: float) -> Read:
    def read(node: yaml.Node) -> int:
        value = float(_text(node, r"[0-9][0-9_]*(\.\d+)?([eE][+]?\d+)?", "a number").replace("_", ""))
        if not (1 <= value <= most and value == int(value)):
            raise ValueError(f"expected a whole number, 1 .. {most:g}, got {_said(node)}")
        return int(value)
    return read


def _accelerators(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode) or not node.value:
        raise ValueError(f"expected GPUs, as H100:8, or a mapping of what will do, got {_said(node)}")
    value = yaml.safe_load(yaml.serialize(node))
    json.dumps(value)  # Raises for what no SkyPilot reads.
    return value


class _Reader:
    """Goes through the file, and collects what is wrong."""

    def __init__(self, file: Path):
        self.file = file
        self.folder = file.absolute().parent
        self.faults: List[Tuple[int, str]] = []

    def fault(self, node: yaml.Node, key: str, what: str) -> None:
        self.faults.append((node.start_mark.line + 1, f"{key}: {what}"))

    def at(self, node: yaml.Node, key: str) -> str:
        return f"{self.file}:{node.start_mark.line + 1}: {key}"

    def mapping(self, node: yaml.Node, where: str) -> Dict[str, Tuple[yaml.Node, yaml.Node]]:
        """The nodes of key and value, by key. `where`: its own key and a dot; empty: the file's."""
        if not isinstance(node, yaml.MappingNode):
            self.fault(node, where.rstrip(".") or "the file", f"expected a mapping, got {_said(node)}")
            return {}
        found: Dict[str, Tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fault(key, where.rstrip(".") or "the file", f"expected a name, got {_said(key)}")
                continue
            if str(key.value) in found:
                self.fault(key, f"{where}{key.value}", "is there twice")
            found[str(key.value)] = (key, value)
        return found

    def fields(self, node: yaml.Node, where: str, known: Dict[str, Read], *needed: str) -> Dict[str, Any]:
        """What could be read."""
        given = self.mapping(node, where)
        values = {}
        for name, (key, value) in given.items():
            if name not in known:
                self.fault(key, f"{where}{name}", f"is not known here; there are {', '.join(known)}")
                continue
            try:
                values[name] = known[name](value)
            except (ValueError, TypeError, OSError, RuntimeError, yaml.YAMLError) as error:
                self.fault(value, f"{where}{name}", (str(error).splitlines() or ["cannot be read"])[0])
        for name in needed:
            if name not in given and isinstance(node, yaml.MappingNode):
                self.fault(node, f"{where}{name}", "is missing")
        return values

    def path(self, what: str = "") -> Read:
        """A path from the file's folder; with `what` there must be such a thing."""
        def read(node: yaml.Node) -> Path:
            path = self.folder / Path(_text(node)).expanduser()
            if what and not path.exists():
                raise ValueError(f"there is no {path}: expected {what}")
            return path
        return read

    def data(self, node: yaml.Node) -> str:
        return _text(node) if "://" in _text(node) else str(self.path("shards, or a bucket's URL")(node))

    def join(self, node: yaml.Node) -> str:
        text = _text(node)
        if "causeway://" in text:
            raise ValueError("a line is a secret: put it into a file for yourself alone (chmod 600), and "
                             "give @FILE")
        if text.startswith("@"):
            return f"@{self.folder / Path(text[1:]).expanduser()}"
        return str(self.folder / Path(text).expanduser()) if text.startswith((".", "~")) else text

    def place(self, where: str) -> Read:
        return lambda node: Place(**self.fields(node, where, {
            "infra": _text, "accelerators": _accelerators, "cpus": _text, "memory": _text,
            "count": _whole(MOST_SITES), "spot": _flag}))

    def own(self, node: yaml.Node) -> OwnCoordinator:
        found = self.fields(node, "coordinator.launch.", {
            "infra": _text, "cpus": _text, "memory": _text, "config": self.path("the run's configuration"),
            "certificates": self.path()}, "config")
        return OwnCoordinator(config=found.pop("config", Path()),
                              certificates=found.pop("certificates", self.folder / "certificates"),
                              place=Place(spot=False, **found), key=self.at(node, "coordinator.launch"))

    def coordinator(self, node: yaml.Node) -> Dict[str, Any]:
        found = self.fields(node, "coordinator.", {"join": self.join, "launch": self.own, "address": _address})
        # By its keys: what is there and wrong has been told.
        keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else ["join"]
        if ("join" in keys) == ("launch" in keys):
            self.fault(node, "coordinator", "expected either join, who you are at one that runs, or launch")
        return found

    def sites(self, node: yaml.Node) -> Tuple[Site, ...]:
        sites: Dict[str, Site] = {}
        for name, (key, value) in self.mapping(node, "places.").items():
            if not re.fullmatch("[a-z]([a-z0-9-]{0,29}[a-z0-9])?", name) or name == COORDINATOR:
                self.fault(key, f"places.{name}", "expected another name: 1 .. 31 small letters, digits and "
                           f"dashes, a letter first, and not {COORDINATOR}")
            place = self.place(f"places.{name}.")(value)
            for index in range(place.count):
                site = name if place.count == 1 else f"{name}-{index + 1}"
                if site in sites:
                    self.fault(key, f"places.{name}", f"there would be two sites {site}")
                sites[site] = Site(site, place, self.at(key, f"places.{name}"))
        if not 1 <= len(sites) <= MOST_SITES:
            self.fault(node, "places", f"expected 1 .. {MOST_SITES} sites, got {len(sites)}")
        return tuple(sites.values())

    def fleet(self, root: yaml.Node) -> Optional[Fleet]:
        """None: there are faults."""
        found = self.fields(root, "", {
            "name": _name, "coordinator": self.coordinator, "places": self.sites,
            "budget_tokens": _whole(2**62), "model": self.path(),
            "wheel": self.path("the wheel, or a folder with it"), "data": self.data, "command": _text,
            "setup": _text, "workdir": self.path("the folder of your trainer"),
        }, "name", "coordinator", "places", "budget_tokens")
        wheel = found.pop("wheel", self.folder / "build" / "wheels")
        if not self.faults and not ("data" in found or "command" in found):
            self.fault(root, "data", "is missing: shards for causeway-worker (or a command of your own)")
        if not self.faults and not wheel.exists():
            self.fault(root, "wheel", f"is missing, and there is no {wheel}: deploy/build_wheel makes it")
        if self.faults:
            return None
        coordinator = found.pop("coordinator")
        own = coordinator.get("launch")
        join = coordinator["join"] if own is None else str(own.certificates / "operator-fleet")
        return Fleet(join=join, address=coordinator.get("address", ""), own=own, sites=found.pop("places"),
                     model=found.pop("model", self.folder / "model"), wheel=wheel,
                     workdir=str(found.pop("workdir", "")), **found)


def read_fleet(file: Path) -> Fleet:
    """FleetFileError lists every fault."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError) as error:
        raise FleetFileError(f"{file} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise FleetFileError(f"{file} is no YAML: {error}") from error
    if root is None:
        raise FleetFileError(f"{file} is empty: docs/deploy.md has one to start from")
    reader = _Reader(file)
    fleet = reader.fleet(root)
    if fleet is None:
        raise FleetFileError("\n".join(f"{file}:{line}: {what}" for line, what in sorted(reader.faults)))
    return fleet
