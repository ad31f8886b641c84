"""Another run answers at the coordinator's address for a while: whoever was welcome at the right one waits for it."""

import os
import re
import time
import unittest

from cluster import COORDINATOR, CTL, MODEL, SIGTERM, ended, wait_until
from proxies_test import PACE, RUN, Proxied
from security_test import make, with_certificates


def start_other(cluster, *flags):
    """Another run in the place of the hub."""
    config = cluster.folder / "other.textproto"
    config.write_text(MODEL + RUN + 'run_name: "other"')
    return cluster.start("other.log", COORDINATOR, "serve", f"--run_dir={cluster.folder / 'other'}",
                         f"--config={config}", f"--listen={cluster.direct}", "--http=off", *flags)


class OtherCoordinatorTest(unittest.TestCase):
    def test_workers_regions_copies_and_those_who_watch_outlast_another_run_at_the_address(self):
        with Proxied() as cluster:
            cluster.start_hub()
            copy = cluster.start("copy.log", COORDINATOR, "follow", f"--run_dir={cluster.folder / 'copy'}",
                                 f"--of={cluster.direct}")
            region = cluster.start_region("region", 1, parent=cluster.direct)
            watch = cluster.start("watch.log", CTL, "watch", "--interval=100ms", "--patience=2m",
                                  f"--coordinator={cluster.direct}")
            workers = [cluster.start_worker("a", PACE, address=cluster.region_address("region")),
                       cluster.start_worker("b", PACE)]
            wait_until(lambda: len(cluster.rounds()) >= 3 and "follows run" in copy.log(), "all of them take part")
            cluster.kill_hub()
            other = start_other(cluster)
            found = r"somebody else answers in the coordinator's place \(run_id differs: the worker has run-\w+, " \
                    r"the coordinator other-\w+"
            wait_until(lambda: re.search(found, workers[1].log()), "the worker has found the other run")
            wait_until(lambda: re.search(found, region.log()), "the region has found it")
            wait_until(lambda: re.search(r"this is the run other-\w+, the folder that follows holds", copy.log()),
                       "the copy has found it")
            wait_until(lambda: re.search(r"the run other-\w+ answers in place of run-\w+; looking again", watch.log()),
                       "who watches has found it")
            other.kill()
            cluster.start_hub()
            wait_until(lambda: copy.log().count("follows run") > 1, "the copy follows again")
            ended(*workers, region, cluster.coordinator)
            self.assertEqual({tuple(row["contributors"]) for row in cluster.rounds()}, {("b", "region")})
            self.assertEqual({row["step"] for row in cluster.events("finished", "b")}, {100})
            copy.signal(SIGTERM)
            ended(copy, watch)

    def test_a_run_with_tokens_of_its_own_ends_no_worker_while_it_answers(self):
        with Proxied() as cluster:
            with_certificates(cluster)
            at = cluster.folder / "certificates"
            for worker in ("c", "a", "b"):
                make(cluster, "token", "worker", worker)
                if worker == "c":
                    (cluster.folder / "others").write_bytes((at / "tokens").read_bytes())
            # A list that was written a moment ago decides nothing yet.
            (cluster.folder / "others").chmod(0o600)
            os.utime(cluster.folder / "others", (time.time() - 60,) * 2)
            own = [f"--tls_cert={at / 'coordinator' / 'cert.pem'}", f"--tls_key={at / 'coordinator' / 'key.pem'}"]
            cluster.start_hub(*own, f"--token_file={at / 'tokens'}")
            workers = [cluster.start_worker(
                name, PACE, f"--tls_ca={at / 'ca.pem'}", f"--token_file={at / f'token-worker-{name}' / 'token'}",
                address=cluster.direct) for name in ("a", "b")]
            wait_until(lambda: len(cluster.rounds()) >= 3, "rounds are published")
            cluster.kill_hub()
            other = start_other(cluster, *own, f"--token_file={cluster.folder / 'others'}")
            for worker in workers:
                wait_until(lambda: re.search(
                    r"somebody else answers in the coordinator's place \(the token is unknown", worker.log()),
                    "the worker has found the other run")
            other.kill()
            cluster.start_hub(*own, f"--token_file={at / 'tokens'}")
            ended(*workers, cluster.coordinator)
            self.assertEqual({row["step"] for row in cluster.events("finished", "a")}, {100})


if __name__ == "__main__":
    unittest.main()
