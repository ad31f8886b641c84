"""docs/two_sites.md, command by command: each machine is a network namespace with a home of its own,
and a long link is between them. Usage: two_sites_test.py FOLDER_OF_PROGRAMS"""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import network
from network import ADDRESS, LinkSettings, Network
from processes import working_folder

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
LINK = LinkSettings(rate_mbit=20, rtt_ms=50)
HUB, BERLIN = "203.0.113.10", "203.0.113.20"
STEP = re.compile(r"^\*\*On (hub|berlin):\*\*\n\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Whatever is copied goes to the other machine's home.
SCP = """#!/bin/sh
[ "$1" = -r ] && shift
while [ $# -gt 1 ]; do files="$files $1"; shift; done
case $1 in
  203.0.113.20:*) cp -r $files "$HOME/../berlin/${1#*:}" ;;
  *) echo "scp: no such host: $1" >&2; exit 1 ;;
esac
"""


class Machines:
    """Runs what the page says on the machine that it names."""

    def __init__(self, made, folder):
        self.places = {"hub": made.coordinator, "berlin": made.workers[0]}
        self.folder = folder
        self.groups = []
        tools = folder / "bin"
        tools.mkdir()
        for program in ("causeway-coordinator", "causeway-worker", "causewayctl"):
            (tools / program).symlink_to(BIN / program)
        (tools / "causeway-make-certificates").symlink_to(ROOT / "deploy" / "make_certificates")
        (tools / "scp").write_text(SCP)
        (tools / "scp").chmod(0o755)
        for machine in self.places:
            (folder / machine).mkdir()
        self.path = f"{tools}:{os.environ['PATH']}"

    def run(self, machine, commands):
        """Returns what they print; what they start in the background goes on."""
        command = self.places[machine].command("sh", "-e", "-c", commands.replace(HUB, ADDRESS))
        # Files, no pipes: what stays in the background would keep them open.
        with open(self.folder / "said", "w+", encoding="utf-8") as said:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                cwd=self.folder / machine,
                env={"HOME": str(self.folder / machine), "PATH": self.path, "LC_ALL": "C.UTF-8"})
            self.groups.append(child.pid)
            status = child.wait(timeout=240)
            said.seek(0)
            text = said.read()
        if status != 0:
            raise AssertionError(f"on {machine}: status {status}\n{commands}\n{text}\n{self.logs()}")
        return text

    def logs(self):
        return "\n".join(f"{log}:\n{log.read_text()[-1500:]}"
                         for log in sorted(self.folder.glob("*/causeway/*.log")))

    def kill(self):
        """Whatever is left."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass


class TwoSitesTest(unittest.TestCase):

    def test_the_page_leads_to_a_model_that_both_sites_have(self):
        steps = STEP.findall((ROOT / "docs" / "two_sites.md").read_text())
        self.assertGreater(len(steps), 8)
        with Network(BIN / "causeway-wan-link", [LINK]) as made, working_folder() as folder:
            machines = Machines(made, folder)
            try:
                said = [(machine, machines.run(machine, commands)) for machine, commands in steps]
                everything = "\n".join(text for _, text in said)
                self.assertIn("This site can join", everything)
                self.assertRegex(everything, r"run first-\w+: finished, step 90 of 90")
                sums = re.findall(r"^([0-9a-f]{64})  model/model\.safetensors$", everything, re.MULTILINE)
                self.assertEqual(len(sums), 2, everything)
                self.assertEqual(sums[0], sums[1])
                hub = folder / "hub" / "causeway"
                summary = json.loads((hub / "run" / "summary.json").read_text())
                self.assertEqual((summary["steps"], summary["hash_mismatches"]), (90, 0))
                self.assertGreater(summary["hash_checks"], 0)
                self.assertGreater(made.links[0].counters()["up"]["delivered"]["bytes"], 1_000_000)
            finally:
                machines.kill()


if __name__ == "__main__":
    network.skip_if_impossible()
    unittest.main(verbosity=2)
