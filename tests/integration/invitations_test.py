"""Real processes that board a run by invitations: once, by every way in, and again after restarts."""

import json
import os
import pathlib
import re
import stat
import time
import unittest

from cluster import (COORDINATOR, CTL, SIGTERM, WORKER, Cluster, ended, get, has_ipv6, output_of, refusal_of, run_tool,
                     wait_until)

RUN = """
run_name: "first"
train { steps: 60 } sync { fragments: 2 steps_between_syncs: 6 }
membership { start_workers: 2 max_workers: 2 }
"""
LONGER_RUN = RUN.replace("60", "400")
LINE = re.compile(r"^causeway://(?:127\.0\.0\.1|\[::1\]):\d+/first/(\w+)/[\w-]{43}\.[\w-]{47}$")


class Boarding(Cluster):
    """A run with its own authority, on loopback, and machines with homes of their own."""

    def host(self, settings=RUN, *flags):
        self.start_coordinator(settings, "--tls=own", *flags)
        self.me = f"--join={self.folder / 'coordinator' / 'operator'}"

    begin = host

    def invite(self, *names, flags=()):
        lines = output_of(CTL, "invite", *names, self.me, *flags).splitlines()
        assert [LINE.match(line)[1] for line in lines] == list(names), lines
        return lines

    def home(self, machine):
        (self.folder / "homes" / machine).mkdir(parents=True, exist_ok=True)
        return {"HOME": str(self.folder / "homes" / machine), "XDG_CONFIG_HOME": ""}

    def board(self, machine, *flags, variables=None):
        return self.start(f"{machine}.log", WORKER, "train", f"--data={self.data}", "--threads=1",
                          f"--out={self.out(machine)}", *flags,
                          variables={**self.home(machine), **(variables or {})})


class InvitationsTest(unittest.TestCase):

    def end(self, cluster, *workers):
        ended(*workers, cluster.coordinator)
        summary = cluster.summary()
        self.assertGreater(summary["hash_checks"], 0)
        self.assertEqual(summary["hash_mismatches"], 0)

    def test_lines_board_by_flag_file_and_environment_and_then_the_name_does(self):
        with Boarding().serving(LONGER_RUN) as cluster:
            berlin, paris = cluster.invite("berlin", "paris")
            a = cluster.board("berlin", f"--join={berlin}")
            cluster.wait_for_event("worker_ready", worker="berlin")
            shown = pathlib.Path(f"/proc/{a.child.pid}/cmdline").read_bytes()
            self.assertIn(b"--join=causeway://", shown)
            self.assertNotIn(berlin.rpartition(".")[2].encode(), shown)
            note = cluster.folder / "line"
            note.write_text(paris + "\n")
            note.chmod(0o644)
            self.assertIn("chmod", cluster.board("paris", f"--join=@{note}").refusal())
            note.chmod(0o600)
            b = cluster.board("paris", f"--join=@{note}")
            cluster.wait_for_step("paris", 20)
            shown = pathlib.Path(f"/proc/{b.child.pid}/cmdline").read_bytes()
            self.assertNotIn(paris.rpartition(".")[2].encode(), shown)
            kept = cluster.folder / "homes" / "paris" / ".config" / "causeway" / "first" / "paris"
            self.assertEqual(sorted(p.name for p in kept.iterdir() if p.name != "LOCK"),
                             ["ca.pem", "cert.pem", "coordinator", "key.pem"])
            self.assertEqual(stat.S_IMODE((kept / "key.pem").stat().st_mode), 0o600)
            self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o700)
            b.stop()
            by_name = cluster.board("paris", variables={"CAUSEWAY_JOIN": "first"})
            cluster.wait_for_step("paris", 30)
            output_of(CTL, "stop", "--at_step=120", cluster.me)
            self.end(cluster, a, by_name)

    def test_preflight_takes_a_line_of_several_addresses(self):
        with Boarding().serving() as cluster:
            line, = output_of(CTL, "invite", "berlin", cluster.me,
                              f"--address=127.0.0.1:1,{cluster.address}").splitlines()
            _, text, error = run_tool(WORKER, "preflight", f"--join={line}", "--json", "--threads=1",
                                      "--probe_seconds=0", variables=cluster.home("berlin"))
            self.assertTrue(text, error)
            checks = {check["name"]: check["status"] for check in json.loads(text)["checks"]}
            self.assertEqual((checks["certificates"], checks["coordinator"]), ("ok", "ok"))

    @unittest.skipUnless(has_ipv6(), "this machine has no ::1")
    def test_lines_with_an_ipv6_address_board_workers_and_observers(self):
        with Boarding().serving(LONGER_RUN, "--listen=[::1]:0") as cluster:
            berlin, paris = cluster.invite("berlin", "paris")
            self.assertIn(cluster.address, berlin)
            hint = run_tool(CTL, "invite", "rome", cluster.me)[2]
            self.assertIn("by --join='LINE'", hint)  # For the brackets.
            eye, = cluster.invite("eye", flags=["--role=observer"])
            self.assertIn("run first-", output_of(CTL, "status", f"--join={eye}", variables=cluster.home("eye")))
            output_of(WORKER, "preflight", f"--join={berlin}", "--threads=1", "--probe_seconds=0",
                      variables=cluster.home("berlin"))
            a = cluster.board("berlin", "--join=first")
            b = cluster.board("paris", variables={"CAUSEWAY_JOIN": paris})
            cluster.wait_for_step("paris", 20)
            b.stop()
            b = cluster.board("paris", "--join=first")
            cluster.wait_for_step("paris", 30)
            output_of(CTL, "stop", "--at_step=120", cluster.me)
            self.end(cluster, a, b)

    def test_a_worker_that_boards_ends_on_a_signal(self):
        with Boarding().serving() as cluster:
            # Nothing listens on a port that nobody may have.
            line, = output_of(CTL, "invite", "berlin", cluster.me, "--address=127.0.0.1:1").splitlines()
            worker = cluster.board("berlin", f"--join={line}", "--connect_timeout=10m")
            kept = cluster.folder / "homes" / "berlin" / ".config" / "causeway" / "first" / "berlin"
            wait_until((kept / "key.pem").exists, "the worker has begun")
            worker.stop()
            self.assertIn("told to stop before it had joined the run", worker.log())

    def test_roles_observers_look_and_workers_do_not_steer(self):
        with Boarding().serving() as cluster:
            eye, = cluster.invite("eye", flags=["--role=observer"])
            home = cluster.home("eye")
            for join in (eye, "first"):
                self.assertIn("run first-", output_of(CTL, "status", f"--join={join}", variables=home))
            self.assertIn("observer eye asked to invite", refusal_of(
                CTL, "invite", "friend", "--join=first/eye", variables=home, status=1))
            self.assertIn("that of observer eye", cluster.board("eye", f"--join={eye}").refusal())

    def test_an_operators_line_follows_and_the_copy_knows_the_invitations(self):
        with Boarding().serving(LONGER_RUN) as cluster:
            berlin, paris = cluster.invite("berlin", "paris")
            line, = cluster.invite("copy", flags=["--role=operator"])
            copy = cluster.folder / "copy"
            follow = cluster.start("follow.log", COORDINATOR, "follow", f"--run_dir={copy}",
                                   f"--join={line}", "--http=off", variables=cluster.home("copy"))
            a = cluster.board("berlin", f"--join={berlin}")
            cluster.wait_for_event("worker_ready", worker="berlin")
            wait_until(lambda: "has all" in follow.log(), "the copy has everything")
            commits = json.loads(run_tool(COORDINATOR, "inspect", "--json", f"--run_dir={copy}")[1])
            made = {one["name"]: one for one in commits["state"]["invitations"]["invitations"]}
            self.assertEqual(set(made), {"berlin", "paris", "copy"})
            self.assertEqual({one["certificate"] for one in made.values()}, {""})
            follow.stop()
            cluster.coordinator.kill()
            port = cluster.address.rpartition(":")[2]
            # By hand: the copy, and the authority, which no copy has.
            self.assertFalse((copy / "authority").exists())
            (cluster.folder / "coordinator").rename(cluster.folder / "gone")
            copy.rename(cluster.folder / "coordinator")
            cluster.host(LONGER_RUN, f"--listen=127.0.0.1:{port}",
                         f"--authority={cluster.folder / 'gone' / 'authority'}")
            b = cluster.board("paris", f"--join={paris}")
            cluster.wait_for_step("paris", 20)
            output_of(CTL, "stop", "--at_step=120", cluster.me)
            self.end(cluster, a, b)

    def test_without_tls_the_operators_folder_of_before_goes(self):
        with Boarding().serving() as cluster:
            cluster.coordinator.signal(SIGTERM)
            cluster.coordinator.wait()
            folder = cluster.folder / "coordinator" / "operator"
            others = {name: (folder / name).read_bytes() for name in ("key.pem", "ca.pem")}
            cluster.start_coordinator(RUN, "--tls=off")
            self.assertFalse(folder.exists())
            self.assertIn("operator is removed", cluster.coordinator.log())
            # What somebody else has put there stays.
            cluster.coordinator.signal(SIGTERM)
            cluster.coordinator.wait()
            folder.mkdir()
            (folder / "key.pem").write_bytes(others["key.pem"])
            (folder / "ca.pem").write_bytes(others["ca.pem"] + b"\n")
            cluster.start_coordinator(RUN, "--tls=off")
            self.assertTrue((folder / "key.pem").exists())

    def test_a_region_boards_and_invites_its_own_sites(self):
        with Boarding().serving() as cluster:
            berlin, = cluster.invite("berlin")
            line, = cluster.invite("europe", flags=["--role=region"])
            region = cluster.folder / "europe"
            identity = cluster.folder / "europes"
            page = cluster.folder / "europes_page"

            def serve(parent, log):
                page.unlink(missing_ok=True)
                served = cluster.start(log, COORDINATOR, "serve", f"--parent={parent}", "--sites=1",
                                       f"--identity={identity}", f"--run_dir={region}",
                                       "--listen=127.0.0.1:0", "--tls=own", "--http=127.0.0.1:0",
                                       f"--http_address_file={page}", "--exit_when_finished",
                                       variables={"HOME": "", "XDG_CONFIG_HOME": ""})
                wait_until(lambda: page.exists() or served.child.poll() is not None, "the region serves")
                assert served.child.poll() is None, served.log()
                return served

            serve(line, "europe.log").stop()
            # Once it has boarded, the run's name does.
            serve("first", "europe_again.log")
            figures = get(page.read_text().strip(), "/metrics")[1]
            for flag in ("authority", "parent_tls_cert"):
                self.assertIn(f'causeway_certificate_end_timestamp_seconds{{flag="{flag}"}}', figures)
            paris = output_of(CTL, "invite", "paris", f"--join={region / 'operator'}")
            a = cluster.board("berlin", f"--join={berlin}")
            b = cluster.board("paris", f"--join={paris.strip()}")
            self.end(cluster, a, b)
            joined = {e["worker"] for e in cluster.events("worker_joined")}
            self.assertEqual(joined, {"berlin", "europe"})

    def test_what_does_not_fit_is_refused_with_what_to_do(self):
        with Boarding().serving() as cluster:
            line, = cluster.invite("berlin")
            for flags, variables, saying in (
                    ([f"--join={line[:-1]}"], {}, "its last part is cut or changed"),
                    ([f"--join={line[:60]}"], {}, "expected the line of `causewayctl invite`"),
                    ([f"--join={line}", "--id=paris"], {}, "is for berlin, not for paris"),
                    (["--join=nowhere"], {}, "the first time --join takes the line"),
                    ([f"--join={line}", "--insecure"], {}, "an invitation brings its own"),
                    (["--identity=x", "--id=a"], {}, "--identity without --join"),
                    ([f"--join=@{cluster.folder}/none"], {}, "No such file"),
                    (["--id=a"], {"CAUSEWAY_JOIN": ""}, "CAUSEWAY_JOIN is set, and empty")):
                refused = cluster.board("berlin" if "paris" in saying else "other", *flags, variables=variables)
                self.assertIn(saying, refused.refusal())
                self.assertNotIn(line.rpartition(".")[2], refused.log())
                refused.log_path.unlink()
            for slip in (f"--coordinator={line}", f"--join='{line}'", f"--join=x{line}"):
                self.assertNotIn(line.rpartition(".")[2][:20], refusal_of(CTL, "status", slip))
            self.assertIn("a/b", refusal_of(CTL, "invite", "good", "a/b", cluster.me, status=1))
            self.assertNotIn("good", run_tool(CTL, "invitations", cluster.me)[1])
        with Cluster().serving(RUN) as cluster:
            self.assertIn("serve --tls=own", refusal_of(
                CTL, "invite", "berlin", f"--coordinator={cluster.address}", status=1))

    def test_an_authority_of_ones_own_and_an_intermediate_one(self):
        with Boarding() as cluster:
            given = cluster.folder / "given"
            given.mkdir()

            def openssl(*arguments):
                output_of("openssl", *arguments)

            new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
            openssl("req", "-x509", *new, "-keyout", given / "root.key", "-out", given / "root.pem",
                    "-subj", "/CN=root", "-days", "30")
            openssl("req", *new, "-keyout", given / "ca.key", "-out", given / "ca.csr", "-subj",
                    "/CN=middle")
            (given / "extensions").write_text("basicConstraints=critical,CA:true\n"
                                              "keyUsage=critical,keyCertSign,cRLSign\n"
                                              "subjectKeyIdentifier=hash\n")
            openssl("x509", "-req", "-in", given / "ca.csr", "-CA", given / "root.pem", "-CAkey",
                    given / "root.key", "-out", given / "middle.pem", "-days", "20", "-extfile",
                    given / "extensions")
            (given / "root.key").unlink()
            (given / "ca.pem").write_text((given / "middle.pem").read_text() +
                                          (given / "root.pem").read_text())
            os.chmod(given / "ca.key", 0o600)
            cluster.host(RUN, f"--authority={given}")
            said = get(cluster.http_address, "/metrics")[1]
            end = re.search(r'^causeway_certificate_end_timestamp_seconds{flag="authority"} (\S+)', said, re.M)
            self.assertAlmostEqual((float(end[1]) - time.time()) / 86400, 20, delta=1)
            berlin, paris = cluster.invite("berlin", "paris")
            self.end(cluster, cluster.board("berlin", f"--join={berlin}"),
                     cluster.board("paris", f"--join={paris}"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
