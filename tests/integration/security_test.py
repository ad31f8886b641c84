"""Real processes with real certificates: what is refused and how, and a run that does not notice."""

import contextlib
import json
import pathlib
import resource
import socket
import subprocess
import unittest

from cluster import BIN, COORDINATOR, Cluster, ended, free_port, refusal_of, run_tool, wait_until

MAKE_CERTIFICATES = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "make_certificates"
RUN = """
train { steps: 60 } sync { fragments: 2 steps_between_syncs: 6 }
membership { start_workers: 2 }
"""
LONGER_RUN = RUN.replace("60", "240") + "membership { lease_ms: 6000 }"


def make(cluster, *arguments, folder="certificates"):
    subprocess.run([MAKE_CERTIFICATES, "--dir", cluster.folder / folder, *arguments], check=True,
                   stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60)


def tls(cluster, name, folder="certificates"):
    at = cluster.folder / folder / name
    return [f"--tls_ca={at / 'ca.pem'}", f"--tls_cert={at / 'cert.pem'}",
            f"--tls_key={at / 'key.pem'}", "--tls_refresh=1s"]


def with_certificates(cluster, *workers):
    make(cluster, "init")
    make(cluster, "coordinator", "--host", "localhost", "--ip", "127.0.0.1")
    for worker in workers:
        make(cluster, "worker", worker)


class SecurityTest(unittest.TestCase):
    plain = None

    def finish(self, cluster, *workers):
        ended(*workers, cluster.coordinator)
        return cluster.published()

    def undisturbed(self):
        """The rounds of the run without certificates and without strangers."""
        if SecurityTest.plain is None:
            with Cluster().serving(RUN) as cluster:
                SecurityTest.plain = self.finish(
                    cluster, *[cluster.start_worker(name) for name in ("a", "b")])
        return SecurityTest.plain

    def test_coordinators_in_a_list_have_the_first_ones_name(self):
        with Cluster() as cluster:
            make(cluster, "init")
            make(cluster, "coordinator", "--host", "localhost")
            make(cluster, "operator", "me")
            cluster.start_coordinator(RUN, *tls(cluster, "coordinator"))
            serves = cluster.address.rpartition(":")[2]
            # The one that answers is known by its address, which its certificate does not name.
            for first, found in ((f"localhost:{free_port()}", True), (f"localhost:{serves}", True),
                                 (f"[::1]:{free_port()}", False)):
                status, text, error = run_tool(
                    BIN / "causewayctl", "status", f"--coordinator={first},127.0.0.1:{serves}",
                    *tls(cluster, "operator-me")[:3], "--timeout=5s", "--json")
                self.assertEqual(status == 0, found, error)
                if found:
                    self.assertFalse(json.loads(text)["started"])

    def test_certificates_that_end_during_a_run_end_no_worker(self):
        """One is renewed in time, the other one too late."""
        lives_s = 25
        with Cluster() as cluster:
            with_certificates(cluster)
            for worker in ("a", "b"):
                make(cluster, "worker", worker, "--days", "1", "--start", f"{86400 - lives_s} seconds ago")
            cluster.start_coordinator(LONGER_RUN, *tls(cluster, "coordinator"))
            workers = [cluster.start_worker(worker, *tls(cluster, f"worker-{worker}"), "--min_step_time=200ms")
                       for worker in ("a", "b")]
            wait_until(lambda: len(cluster.rounds()) >= 2, "rounds are published")
            make(cluster, "renew", "worker-a")
            wait_until(lambda: "its connection is made anew" in workers[0].log(), "the renewed one is seen")

            def its_certificate_ended(worker):
                return [e for e in cluster.events("session_broke", worker) if "ended at" in e["reason"]]
            wait_until(lambda: its_certificate_ended("b"), "the certificate has ended")
            make(cluster, "renew", "worker-b")
            self.finish(cluster, *workers)
            self.assertEqual(its_certificate_ended("a"), [])
            left = [e["reason"] for e in cluster.events("worker_left")]
            self.assertEqual(left, ["finished", "finished"])

    def test_a_token_list_that_is_being_copied_or_away_ends_no_worker(self):
        with Cluster() as cluster:
            with_certificates(cluster)
            for worker in ("a", "b"):
                make(cluster, "token", "worker", worker)
            at = cluster.folder / "certificates"
            cluster.start_coordinator(LONGER_RUN, *tls(cluster, "coordinator")[1:], f"--token_file={at / 'tokens'}")
            workers = [cluster.start_worker(worker, f"--tls_ca={at / 'ca.pem'}",
                                            f"--token_file={at / f'token-worker-{worker}' / 'token'}",
                                            "--min_step_time=20ms") for worker in ("a", "b")]

            def rounds(more):
                wanted = len(cluster.rounds()) + more
                wait_until(lambda: len(cluster.rounds()) >= wanted, "rounds are published")
            rounds(2)
            tokens = (at / "tokens").read_bytes()
            for change in (lambda: (at / "tokens").write_bytes(b""),  # As cp and scp do first.
                           lambda: (at / "tokens").write_bytes(b"# the tokens of the run\n"),
                           (at / "tokens").unlink):
                change()
                rounds(2)
            (at / "tokens").write_bytes(tokens)
            self.finish(cluster, *workers)
            for name in ("a", "b"):
                self.assertEqual(cluster.events("session_broke", name), [])

    def test_certificate_files_that_are_empty_for_a_while_end_nobody(self):
        """gRPC ends a process to which it hands an empty certificate or key."""
        with Cluster() as cluster:
            with_certificates(cluster, "a", "b")
            make(cluster, "operator", "me")
            cluster.start_coordinator(LONGER_RUN, *tls(cluster, "coordinator"))
            workers = [cluster.start_worker(name, *tls(cluster, f"worker-{name}"), "--min_step_time=150ms")
                       for name in ("a", "b")]
            copy = cluster.start("copy.log", COORDINATOR, "follow", f"--run_dir={cluster.folder / 'copy'}",
                                 f"--of={cluster.address}", "--http=off", *tls(cluster, "operator-me"))
            wait_until(lambda: len(cluster.rounds()) >= 2, "rounds are published")
            wait_until(lambda: "has all" in copy.log(), "the copy has all")
            # With the next commit, so while there are some.
            make(cluster, "renew", "operator-me")
            wait_until(lambda: "its connection is made anew" in copy.log(), "the copy connects anew")
            other = (cluster.folder / "certificates" / "worker-b" / "key.pem").read_bytes()
            mended = "say what they said before"
            for owner, process, file, text, says in (
                    ("coordinator", cluster.coordinator, "cert.pem", b"", "cert.pem is empty"),
                    ("coordinator", cluster.coordinator, "key.pem", b"", "key.pem is empty"),
                    ("coordinator", cluster.coordinator, "ca.pem", b"", "ca.pem is empty"),
                    ("worker-a", workers[0], "cert.pem", b"", "cert.pem is empty"),
                    ("worker-a", workers[0], "key.pem", other, "is not the private key of"),
                    ("operator-me", copy, "key.pem", b"", "key.pem is empty")):
                path = cluster.folder / "certificates" / owner / file
                whole = path.read_bytes()
                path.write_bytes(text)  # As cp does, and then nothing for a while.
                wait_until(lambda: says in process.log(), f"{owner} says that {says}")
                said = process.log().count(mended)
                path.write_bytes(whole)
                wait_until(lambda: process.log().count(mended) > said, f"{owner} sees the whole file")
            self.finish(cluster, *workers)

    def test_who_follows_looks_at_no_revocation_list(self):
        with Cluster() as cluster:
            make(cluster, "init")
            make(cluster, "operator", "me")
            flags = cluster.folder / "flags"
            flags.write_text(f"--tls_crl_dir={cluster.folder}\n")
            for flag, words in ((f"--tls_crl_dir={cluster.folder}", "follow takes no --tls_crl_dir"),
                                (f"--flagfile={flags}", "--tls_crl_dir is a coordinator's flag")):
                self.assertIn(words, refusal_of(
                    COORDINATOR, "follow", f"--run_dir={cluster.folder / 'copy'}", f"--of=127.0.0.1:{free_port()}",
                    *tls(cluster, "operator-me"), flag))

    def test_connections_of_two_seconds_make_the_same_bits(self):
        with Cluster() as cluster:
            with_certificates(cluster, "a", "b")
            cluster.start_coordinator(RUN, *tls(cluster, "coordinator"),
                                      "--max_connection_age=2s")
            rounds = self.finish(cluster, *[
                cluster.start_worker(name, *tls(cluster, f"worker-{name}"), "--min_step_time=200ms")
                for name in ("a", "b")])
            self.assertEqual(rounds, self.undisturbed())

    def test_a_crowd_of_strangers_takes_no_descriptor_from_the_store(self):
        with Cluster() as cluster, contextlib.ExitStack() as crowd:
            cluster.start_coordinator(RUN, "--max_connections=120",
                                      "--max_connections_per_address=20")
            # No more than the coordinator says that so many connections need.
            resource.prlimit(cluster.coordinator.child.pid, resource.RLIMIT_NOFILE,
                             (120 + 256, 120 + 256))
            first = cluster.start_worker("a")
            cluster.wait_for_event("worker_ready", worker="a")
            host, _, port = cluster.address.rpartition(":")
            for i in range(500):
                crowd.enter_context(socket.create_connection(
                    (host, int(port)), source_address=(f"127.0.0.{2 + i % 50}", 0)))
            second = cluster.start_worker("b")
            self.assertEqual(self.finish(cluster, first, second), self.undisturbed())
            self.assertIn("--max_connections", cluster.coordinator.log())


if __name__ == "__main__":
    unittest.main()
