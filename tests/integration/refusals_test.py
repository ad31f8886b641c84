"""Bad input: one clear line that names what is wrong, exit status 2, nothing started."""

import os
import shutil
import unittest
import unittest.mock

from cluster import BIN, COORDINATOR, MODEL, WORKER, Cluster, output_of, run_tool

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

    def serve(self, cluster, text, *flags, saying, status=2):
        config = cluster.folder / "bad.textproto"
        config.write_text(text)
        self.refused(
            COORDINATOR, "serve", f"--run_dir={cluster.folder / 'bad'}", f"--config={config}",
            "--listen=127.0.0.1:0", *flags, saying=saying, status=status)
        self.assertFalse((cluster.folder / "bad" / "run.db").exists())

    def train(self, cluster, saying, status=2, **flags):
        values = {"coordinator": "127.0.0.1:1", "id": "w", "data": cluster.data,
                  "out": cluster.folder / "w", "connect_timeout": "30s"} | flags
        self.refused(
            WORKER, "train", *[f"--{name}={value}" for name, value in values.items()],
            saying=saying, status=status)

    def test_configurations(self):
        with Cluster() as cluster:
            self.serve(cluster, MODEL + "sync { fragmens: 3 }", saying=["fragmens", "bad.textproto:"])
            self.serve(cluster, MODEL + "sync { overlap_steps: 100 }",
                       saying=["sync.overlap_steps", "100"])
            self.serve(cluster, MODEL + "sync { codec_up: LM2 }", saying=["sync.error_feedback"])
            self.serve(cluster, MODEL + "outer { learning_rate: -1 }",
                       saying=["outer.learning_rate", "-1"])
            self.serve(cluster, "model { preset: 'giant' }", saying=["model.preset", "tiny-1m"])
            self.serve(cluster, MODEL, "--preset=fastest", saying=["fastest", "best"])
            self.serve(cluster, MODEL, "--listen=nowhere", saying=["--listen", "nowhere"])
            self.serve(cluster, MODEL, "--http=nowhere", saying=["--http", "nowhere", "auto"])
            self.serve(cluster, MODEL, "--no_such_flag", saying=["no_such_flag"])
            self.refused(COORDINATOR, "serve", f"--run_dir={cluster.folder / 'bad'}",
                         f"--config={cluster.folder / 'absent'}", saying=["absent"])
            self.refused(COORDINATOR, "serf", saying=["serf", "serve"])
            self.refused(COORDINATOR, "serve", "--log_level=loud", saying=["--log_level", "loud"])
            self.refused(WORKER, "train", "--log_level=loud", saying=["--log_level", "loud"])

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
            status, _, error = run_tool("bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *command)
            self.assertEqual(status, 1, error)
            self.assertIn("File too large", error)

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

    def test_two_coordinators_on_one_run_directory(self):
        with Cluster().serving(RUN) as cluster:
            self.refused(
                COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
                f"--config={cluster.folder / 'run.textproto'}", "--listen=127.0.0.1:0",
                saying=["coordinator", str(cluster.coordinator.child.pid)])
            # The first one did not notice.
            self.assertIsNone(cluster.coordinator.child.poll())

    def test_a_run_directory_that_holds_a_run_of_another_configuration(self):
        with Cluster().serving(RUN) as cluster:
            cluster.coordinator.child.terminate()
            cluster.coordinator.wait()
            (cluster.folder / "run.textproto").write_text(MODEL + RUN + "train { warmup_steps: 7 }")
            self.refused(
                COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
                f"--config={cluster.folder / 'run.textproto'}", "--listen=127.0.0.1:0",
                saying=[str(cluster.folder / "coordinator"), "train.warmup_steps", "7"])

    def test_a_listen_address_that_is_taken_or_not_there_may_be_free_at_the_next_start(self):
        with Cluster().serving(RUN) as cluster:
            for listen in (cluster.address, "192.0.2.1:7070"):
                self.serve(cluster, MODEL, f"--listen={listen}", saying=[listen], status=1)
            for http, saying in ((cluster.http_address, "choose another port"), ("192.0.2.1:7071", "no interface")):
                self.serve(cluster, MODEL, f"--http={http}", saying=["--http", http, saying], status=1)
            self.train(cluster, coordinator=cluster.address, metrics=cluster.http_address,
                       saying=["--metrics", "choose another port"], status=1)

    def test_corpora(self):
        with Cluster() as cluster:
            out = cluster.folder / "shards"
            empty = cluster.folder / "empty.txt"
            empty.write_text("")
            binary = cluster.folder / "binary"
            binary.write_bytes(b"\0\1\2" * 1000)
            self.refused(WORKER, "tokenize", f"--input={cluster.folder / 'none'}", f"--out={out}",
                         saying=["none"])
            self.refused(WORKER, "tokenize", f"--input={empty}", f"--out={out}",
                         saying=["empty.txt"])
            self.refused(WORKER, "tokenize", f"--input={binary}", f"--out={out}",
                         saying=["binary"])
            self.refused(WORKER, "tokenize", f"--input={empty}", f"--out={out}", "--tokenizer=gpt2",
                         saying=["--tokenizer"])
            self.assertFalse(out.exists() and os.listdir(out))

    def test_workers(self):
        with Cluster().serving(RUN) as cluster:
            address = cluster.address
            self.train(cluster, connect_timeout="2s", saying=["127.0.0.1:1", "is the address right?"], status=1)
            self.train(cluster, coordinator="no port", saying=["--coordinator", "HOST:PORT"])
            self.train(cluster, coordinator=address, id="two words", saying=["--id", "two words"])
            self.train(cluster, coordinator=address, data=cluster.folder / "none", saying=["none"])
            self.train(cluster, coordinator=address, threads=-1, saying=["--threads", "-1"])
            status, _, error = run_tool(WORKER, "train", "--threads=many")
            self.assertEqual(status, 2)
            self.assertIn("many", error)

    def test_several_processes_for_one_replica(self):
        launch = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                  "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        with Cluster() as cluster:
            with unittest.mock.patch.dict(os.environ, launch):
                os.environ["RANK"] = "2"
                self.train(cluster, saying=["RANK", 'is "2"', "0 to 1"])
                del os.environ["LOCAL_RANK"]
                os.environ["RANK"] = "1"
                self.train(cluster, saying=["LOCAL_RANK", "is not set", "unset RANK"])

    def test_an_absurd_number_of_threads_uses_none_up(self):
        with Cluster() as cluster:
            absurd = ["--threads", "0 .. 1024", "1000000"]
            self.train(cluster, threads=1000000, saying=absurd)
            self.refused(WORKER, "bench", "--threads=1000000", saying=absurd)
            self.refused(WORKER, "preflight", "--coordinator=127.0.0.1:1", "--threads=1000000",
                         saying=absurd)

    def test_an_empty_shard(self):
        with Cluster().serving(RUN) as cluster:
            shard = next(cluster.data.glob("train_*.bin"))
            shard.write_bytes(b"")
            self.train(cluster, coordinator=cluster.address, saying=[shard.name])

    def test_data_of_another_vocabulary(self):
        with Cluster().serving(RUN + " model { vocabulary_size: 300 }") as cluster:
            self.train(cluster, coordinator=cluster.address, saying=["256", "300"])

    def test_two_workers_with_one_id(self):
        with Cluster().serving(RUN) as cluster:
            cluster.start_worker("twin")
            cluster.wait_for_step("twin", 3)
            self.train(cluster, coordinator=cluster.address, id="twin", out=cluster.folder / "other",
                       saying=["twin"])
            before = cluster.steps("twin")
            cluster.wait_for_step("twin", before + 3)  # The first one did not notice.


    def test_two_workers_with_one_output_folder(self):
        with Cluster().serving(RUN) as cluster:
            first = cluster.start_worker("first")
            cluster.wait_for_step("first", 3)
            before = cluster.steps("first")
            for name in ("first", "second"):
                self.train(cluster, coordinator=cluster.address, id=name, out=cluster.out("first"),
                           saying=[str(cluster.out("first")), str(first.child.pid)])
            # Its files were not touched, and it did not notice.
            self.assertGreaterEqual(cluster.steps("first"), before)
            cluster.wait_for_step("first", before + 3)

    def test_a_damaged_or_foreign_checkpoint(self):
        with Cluster().serving(RUN) as cluster:
            cluster.start_worker("stays")  # The run goes on without the others.
            out = cluster.out("w")
            out.mkdir()
            (out / "checkpoint").write_bytes(b"CWAYWORK" + bytes(100))
            self.train(cluster, coordinator=cluster.address, saying=["checkpoint", "damaged"])
            (out / "checkpoint").unlink()
            worker = cluster.start_worker("w")
            cluster.wait_for_step("w", 3)
            worker.stop()
            (cluster.out("other")).mkdir()
            shutil.copy(out / "checkpoint", cluster.out("other"))
            metrics = (out / "metrics.jsonl").read_text()
            self.train(cluster, coordinator=cluster.address, id="other", out=cluster.out("other"),
                       saying=["checkpoint", "worker w", "--out"])
            self.train(cluster, coordinator=cluster.address, id="other", out=out,
                       saying=["checkpoint", "worker w", "--out"])
            self.assertEqual((out / "metrics.jsonl").read_text(), metrics)


if __name__ == "__main__":
    unittest.main()
