"""The systemd services: that systemd understands them, and how much they could do if taken over."""

import pathlib
import re
import tempfile
import unittest

import tools
from tools import BUILD, run

# systemd's measure of exposure, times ten: 100 is a service without any hardening.
MOST_EXPOSURE = {"coordinator": 20, "worker": 25}


class ServicesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tools.needs("systemd-analyze")

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="causeway_services_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def unit(self, role, *changes):
        """The packed unit, but with the programs of this build: the others need not be installed."""
        name = f"causeway-{role}@.service"
        text = (BUILD / "deploy/packed" / name).read_text()
        text = text.replace("/usr/bin/", f"{BUILD}/bin/")
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        (self.folder / name).write_text(text)
        return self.folder / name

    def test_systemd_accepts_them_without_a_word(self):
        for role in MOST_EXPOSURE:
            self.assertEqual(run("systemd-analyze", "verify", "--man=no", self.unit(role)), (0, ""))

    def test_a_setting_that_does_not_exist_would_be_seen(self):
        unit = self.unit("worker", ("NoNewPrivileges=", "NoNewPrivilege="))
        _, said = run("systemd-analyze", "verify", "--man=no", unit)
        self.assertIn("NoNewPrivilege", said)

    def test_they_are_hardened(self):
        for role, most in MOST_EXPOSURE.items():
            status, said = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}",
                               self.unit(role))
            self.assertEqual(status, 0, said)
            print(re.search(r"Overall exposure.*: ([\d.]+)", said).group(0))

    def test_the_measure_can_fail(self):
        unit = self.unit("worker", ("ProtectSystem=strict\n", ""), ("SystemCallFilter=~@privileged\n", ""),
                         ("SystemCallFilter=@system-service\n", ""))
        status, _ = run("systemd-analyze", "security", "--offline=true",
                        f"--threshold={MOST_EXPOSURE['worker']}", unit)
        self.assertNotEqual(status, 0)


if __name__ == "__main__":
    tools.main()
