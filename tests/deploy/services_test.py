"""The systemd services: that systemd understands them, and how much they could do if taken over."""

import re
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
        self.folder = tools.folder_of(self)

    def unit(self, role):
        """The packed unit, but with the programs of this build: the others need not be installed."""
        name = f"causeway-{role}@.service"
        text = (BUILD / "deploy/packed" / name).read_text()
        text = text.replace("/usr/bin/", f"{BUILD}/bin/")
        (self.folder / name).write_text(text)
        return self.folder / name

    def test_systemd_accepts_them_without_a_word(self):
        for role in MOST_EXPOSURE:
            self.assertEqual(run("systemd-analyze", "verify", "--man=no", self.unit(role)), (0, ""))

    def test_they_are_hardened(self):
        for role, most in MOST_EXPOSURE.items():
            status, said = run("systemd-analyze", "security", "--offline=true", f"--threshold={most}",
                               self.unit(role))
            self.assertEqual(status, 0, said)
            print(re.search(r"Overall exposure.*: ([\d.]+)", said).group(0))


if __name__ == "__main__":
    tools.main()
