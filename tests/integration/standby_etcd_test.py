"""Coordinators that share a run by etcd, as real processes: who leads, and what nobody may do."""

import os
import subprocess
from signal import SIGCONT, SIGSTOP

from cluster import COORDINATOR, CTL, MODEL, WORKER, free_port, output_of, refusal_of, wait_until
from etcd import main
from machines import FOR_EVER_S, MAKE_CERTIFICATES, RUN, Machines, SharedRunTest, hashes


class StandbyTest(SharedRunTest):
    def refused(self, text, *flags, status=2):
        self.assertIn(text, refusal_of(COORDINATOR, *flags, status=status).strip().splitlines()[-1])

    def test_a_leader_that_is_cut_off_ends_before_another_one_leads(self):
        with Machines() as machines:
            first, second = machines.both()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            # Workers reach it still, and it has deltas to acknowledge; etcd and the copy are gone.
            for proxy in machines.to_etcd + [machines.to_first]:
                proxy.stall(FOR_EVER_S)
            self.assertEqual(first.wait(), 1, first.log())
            self.assertIn("leads no more", first.log())
            wait_until(lambda: "listens on" in second.log(), "the second one serves")
            published = self.end(machines, workers, 1, second)
            stopped = machines.times(0, "failed")
            self.assertLess(stopped[0], machines.times(1, "coordinator_started")[0])
            # Also what the first one wrote last, and told nobody: rounds follow from what is sent.
            known = hashes(machines.run_dir(0))
            self.assertEqual({key: published[key] for key in known}, known)

    def test_a_leader_that_comes_back_follows_and_its_folder_is_put_aside(self):
        with Machines() as machines:
            first, second = machines.both()
            wait_until(lambda: machines.ask(1, "/readyz")[0] == 200, "the copy says so")
            self.assertIn("follows 127.0.0.1:", machines.ask(1, "/healthz")[1])
            self.assertIn("causeway_copy_in_sync 1", machines.ask(1, "/metrics")[1])
            self.assertEqual(machines.ask(1, "/")[0], 404)
            port = machines.http_file(1).read_text()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            first.kill()
            wait_until(lambda: "listens on" in second.log(), "the second one serves")
            wait_until(lambda: machines.ask(1, "/")[0] == 200, "its status page is there")
            self.assertEqual(machines.ask(1, "/readyz")[0], 200)
            self.assertEqual(machines.http_file(1).read_text(), port)
            again = machines.share(0)
            wait_until(lambda: "in sync are" in second.log(), "the first one has everything")
            self.assertIn("follows it", again.log())
            # And the lead goes back, in order.
            second.stop()
            wait_until(lambda: "listens on" in again.log(), "the first one serves again")
            self.end(machines, workers, 0, again)

    def test_without_etcd_nobody_leads_and_with_it_the_same_one_goes_on(self):
        with Machines() as machines:
            first = machines.share(0)
            wait_until(lambda: "listens on" in first.log(), "the first one serves")
            workers = machines.start_workers(step_ms=100)
            machines.wait_for_step("worker-0", 10)
            for process in machines.etcd.processes[1:]:
                process.signal(SIGSTOP)
            self.assertEqual(first.wait(), 1, first.log())
            again = machines.share(0)
            wait_until(lambda: "etcd does not answer" in again.log(), "it waits for etcd")
            for process in machines.etcd.processes[1:]:
                process.signal(SIGCONT)
            self.end(machines, workers, 0, again)

    def test_an_etcd_that_asks_for_certificates(self):
        with Machines(tls=True) as machines:
            first, second = machines.both()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            first.kill()
            self.end(machines, workers, 1, second)
            flags = ["serve", f"--run_dir={machines.folder / 'refused'}", "--http=off",
                     f"--config={machines.config}", f"--etcd={machines.etcd.addresses}"]
            cut = [flag for flag in machines.tls_flags() if "key" not in flag]
            other = [*machines.tls_flags(), f"--etcd_ca={machines.config}"]
            for more, text in [([], "no answer from etcd"),
                               (cut, "--etcd_ca, --etcd_cert and --etcd_key must be given"),
                               (other, "--etcd_ca, --etcd_cert, --etcd_key: ")]:
                # It may answer the next start: a supervisor is to try it.
                self.refused(text, *flags, *more, status=2 if more else 1)

    def test_an_etcd_that_asks_for_a_user(self):
        with Machines() as machines:
            machines.etcd.ask_for_users("causeway", "its password", "/causeway/")

            def secret(name, text, mode=0o600):
                path = machines.folder / name
                path.write_text(text)
                path.chmod(mode)
                return f"--etcd_password_file={path}"

            known = secret("known", "causeway:its password\n")
            flags = ["serve", f"--run_dir={machines.folder / 'refused'}", "--http=off",
                     f"--config={machines.config}", f"--etcd={machines.etcd.addresses}"]
            for more, text in [
                    ([], "give --etcd_password_file"),
                    ([secret("wrong", "causeway:another")], "etcd does not know causeway"),
                    ([secret("half", "causeway\n")], "must have one line, USER:PASSWORD"),
                    ([secret("open", "causeway:its password\n", 0o644)], "--etcd_password_file: ")]:
                self.refused(text, *flags, *more)
            machines.etcd_flags = [known]
            first, second = machines.both()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            first.kill()
            self.end(machines, workers, 1, second)

    def test_who_was_invited_before_a_takeover_boards_after_it(self):
        with Machines() as machines:
            subprocess.run([MAKE_CERTIFICATES, "--dir", machines.certificates, "init"], check=True,
                           stdout=subprocess.DEVNULL, timeout=60)
            # The key goes to both by hand, and over no wire.
            machines.etcd_flags = [f"--authority={machines.certificates}"]
            first, second = machines.both()
            self.assertIsNone(first.child.poll(), first.log())
            addresses = ",".join(f"127.0.0.1:{port}" for port in machines.ports)

            def operator(node, *words):
                text = output_of(CTL, *words, f"--join={machines.run_dir(node) / 'operator'}")
                return text

            def board(machine, line, *flags):
                (machines.folder / "homes" / machine).mkdir(parents=True)
                return machines.start(
                    f"{machine}.log", WORKER, "train", f"--join={line}", f"--data={machines.data}",
                    f"--out={machines.out(machine)}", "--threads=1", "--min_step_time=40ms", *flags,
                    variables={"HOME": str(machines.folder / "homes" / machine), "XDG_CONFIG_HOME": ""})

            berlin, paris, rome = operator(0, "invite", "berlin", "paris", "rome",
                                           f"--address={addresses}").splitlines()
            a = board("berlin", berlin)
            wait_until(lambda: "boarded the run" in a.log(), "berlin has its certificate")
            operator(0, "revoke", "rome")
            first.kill()
            wait_until(lambda: "listens on" in second.log(), "the second one serves")
            thief = board("thief", berlin)
            self.assertIn("with another key: a line counts once", thief.refusal())
            nobody = board("nobody", rome, "--connect_timeout=1h")
            self.assertIn("does not take this invitation", nobody.refusal())
            b = board("paris", paris)
            told = operator(1, "invitations")
            self.assertRegex(told, r"worker +berlin +used")
            self.assertRegex(told, r"worker +rome +revoked")
            self.end(machines, [a, b], 1, second)

    def test_what_is_refused(self):
        with Machines() as machines:
            run_dir = f"--run_dir={machines.folder / 'refused'}"
            config = f"--config={machines.config}"
            etcd = f"--etcd={machines.etcd.addresses}"
            nameless = machines.folder / "nameless.textproto"
            nameless.write_text(MODEL + RUN.replace('run_name: "shared"', ""))
            serve = ["serve", run_dir, "--http=off"]
            # A supervisor is to start it again.
            self.refused("check --etcd", *serve, f"--etcd=127.0.0.1:{free_port()}", "--listen=127.0.0.1:7070", config,
                         status=1)
            for flags, text in [
                    (["--etcd=nowhere", config], "--etcd"),
                    ([etcd, "--listen=0.0.0.0:7070", config], "--advertise=HOST:PORT"),
                    ([etcd, "--listen=127.0.0.1:7070"], "--etcd needs --config"),
                    ([etcd, f"--config={nameless}"], "needs a run_name"),
                    ([etcd, config, "--tls=own"], "--authority=FOLDER"),
                    ([etcd, config, f"--authority={machines.folder}", "--standby_cert=x"],
                     "makes itself an operator"),
                    ([etcd, config, "--durability=none"], "--durability=none")]:
                self.refused(text, *serve, *flags)
            refused = machines.folder / "refused"
            os.makedirs(refused, exist_ok=True)
            (refused / "CLUSTER").write_text("12345")
            self.refused("was led by cluster 12345: check --etcd", *serve, etcd, config)


if __name__ == "__main__":
    main()
