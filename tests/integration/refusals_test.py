"""Bad input: one clear line that names what is wrong, exit status 2, nothing started."""

import os
import unittest
import unittest.mock

from cluster import BIN, COORDINATOR, MODEL, WORKER, Cluster, output_of, refusal_of, run_tool

RUN = "train { steps: 100000 } sync { steps_between_syncs: 6 } membership { start_workers: 1 }"


class RefusalsTest(unittest.TestCase):
    def refused(self, *command, saying, status=2):
        ended, output, error = run_tool(*command)
        self.assertEqual(ended, status, error)
        self.assertEqual(output, "")
        for words in saying:
            self.assertIn(words, error)
        self.assertNotIn("Check failed", error)
        lines = [line for line in error.splitlines() if line.strip()]
        self.assertLessEqual(len(lines), 3, error)

    def train(self, cluster, saying, status=2, **flags):
        values = {"coordinator": "127.0.0.1:1", "id": "w", "data": cluster.data,
                  "out": cluster.folder / "w", "connect_timeout": "30s"} | flags
        self.refused(
            WORKER, "train", *[f"--{name}={value}" for name, value in values.items()],
            saying=saying, status=status)

    def test_commands(self):
        with Cluster() as cluster:
            serve = (COORDINATOR, "serve", f"--run_dir={cluster.folder / 'bad'}")
            for flag, saying in (("--listen=nowhere", ["--listen", "nowhere"]), ("--http=nowhere", ["--http", "nowhere", "auto"]),
                                 (f"--config={cluster.folder / 'absent'}", ["absent"]),
                                 ("--log_level=loud", ["--log_level", "loud"])):
                self.refused(*serve, flag, saying=saying)
            self.refused(COORDINATOR, "serf", saying=["serf", "serve"])
            self.train(cluster, id="two words", saying=["--id", "two words"])
            self.train(cluster, threads=-1, saying=["--threads", "-1"])

    def test_devices(self):
        with Cluster() as cluster:
            self.train(cluster, device="gpu", saying=["--device", "cuda:0,1", '"gpu"'])
            self.train(cluster, device="cuda:0,x", saying=["--device", '"cuda:0,x"'])
            self.train(cluster, recompute="all", saying=["--recompute", "norms", '"all"'])
            self.train(cluster, published="disk", saying=["--published", "host", '"disk"'])
            self.train(cluster, gradients="half", saying=["--gradients", "sharded", '"half"'])
            self.train(cluster, deterministic="no", saying=["--deterministic", "off", '"no"'])
            self.refused(WORKER, "eval", "--device=cuda", "--data=x", "--checkpoint=absent",
                         saying=["eval", "--device=cpu"])
            self.refused(WORKER, "generate", "--device=cuda", "--prompt=x", "--checkpoint=absent",
                         saying=["generate takes no --device, which is for train, eval, bench"])
            self.refused(WORKER, "generate", "--prompt=x", "--prompts=y", "--checkpoint=absent",
                         saying=["give --prompt or --prompts, not both"])

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_a_gpu_where_there_is_none(self):
        with Cluster() as cluster:
            # Before the coordinator is asked: the address answers nobody.
            self.train(cluster, device="cuda", saying=["CUDA", "--device=cpu"])

    def test_what_a_disk_does_at_the_start_is_no_refusal(self):
        """A supervisor tries status 1 again, and leaves 2 alone."""
        def full(*command):
            self.assertIn("File too large", refusal_of(
                "bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *command, status=1))

        with Cluster().serving(RUN) as cluster:
            full(WORKER, "train", f"--coordinator={cluster.address}", "--id=w", f"--data={cluster.data}",
                 f"--out={cluster.folder / 'w'}", "--threads=1")
            config = cluster.folder / "run.textproto"
            config.write_text(MODEL + RUN)
            full(COORDINATOR, "serve", f"--run_dir={cluster.folder / 'other'}", f"--config={config}",
                 "--listen=127.0.0.1:0")
            self.refused(COORDINATOR, "serve", f"--run_dir={cluster.folder / 'third'}", f"--config={cluster.folder}",
                         "--listen=127.0.0.1:0", saying=["s a directory"])

    def test_flag_files(self):
        with Cluster() as cluster:
            flags = cluster.folder / "worker.flags"
            given = (WORKER, "train", f"--flagfile={flags}")
            flags.write_text("# a comment\n\n  --log_level=info\n--no_such_flag=3\n")
            self.refused(*given, saying=[f"{flags}:4:", "unknown flag --no_such_flag=3"])
            flags.write_text("--threads=many\n")
            self.refused(*given, saying=[f"{flags}:1:", "--threads", "many"])
            flags.write_text("--threads 2\n")
            self.refused(*given, saying=[f"{flags}:1:", "--threads 2"])
            flags.write_text("--threads=2\r\n")
            self.refused(*given, saying=[f"{flags}:1:", "Unix line ends"])
            flags.write_text("threads=2\n")
            self.refused(*given, saying=[f"{flags}:1:", "threads=2"])
            flags.write_text(f"--flagfile={flags}\n")
            self.refused(*given, saying=[f"{flags}:1:", "deep"])
            self.refused(WORKER, "train", f"--flagfile={cluster.folder}/absent",
                         saying=["absent", "cannot be read"])
            self.refused(WORKER, "train", f"--flagfile={cluster.folder}", saying=["cannot be read"])
            # A right flag is taken: the message names the next thing that is missing.
            flags.write_text("\t--threads=1\n")
            self.refused(*given, saying=["--id is required"])

    def test_every_program_says_its_release(self):
        for program in (COORDINATOR, WORKER, BIN / "causewayctl"):
            output = output_of(program, "--version")
            self.assertRegex(output, rf"^{program.name} \d+\.\d+\.\d+\n$")

    def test_flags_from_the_environment(self):
        with unittest.mock.patch.dict(os.environ, {"FLAGS_threads": "many", "FLAGS_fromenv": "x",
                                                   "FLAGS_log_level": "warn"}):
            train = (WORKER, "train")
            self.refused(*train, "--fromenv=id", saying=["FLAGS_id", "--tryfromenv"])
            self.refused(*train, "--fromenv=log_level,threads",
                         saying=["FLAGS_threads in the environment:", "--threads", "many"])
            self.refused(*train, "--tryfromenv=threads", saying=["FLAGS_threads", "many"])
            self.refused(*train, "--fromenv=no_such_flag", saying=["unknown flag --no_such_flag"])
            self.refused(*train, "--fromenv=fromenv", saying=["--fromenv"])
            # A right flag is taken: the message names the next thing that is missing.
            self.refused(*train, "--fromenv=log_level", saying=["--id is required"])
            self.refused(*train, "--tryfromenv=id", saying=["--id is required"])
            with Cluster() as cluster:
                flags = cluster.folder / "worker.flags"
                flags.write_text("--fromenv=id\n")
                self.refused(*train, f"--flagfile={flags}", saying=[f"{flags}:1:", "FLAGS_id"])

    def test_an_absurd_number_of_threads_uses_none_up(self):
        with Cluster() as cluster:
            absurd = ["--threads", "0 .. 1024", "1000000"]
            self.train(cluster, threads=1000000, saying=absurd)
            self.refused(WORKER, "bench", "--threads=1000000", saying=absurd)
            self.refused(WORKER, "preflight", "--coordinator=127.0.0.1:1", "--threads=1000000",
                         saying=absurd)

    def test_two_workers_with_one_output_folder(self):
        with Cluster().serving(RUN) as cluster:
            first = cluster.start_worker("first")
            cluster.wait_for_step("first", 3)
            before = cluster.steps("first")
            for name in ("first", "second"):
                self.train(cluster, coordinator=cluster.address, id=name, out=cluster.out("first"),
                           saying=[str(cluster.out("first")), str(first.child.pid)], status=1)
            # Its files were not touched, and it did not notice.
            self.assertGreaterEqual(cluster.steps("first"), before)
            cluster.wait_for_step("first", before + 3)

    def test_a_damaged_checkpoint(self):
        with Cluster().serving(RUN) as cluster:
            out = cluster.out("w")
            out.mkdir()
            (out / "checkpoint").write_bytes(b"CWAYWORK" + bytes(100))
            self.train(cluster, coordinator=cluster.address, saying=["checkpoint", "damaged", "remove it"])


if __name__ == "__main__":
    unittest.main()
