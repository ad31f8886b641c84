"""The Debian packages, the installation and the systemd services: made of this build, looked into, and used."""

import pathlib
import re
import shutil
import tempfile
import unittest

import tools
from tools import BUILD, ROOT, run

NAMES = ("causeway-coordinator", "causeway-worker", "causewayctl")
# systemd's measure of exposure, times ten: 100 is a service without any hardening.
MOST_EXPOSURE = {"coordinator": 20, "worker": 25}


def tokenize(programs, folder):
    (folder / "text.txt").write_text("the bridge carries a stone over water " * 200)
    return run(programs / "causeway-worker", "tokenize",
               f"--input={folder / 'text.txt'}", f"--out={folder / 'shards'}")


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tools.needs("dpkg-deb", "dpkg-shlibdeps", "file", "cpack")
        if tools.sanitized():
            raise unittest.SkipTest("a build with sanitizers is not packed")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway_packages_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        status, said = run(ROOT / "deploy/build_packages", "--build", BUILD, "--out", cls.folder)
        assert status == 0, said
        cls.said = said
        cls.packages = {name: next(cls.folder.glob(f"{name}_*.deb")) for name in NAMES}

    def field(self, name, field):
        status, said = run("dpkg-deb", "-f", self.packages[name], field)
        self.assertEqual(status, 0, said)
        return said.strip()

    def files(self, name):
        status, said = run("dpkg-deb", "-c", self.packages[name])
        self.assertEqual(status, 0, said)
        return {line.split()[5]: line.split()[:2] for line in said.splitlines()}

    def test_every_package_has_what_it_is_for_and_nothing_of_the_others(self):
        everything = {name: self.files(name) for name in NAMES}
        for name in NAMES:
            self.assertEqual(everything[name][f"./usr/bin/{name}"][0], "-rwxr-xr-x")
            for file in (f"man/man1/{name}.1.gz", f"doc/{name}/copyright", f"doc/{name}/changelog.gz",
                         f"bash-completion/completions/{name}"):
                self.assertIn(f"./usr/share/{file}", everything[name])
            for path, (_, owner) in everything[name].items():
                self.assertEqual(owner, "root/root", path)
                if not path.endswith("/"):
                    others = [other for other in NAMES if other != name and path in everything[other]]
                    self.assertEqual(others, [], path)
        self.assertIn("./usr/include/causeway_site.h", everything["causeway-worker"])
        self.assertIn("./usr/lib/causeway/libcauseway_site.so", everything["causeway-worker"])
        self.assertIn("./usr/bin/causeway-make-certificates", everything["causewayctl"])
        for page in (ROOT / "docs").rglob("*.md"):
            self.assertIn(f"./usr/share/doc/causewayctl/{page.relative_to(ROOT)}", everything["causewayctl"])
        for role in ("coordinator", "worker"):
            self.assertIn(f"./usr/lib/systemd/system/causeway-{role}@.service",
                          everything[f"causeway-{role}"])
            self.assertEqual(everything[f"causeway-{role}"][f"./etc/causeway/{role}.flags"][0],
                             "-rw-r--r--")

    def test_settings_survive_upgrades(self):
        for role in ("coordinator", "worker"):
            status, said = run("dpkg-deb", "-I", self.packages[f"causeway-{role}"], "conffiles")
            self.assertEqual((status, said), (0, f"/etc/causeway/{role}.flags\n"))

    def test_libraries_are_dependencies_with_versions_and_only_where_they_are_used(self):
        depends = {name: self.field(name, "Depends") for name in NAMES}
        for name in NAMES:
            self.assertRegex(depends[name], r"libgrpc\+\+1\.51 \(>= ")
        self.assertIn("libdnnl2", depends["causeway-worker"])
        self.assertIn("libsqlite3-0", depends["causeway-coordinator"])
        self.assertIn("openssl", depends["causewayctl"])
        for name in ("causeway-coordinator", "causewayctl"):
            self.assertNotIn("libdnnl2", depends[name])

    def test_what_was_packed_runs(self):
        root = self.folder / "root"
        for package in self.packages.values():
            self.assertEqual(run("dpkg-deb", "-x", package, root)[0], 0)
        for name in NAMES:
            status, said = run(root / "usr/bin" / name, "--help")
            self.assertEqual(status, 0, said)
        status, said = run(root / "usr/bin/causeway-make-certificates", "--help")
        self.assertIn("usage: causeway-make-certificates COMMAND", said)
        status, said = tokenize(root / "usr/bin", self.folder)
        self.assertEqual(status, 0, said)

    def test_settings_for_services_name_flags_that_exist(self):
        root = self.folder / "settings"
        for role in ("coordinator", "worker"):
            self.assertEqual(run("dpkg-deb", "-x", self.packages[f"causeway-{role}"], root)[0], 0)
            _, known = run(root / f"usr/bin/causeway-{role}", "--help")
            text = (root / f"etc/causeway/{role}.flags").read_text()
            unit = (root / f"usr/lib/systemd/system/causeway-{role}@.service").read_text()
            command = re.search(r"ExecStart=((?:.*\\\n)*.*)", unit).group(1)
            flags = set(re.findall(r"^#?(--[a-z_]+)=", text, re.M)) | set(
                re.findall(r" (--[a-z_]+)=", command)) - {"--flagfile"}
            self.assertGreater(len(flags), 4)
            for flag in flags:
                self.assertIn(flag, known)

    def test_lintian_finds_nothing(self):
        tools.needs("lintian")
        self.assertIn("lintian: no errors, no warnings", self.said)


class InstallationTest(unittest.TestCase):
    def test_installed_to_any_prefix_everything_is_below_it_and_works(self):
        tools.needs("cmake")
        folder = tools.folder_of(self)
        prefix = folder / "prefix"
        status, said = run("cmake", "--install", BUILD, "--prefix", prefix)
        self.assertEqual(status, 0, said)
        for line in re.findall(r"^-- (?:Installing|Up-to-date): (.*)$", said, re.M):
            self.assertTrue(line.startswith(str(prefix)), line)
        self.assertTrue((prefix / "etc/causeway/worker.flags").exists())
        status, said = tokenize(prefix / "bin", folder)
        self.assertEqual(status, 0, said)


class ServicesTest(unittest.TestCase):
    """That systemd understands the services, and how much they could do if taken over."""

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
