"""docs/two_sites.md, command by command: each machine is a network namespace with a home of its own,
and a long link is between them. Usage: two_sites_test.py FOLDER_OF_PROGRAMS"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import network
from network import ADDRESS, LinkSettings, Network
from processes import working_folder

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
PATIENCE_S = 300
LINK = LinkSettings(rate_mbit=20, rtt_ms=50)
STEP = re.compile(r"^\*\*On (hub|berlin):\*\*\n\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A line as the page shows it, and as it is printed.
SHOWN = re.compile(r"causeway://\S+/first/(hub|berlin)/\.\.\.")
PRINTED = re.compile(r"^causeway://\S+/first/(hub|berlin)/\S+$", re.MULTILINE)


class Machines:
    """Runs what the page says on the machine that it names."""

    def __init__(self, made, folder, programs):
        self.places = {"hub": made.coordinator, "berlin": made.workers[0]}
        self.folder = folder
        self.groups = []
        self.lines = {}
        tools = folder / "bin"
        tools.mkdir()
        for program in ("causeway-coordinator", "causeway-worker", "causewayctl"):
            (tools / program).symlink_to(programs / program)
        for machine in self.places:
            (folder / machine).mkdir()
        self.path = f"{tools}:{os.environ['PATH']}"

    def run(self, machine, commands):
        """Returns what they print; what they start in the background goes on."""
        command = self.places[machine].command("sh", "-e", "-c", SHOWN.sub(self.line_of, commands))
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
        self.lines.update({line[1]: line[0] for line in PRINTED.finditer(text)})
        return text

    def wait_for_berlin(self, end):
        """Until its log says `finished`, as the page has it."""
        while "finished at step" not in (self.folder / "berlin" / "berlin.log").read_text():
            if time.monotonic() > end:
                raise AssertionError(self.logs())
            time.sleep(0.1)

    def line_of(self, shown):
        """What a person would have copied from the other machine."""
        return self.lines[shown[1]]

    def logs(self):
        return "\n".join(f"{log}:\n{log.read_text()[-1500:]}"
                         for log in sorted(self.folder.glob("*/*.log")))

    def kill(self):
        """Whatever is left."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass


class TwoSitesTest(unittest.TestCase):
    def test_the_page_leads_to_a_model_that_both_sites_have(self):
        page = (ROOT / "docs" / "two_sites.md").read_text()
        steps = STEP.findall(page)
        training = [machine for machine, _ in STEP.findall(page.partition("## 4.")[0])]
        for commands, most in ((len(steps), 6), (training.count("hub"), 3), (training.count("berlin"), 3)):
            self.assertLessEqual(commands, most)
        end = time.monotonic() + PATIENCE_S
        with Network(BIN / "causeway-wan-link", [LINK]) as made, working_folder() as folder:
            machines = Machines(made, folder, BIN)
            try:
                for machine, commands in steps[:len(training)]:
                    machines.run(machine, commands)
                machines.wait_for_berlin(end)
                said = "\n".join(machines.run(machine, commands) for machine, commands in steps[len(training):])
                os.killpg(machines.groups[0], signal.SIGTERM)  # The coordinator's: it sums up.
                sums = folder / "hub" / "run" / "summary.json"
                while not sums.exists():
                    self.assertLess(time.monotonic(), end, machines.logs())
                    time.sleep(0.1)
                summary = json.loads(sums.read_text())
                sent = made.links[0].counters()["up"]["delivered"]["bytes"]
            finally:
                machines.kill()
        for line in machines.lines.values():
            self.assertIn(f"causeway://{ADDRESS}:7070/first/", line)
        models = re.findall(r"^([0-9a-f]{64})  model/model\.safetensors$", said, re.MULTILINE)
        self.assertEqual(len(models), 2)
        self.assertEqual(*models)
        self.assertEqual((summary["steps"], summary["hash_mismatches"]), (90, 0))
        self.assertGreater(summary["hash_checks"], 0)
        self.assertGreater(sent, 1_000_000)


if __name__ == "__main__":
    network.skip_if_impossible()
    unittest.main(verbosity=2)
