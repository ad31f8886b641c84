"""The run that a fleet trains in, by causewayctl."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Container, Dict

if TYPE_CHECKING:
    from causeway.fleet._file import Fleet

_INVITED_FOR = "2h"  # Until a machine is there, set up, and boards.
_NO_ANSWER = 3
_PATIENCE_S = 60


class RunError(Exception):
    """The coordinator, or causewayctl, said no."""


class NoAnswer(RunError):
    """The coordinator does not answer."""


class Run:
    """Answers of the coordinator. Methods raise RunError."""

    def __init__(self, fleet: Fleet, programs: Path):
        self._fleet = fleet
        self._programs = programs

    def _ask(self, *words: str, patience_s: float | None = _PATIENCE_S) -> str:
        program = self._programs / "causewayctl"
        try:
            done = subprocess.run(
                [str(program), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=patience_s, check=False,
                # Who asks stands in no list of processes.
                env={**os.environ, "CAUSEWAY_JOIN": self._fleet.join})
        except subprocess.TimeoutExpired as error:
            raise NoAnswer(f"causewayctl {words[0]} has no answer after {patience_s} s") from error
        except OSError as error:
            raise RunError(f"{program} cannot be run: {error}") from error
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip().removeprefix("causewayctl: ") or f"status {done.returncode}"
        raise (NoAnswer if done.returncode == _NO_ANSWER else RunError)(said)

    def status(self) -> Dict[str, Any]:
        """As `causewayctl status --json`."""
        return json.loads(self._ask("status", "--json"))

    def invite(self, site: str) -> str:
        """A line for that site; one that is open is good for nothing any more."""
        address = self._fleet.address
        if self._fleet.own is not None and not address:  # It knows no address but its cloud's own.
            address = Path(self._fleet.join, "coordinator").read_text(encoding="utf-8").strip()
        words = [f"--expires={_INVITED_FOR}", *([f"--address={address}"] if address else [])]
        return json.loads(self._ask("invite", site, "--json", *words))[0]["line"]

    def revoke(self, sites: Container[str]) -> None:
        """Their open invitations, as far as the coordinator answers."""
        with contextlib.suppress(RunError):
            for made in json.loads(self._ask("invitations", "--json")):
                if made["name"] in sites and made["state"] == "open":
                    self._ask("revoke", made["name"])

    def end_at(self, tokens: int) -> bool:
        """Training ends there. False: so many are trained already, and who trains hands over and leaves."""
        try:
            self._ask("stop", f"--at_tokens={tokens}")
        except NoAnswer:
            raise
        except RunError:
            if self.status()["tokens"] < tokens:
                raise
            self._ask("drain", "--all")
            return False
        return True

    def export(self, folder: Path) -> str:
        return self._ask("export", f"--out={folder}", patience_s=None).strip()


def find_programs(given: Path | None) -> Path:
    """The folder of causewayctl: as given, else the package's, else what PATH has."""
    own = Path(__file__).resolve().parents[1] / "bin"
    on_path = shutil.which("causewayctl")
    for folder in (given, own, Path(on_path).parent if on_path else None):
        if folder is not None and (folder / "causewayctl").exists():
            return folder
    raise RunError("there is no causewayctl: install the wheel of deploy/build_wheel, or name a build's bin "
                   "with --programs")


def _make_certificates() -> Path:
    package = Path(__file__).resolve().parents[1]
    for program in (package / "bin" / "causeway-make-certificates",
                    package.parents[2] / "deploy" / "make_certificates"):
        if program.exists():
            return program
    on_path = shutil.which("causeway-make-certificates")
    if on_path is None:
        raise RunError("there is no causeway-make-certificates: install the wheel of deploy/build_wheel")
    return Path(on_path)


def make_operator(fleet: Fleet) -> None:
    """The authority of a coordinator that is to be launched, and an operator's certificate of it."""
    assert fleet.own is not None
    folder = fleet.own.certificates
    for made, words in (("ca.key", ("init",)), ("operator-fleet/key.pem", ("operator", "fleet"))):
        if (folder / made).exists():
            continue
        done = subprocess.run([str(_make_certificates()), *words, "--days=730", f"--dir={folder}"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RunError(done.stderr.strip())


def remember_address(fleet: Fleet, address: str) -> None:
    """Beside the operator's certificate, where causewayctl looks for it."""
    if not re.fullmatch(r"\S+:\d+", address):
        raise RunError(f'SkyPilot says that the coordinator is at "{address}": expected HOST:PORT')
    Path(fleet.join, "coordinator").write_text(f"{address}\n", encoding="utf-8")
