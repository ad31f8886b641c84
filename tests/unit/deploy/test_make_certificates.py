"""deploy/make_certificates: what it makes, what it refuses to overwrite, who can read it."""

import hashlib
import pathlib
import stat
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "make_certificates"


class MakeCertificatesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="causeway_certificates_")
        self.addCleanup(self.folder.cleanup)
        self.dir = pathlib.Path(self.folder.name) / "made"

    def run_script(self, *arguments):
        return subprocess.run(
            [SCRIPT, "--dir", self.dir, *arguments], capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL)

    def make(self, *arguments):
        done = self.run_script(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def refused(self, *arguments, status, saying):
        done = self.run_script(*arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(saying, done.stderr)
        self.assertEqual(done.stdout, "")

    def openssl(self, *arguments):
        return subprocess.run(
            ["openssl", *map(str, arguments)], capture_output=True, text=True, check=True).stdout

    def facts(self, name):
        return self.openssl("x509", "-noout", "-text", "-in", self.dir / name / "cert.pem")

    def verify(self, name, purpose):
        self.openssl("verify", "-purpose", purpose, "-CAfile", self.dir / name / "ca.pem",
                     self.dir / name / "cert.pem")

    def mode(self, *parts):
        return stat.S_IMODE(self.dir.joinpath(*parts).stat().st_mode)

    def test_a_run_with_everybody_in_it(self):
        self.make("init")
        self.make("coordinator", "--host", "c.example", "--ip", "10.0.0.1", "--ip=::1")
        self.assertIn("--id=site-a", self.make("worker", "site-a"))
        self.make("operator", "ops", "--run", "first")
        self.make("observer", "eye", "--days", "3")
        coordinator = self.facts("coordinator")
        for words in ("DNS:c.example", "IP Address:10.0.0.1", "IP Address:0:0:0:0:0:0:0:1",
                      "TLS Web Server Authentication", "CA:FALSE", "prime256v1"):
            self.assertIn(words, coordinator)
        self.assertNotIn("causeway://", coordinator)
        self.verify("coordinator", "sslserver")
        for name, uri in (("worker-site-a", "causeway://*/worker/site-a"),
                          ("operator-ops", "causeway://first/operator/ops"),
                          ("observer-eye", "causeway://*/observer/eye")):
            self.assertIn(f"URI:{uri}", self.facts(name))
            self.assertNotIn("Server Authentication", self.facts(name))
            self.verify(name, "sslclient")
            self.assertEqual(self.mode(name, "key.pem"), 0o600)
        self.assertEqual(self.mode("ca.key"), 0o600)
        self.assertEqual(self.mode(), 0o700)

    def test_nothing_is_overwritten_unasked(self):
        self.make("init")
        authority = (self.dir / "ca.pem").read_text()
        self.refused("init", status=1, saying="--force")
        self.make("worker", "a")
        key = (self.dir / "worker-a" / "key.pem").read_text()
        self.refused("worker", "a", status=1, saying="renew")
        self.assertEqual((self.dir / "ca.pem").read_text(), authority)
        self.assertEqual((self.dir / "worker-a" / "key.pem").read_text(), key)
        self.make("worker", "a", "--force")
        self.assertNotEqual((self.dir / "worker-a" / "key.pem").read_text(), key)
        self.make("init", "--force")
        self.assertNotEqual((self.dir / "ca.pem").read_text(), authority)

    def test_renewed_certificates_keep_keys_and_names(self):
        self.make("init")
        self.make("coordinator", "--host", "c.example", "--ip", "10.0.0.1", "--days", "2")
        self.make("worker", "a", "--run", "first", "--days", "2")
        self.make("worker", "b", "--days", "2")
        before = {name: (self.facts(name), (self.dir / name / "key.pem").read_text())
                  for name in ("coordinator", "worker-a", "worker-b")}
        self.make("renew", "coordinator", "worker-a")
        for name in ("coordinator", "worker-a"):
            text, key = before[name]
            self.assertEqual((self.dir / name / "key.pem").read_text(), key)
            self.assertNotEqual(self.facts(name), text)
        self.assertEqual(self.facts("worker-b"), before["worker-b"][0])
        self.assertIn("DNS:c.example, IP Address:10.0.0.1", self.facts("coordinator"))
        self.assertIn("URI:causeway://first/worker/a", self.facts("worker-a"))
        self.make("renew")
        self.assertNotEqual(self.facts("worker-b"), before["worker-b"][0])
        self.verify("coordinator", "sslserver")
        self.verify("worker-b", "sslclient")
        self.refused("renew", "worker-c", status=1, saying="worker-c")

    def test_names_may_be_as_long_as_ids(self):
        self.make("init")
        name = "a" * 64
        for kind in ("worker", "operator", "observer"):
            self.make(kind, name)
            self.assertIn(f"URI:causeway://*/{kind}/{name}", self.facts(f"{kind}-{name}"))
        self.make("renew", f"operator-{name}")
        self.make("renew")
        self.verify(f"worker-{name}", "sslclient")
        for bad in (f"worker-{name}a", "worker-../a", "worker-", ".."):
            self.refused("renew", bad, status=2, saying="the name must be")
        self.refused("renew", "../worker-a", status=2, saying="KIND-NAME")

    def test_tokens(self):
        self.make("init")
        self.make("token", "worker", "a.b")
        self.make("token", "worker", "axb")  # A dot is no wildcard.
        token = (self.dir / "token-worker-a.b" / "token").read_text().strip()
        self.assertEqual(len(token), 64)
        self.assertEqual(self.mode("token-worker-a.b", "token"), 0o600)
        lines = (self.dir / "tokens").read_text().splitlines()
        self.assertIn(hashlib.sha256(token.encode()).hexdigest() + " worker a.b", lines)
        self.assertNotIn(token, (self.dir / "tokens").read_text())
        self.refused("token", "worker", "a.b", status=1, saying="--force")
        self.make("token", "worker", "a.b", "--force")
        self.assertNotEqual((self.dir / "token-worker-a.b" / "token").read_text().strip(), token)
        self.assertEqual(len((self.dir / "tokens").read_text().splitlines()), 2)
        self.make("revoke_token", "worker", "a.b")
        self.assertEqual([line.split()[2] for line in
                          (self.dir / "tokens").read_text().splitlines()], ["axb"])
        self.make("revoke_token", "worker", "axb")
        self.assertEqual((self.dir / "tokens").read_text(), "nobody\n")
        self.refused("revoke_token", "worker", "axb", status=1, saying="no token")
        self.make("token", "worker", "c")
        self.assertEqual([line.split()[2] for line in (self.dir / "tokens").read_text().splitlines()], ["c"])

    def test_what_makes_no_sense_is_refused(self):
        for arguments, saying in (
                ((), "a command"), (("frobnicate",), "frobnicate"), (("--colour",), "--colour"),
                (("worker",), "one name"), (("worker", "a/b"), "a/b"), (("worker", "a b"), "a b"),
                (("worker", ".."), ".."), (("worker", "x" * 65), "64"), (("token", "king", "a"), "king"),
                (("worker", "a", "--days", "0"), "--days"), (("init", "--start", "whenever"), "whenever"),
                (("init", "--run", "a,URI:causeway://*/operator/x"), "--run"),
                (("coordinator",), "--host"), (("coordinator", "--host", "a,DNS:b"), "a,DNS:b"),
                (("coordinator", "--ip", "1.2.3.4,DNS:b"), "DNS:b"), (("worker", "a", "--dir"), "--dir")):
            self.refused(*arguments, status=2, saying=saying)
        self.refused("worker", "a", status=1, saying="init")
        self.assertFalse(self.dir.exists())
        self.make("init")
        self.refused("coordinator", "--ip", "999.1.1.1", status=1, saying="openssl")
        self.assertFalse((self.dir / "coordinator").exists())


if __name__ == "__main__":
    unittest.main()
