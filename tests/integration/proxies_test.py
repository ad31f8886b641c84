"""Runs behind HTTP/2 proxies: what nginx and haproxy make of a coordinator that dies, of a silence, of a long call ends
nobody; and the configurations of docs/links.md work."""

import functools
import json
import os
import sys
import time
import unittest

from cluster import COORDINATOR, CTL, MODEL, ended, free_port, run_tool, wait_until
from http_proxies import HttpProxy, documented, program
from regions import Tree
from security_test import make, with_certificates

KINDS = ("nginx", "haproxy")
PACE = "--min_step_time=40ms"
RUN = """
train { steps: 100 }
sync { pattern: BALANCED fragments: 2 steps_between_syncs: 10 overlap_steps: 2 codec_up: FP32 codec_down: FP32 }
membership { start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 10000 }
"""
# A fragment is longer than a chunk.
WIDE = MODEL.replace("width: 32", "width: 256").replace("mlp_width: 64", "mlp_width: 512")


class Proxied(Tree):
    """A coordinator that keeps its port, so that a proxy finds it again."""

    def __init__(self):
        super().__init__()
        self.port = free_port()
        self.direct = f"127.0.0.1:{self.port}"

    def start_hub(self, *flags, **options):
        self.start_coordinator(RUN, f"--listen={self.direct}", *flags, **options)

    def kill_hub(self):
        self.coordinator.kill()


def behind_each(test):
    @functools.wraps(test)
    def run(self):
        for kind in KINDS:
            with self.subTest(kind), Proxied() as cluster:
                test(self, kind, cluster)
    return run


class ProxiesTest(unittest.TestCase):
    plain = None

    def finish(self, cluster, *workers):
        ended(*workers, cluster.coordinator)
        return cluster.published()

    def undisturbed(self):
        if ProxiesTest.plain is None:
            with Proxied() as cluster:
                cluster.start_hub()
                ProxiesTest.plain = self.finish(cluster, *[cluster.start_worker(name) for name in ("a", "b")])
        return ProxiesTest.plain

    @behind_each
    def test_a_coordinator_that_dies_behind_a_proxy_loses_nobody(self, kind, cluster):
        cluster.start_hub()
        proxy = HttpProxy(cluster, kind, cluster.direct)
        workers = [cluster.start_worker("a", PACE, address=proxy.address), cluster.start_worker("b", PACE)]
        wait_until(lambda: len(cluster.rounds()) >= 3, "rounds are published")
        cluster.kill_hub()
        wait_until(lambda: cluster.events("session_broke", "a"), "the worker has noticed")
        cluster.start_hub()
        self.assertEqual(self.finish(cluster, *workers), self.undisturbed())

    @behind_each
    def test_a_worker_that_starts_before_the_coordinator_behind_its_proxy_waits_for_it(self, kind, cluster):
        proxy = HttpProxy(cluster, kind, cluster.direct)
        early = cluster.start_worker("a", "--connect_timeout=2m", address=proxy.address)
        never = cluster.start_worker("b", "--connect_timeout=2s", address=proxy.address)
        self.assertIn(f"no coordinator answers at {proxy.address} within 2s", never.refusal(status=1))
        cluster.start_hub()
        self.assertEqual(self.finish(cluster, early, cluster.start_worker("b")), self.undisturbed())

    @behind_each
    def test_a_silence_longer_than_the_proxys_patience_loses_nobody(self, kind, cluster):
        cluster.start_hub()
        proxy = HttpProxy(cluster, kind, cluster.direct, silence=2)
        workers = [cluster.start_worker("a", PACE, address=proxy.address), cluster.start_worker("b", PACE)]
        wait_until(lambda: len(cluster.rounds()) >= 3, "rounds are published")
        self.assertEqual(run_tool(CTL, "pause", f"--coordinator={cluster.direct}")[0], 0)
        before = len(cluster.events("session_resumed", "a"))
        wait_until(lambda: len(cluster.events("session_resumed", "a")) > before,
                   "the proxy has ended a session, which goes on")
        self.assertEqual(run_tool(CTL, "resume", f"--coordinator={cluster.direct}")[0], 0)
        self.assertEqual(self.finish(cluster, *workers), self.undisturbed())

    def test_nginx_limit_of_a_calls_size_is_named_and_when_it_is_lifted_the_run_goes_on(self):
        with Proxied() as cluster:
            cluster.start_hub(model=WIDE)
            proxy = HttpProxy(cluster, "nginx", cluster.direct, body="1m")
            workers = [cluster.start_worker("a", address=proxy.address), cluster.start_worker("b")]
            wait_until(lambda: "client_max_body_size 0" in workers[0].log(), "the limit is named")
            self.assertIn("docs/links.md", workers[0].log())
            proxy.reconfigure(body="0")
            self.finish(cluster, *workers)
            self.assertEqual({len(row["contributors"]) for row in cluster.rounds()}, {2})

    @behind_each
    def test_a_copy_a_region_and_those_who_watch_come_back_through_a_proxy(self, kind, cluster):
        cluster.start_hub()
        proxy = HttpProxy(cluster, kind, cluster.direct)
        copy = cluster.start("copy.log", COORDINATOR, "follow", f"--run_dir={cluster.folder / 'copy'}",
                             f"--of={proxy.address}")
        region = cluster.start_region("region", 1, parent=proxy.address)
        watchers = [cluster.start(f"{command}.log", CTL, command, *flags, "--json", "--interval=100ms",
                                  "--patience=2m", f"--coordinator={proxy.address}")
                    for command, *flags in (["watch"], ["events", "--follow"])]
        workers = [cluster.start_worker("a", PACE, address=cluster.region_address("region")),
                   cluster.start_worker("b", PACE)]
        wait_until(lambda: len(cluster.rounds()) >= 3 and "follows run" in copy.log(), "all of them take part")
        cluster.kill_hub()
        wait_until(lambda: "no answer from the coordinator" in copy.log(), "the copy has noticed")
        wait_until(lambda: cluster.events("session_broke", "region"), "the region has noticed")
        cluster.start_hub()
        wait_until(lambda: copy.log().count("follows run") > 1, "the copy follows again")
        ended(*workers, region, cluster.coordinator)
        self.assertEqual({tuple(row["contributors"]) for row in cluster.rounds()}, {("b", "region")})
        copy.stop()
        for watcher in watchers:
            watcher.stop()
        steps = [json.loads(line)["run_step"] for line in watchers[0].log().splitlines()]
        self.assertGreater(max(steps), 30, "it has seen the run after the restart")
        started = watchers[1].log().count('"coordinator_started"')
        self.assertEqual(started, 2, watchers[1].log())

    @behind_each
    def test_the_documented_configurations_carry_a_run_with_tokens(self, kind, cluster):
        with_certificates(cluster)
        for worker in ("a", "b"):
            make(cluster, "token", "worker", worker)
        at = cluster.folder / "certificates"
        own = at / "coordinator"
        (at / "proxy.pem").write_text((own / "cert.pem").read_text() + (own / "key.pem").read_text())
        text = documented("Proxies", kind)
        for written, here in (("443", "LISTEN"), ("*:LISTEN", "LISTEN"), ("10.0.0.1:7070", "TARGET"),
                              ("/etc/causeway/proxy.pem", str(at / "proxy.pem")),
                              ("/etc/causeway/cert.pem", str(own / "cert.pem")),
                              ("/etc/causeway/key.pem", str(own / "key.pem")),
                              ("/etc/causeway/ca.pem", str(at / "ca.pem")),
                              ("coordinator.example.org", "localhost")):
            text = text.replace(written, here)
        # A list that was written a moment ago decides nothing yet.
        os.utime(at / "tokens", (time.time() - 60,) * 2)
        cluster.start_hub(f"--tls_cert={own / 'cert.pem'}", f"--tls_key={own / 'key.pem'}",
                          f"--token_file={at / 'tokens'}", model=WIDE)
        proxy = HttpProxy(cluster, kind, cluster.direct, text=text)
        stale = at / "stale"
        stale.write_text("s" * 64)
        stale.chmod(0o600)
        token = {worker: at / f"token-worker-{worker}" / "token" for worker in ("a", "b")} | {"c": stale}
        *workers, stranger = [cluster.start_worker(
            worker, f"--tls_ca={at / 'ca.pem'}", f"--token_file={token[worker]}", "--connect_timeout=1h",
            address=f"localhost:{proxy.port}") for worker in token]
        # What the coordinator says comes through as such, and is final.
        self.assertIn("the token is unknown or was revoked", stranger.refusal())
        self.finish(cluster, *workers)
        for worker in ("a", "b"):
            self.assertEqual(cluster.events("session_broke", worker), [])


if __name__ == "__main__":
    for name in KINDS:
        if program(name) is None:
            print(f"skipped: there is no {name} that works here; Debian's package {name} has it")
            sys.exit(77)
    unittest.main()
