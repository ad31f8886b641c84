"""A run's parameters out as a checkpoint of Hugging Face's, and into another run, by real processes."""

import json
import pathlib
import signal
import unittest

from cluster import COORDINATOR, MODEL, WORKER, Cluster, json_lines, run_tool

FIXTURES = pathlib.Path(__file__).parent.parent / "unit/worker/data/tokenizers"
RUN = """train { steps: %d } sync { steps_between_syncs: 4 }
membership { start_workers: 1 max_workers: 1 }"""


def evaluations(cluster, worker):
    return [line for line in json_lines(cluster.out(worker) / "metrics.jsonl")
            if line["kind"] == "eval"]


class HuggingFaceTest(unittest.TestCase):
    def tool(self, *command):
        status, output, error = run_tool(*command)
        self.assertEqual(status, 0, error)
        return output

    def exported(self, cluster):
        """The folder of a short run's published parameters, and their held-out loss."""
        cluster.start_coordinator(RUN % 8)
        self.assertEqual(cluster.start_worker("a").wait(), 0)
        self.assertEqual(cluster.coordinator.wait(), 0)
        run_dir = cluster.folder / "coordinator"
        folder = cluster.folder / "exported"
        self.tool(WORKER, "export", f"--run_dir={run_dir}", f"--out={folder}")
        again = cluster.folder / "exported_again"
        self.tool(WORKER, "export", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                  f"--out={again}")
        self.assertEqual((folder / "model.safetensors").read_bytes(),
                         (again / "model.safetensors").read_bytes())
        return folder, evaluations(cluster, "a")[-1]["eval_loss"]

    def test_a_run_begins_where_another_ended(self):
        with Cluster() as first:
            folder, loss = self.exported(first)
            config = json.loads((folder / "config.json").read_text())
            self.assertEqual(config["architectures"], ["Qwen3ForCausalLM"])
            result = json.loads(self.tool(
                WORKER, "eval", f"--checkpoint={folder}", f"--data={first.data}",
                "--sequences=8", "--json"))
            self.assertAlmostEqual(result["loss"], loss, places=6)
            # Every token is a byte.
            self.assertEqual(result["bytes"], result["tokens"])
            self.assertAlmostEqual(result["bits_per_byte"], loss / 0.6931471805599453, places=5)

            parameters = first.folder / "imported.parameters"
            shape = self.tool(WORKER, "import", f"--from={folder}", f"--out={parameters}")
            self.assertIn("qk_norm: true", shape)
            with Cluster() as second:
                second.start_coordinator(RUN % 100000, f"--initial={parameters}",
                                         "--retain_deltas", "--snapshot_every_rounds=1000")
                worker = second.start_worker("b")
                second.wait_for_step("b", 9)
                self.assertAlmostEqual(evaluations(second, "b")[0]["eval_loss"], loss, places=6)
                # Nothing is saved yet but what it began with and the deltas.
                second.coordinator.signal(signal.SIGKILL)
                second.coordinator.wait()
                (second.folder / "address").unlink()
                worker.signal(signal.SIGKILL)
                worker.wait()
                status, _, error = run_tool(
                    COORDINATOR, "serve", f"--run_dir={second.folder / 'coordinator'}",
                    f"--initial={self.other_parameters(second)}", "--listen=127.0.0.1:0")
                self.assertEqual(status, 2)
                self.assertIn("began with other parameters", error)
                second.start_coordinator(RUN % 100000, f"--initial={parameters}", "--retain_deltas")
                second.coordinator.signal(signal.SIGTERM)
                self.assertEqual(second.coordinator.wait(), 0, second.coordinator.log())
                output = self.tool(COORDINATOR, "replay",
                                   f"--run_dir={second.folder / 'coordinator'}")
                self.assertIn("each with its recorded hashes", output)

    def other_parameters(self, cluster):
        with Cluster() as other:
            other.start_coordinator(RUN % 4 + " train { seed: 77 }")
            self.assertEqual(other.start_worker("c").wait(), 0)
            self.assertEqual(other.coordinator.wait(), 0)
            folder = other.folder / "exported"
            self.tool(WORKER, "export", f"--run_dir={other.folder / 'coordinator'}",
                      f"--out={folder}")
            path = cluster.folder / "other.parameters"
            self.tool(WORKER, "import", f"--from={folder}", f"--out={path}")
            return path

    def test_parameters_of_another_shape_are_refused_with_both_shapes(self):
        with Cluster() as cluster:
            folder, _ = self.exported(cluster)
            parameters = cluster.folder / "imported.parameters"
            self.tool(WORKER, "import", f"--from={folder}", f"--out={parameters}")
            config = cluster.folder / "wide.textproto"
            config.write_text(MODEL + "model { mlp_width: 96 }")
            status, _, error = run_tool(
                COORDINATOR, "serve", f"--run_dir={cluster.folder / 'wide'}", f"--config={config}",
                f"--initial={parameters}", "--listen=127.0.0.1:0")
            self.assertEqual(status, 2)
            self.assertIn("mlp.gate_proj.weight is [96, 32] in the run's model, but [64, 32]", error)
            self.assertFalse((cluster.folder / "wide").exists())

    def test_a_checkpoint_with_masked_documents_is_worth_what_its_run_said(self):
        with Cluster() as cluster:
            cluster.start_coordinator(RUN % 4 + " train { document_masking: true }")
            self.assertEqual(cluster.start_worker("a").wait(), 0)
            self.assertEqual(cluster.coordinator.wait(), 0)
            result = json.loads(self.tool(
                WORKER, "eval", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                f"--data={cluster.data}", "--sequences=8", "--json"))
            self.assertAlmostEqual(result["loss"], evaluations(cluster, "a")[-1]["eval_loss"],
                                   places=6)
            self.assertGreater(result["bits_per_byte"], 0)
            self.assertTrue(result["bytes_are_exact"])

    def test_shards_of_others_have_bits_per_byte_by_a_named_tokenizer(self):
        with Cluster() as cluster:
            folder, loss = self.exported(cluster)
            shards = cluster.folder / "foreign"
            shards.mkdir()
            for path in cluster.data.glob("*.bin"):
                (shards / path.name).write_bytes(path.read_bytes())
            command = [WORKER, "eval", f"--checkpoint={folder}", f"--data={shards}",
                       "--sequences=8", "--json"]
            result = json.loads(self.tool(*command))
            self.assertAlmostEqual(result["loss"], loss, places=6)
            self.assertNotIn("bits_per_byte", result)
            # Whatever the text is for it: its tokens stand for bytes.
            result = json.loads(self.tool(*command, f"--tokenizer={FIXTURES / 'gpt2'}"))
            self.assertGreater(result["bits_per_byte"], 0)
            status, _, error = run_tool(*command, f"--tokenizer={shards / 'none.json'}")
            self.assertEqual(status, 2)
            self.assertIn("none.json", error)
            status, _, error = run_tool(*command, "--threads=1000000")
            self.assertEqual(status, 2)
            self.assertIn("--threads must be in 0 .. 1024", error)
            status, _, error = run_tool(
                WORKER, "eval", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                f"--data={shards}", "--sequence_length=8")
            self.assertEqual(status, 2)
            self.assertIn("has its own", error)

    def test_without_its_tokenizer_a_folder_has_a_loss_and_a_word_about_it(self):
        with Cluster() as cluster:
            folder, loss = self.exported(cluster)
            description = json.loads((cluster.data / "data.json").read_text())
            description["tokenizer"] = "lost.json"
            (cluster.data / "data.json").write_text(json.dumps(description))
            status, output, error = run_tool(
                WORKER, "eval", f"--checkpoint={folder}", f"--data={cluster.data}",
                "--sequences=8", "--json")
            self.assertEqual(status, 0, error)
            self.assertAlmostEqual(json.loads(output)["loss"], loss, places=6)
            self.assertIn("no bits per byte", error)
            self.assertIn("lost.json", error)

    def test_a_model_is_not_written_over_unasked(self):
        with Cluster() as cluster:
            folder, _ = self.exported(cluster)
            before = {path.name: path.read_bytes() for path in folder.iterdir()}
            command = [WORKER, "export", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                       f"--out={folder}", "--dtype=bf16"]
            status, _, error = run_tool(*command)
            self.assertEqual(status, 2)
            self.assertIn("holds a model already", error)
            self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, before)
            self.tool(*command, "--replace")
            self.assertNotEqual((folder / "model.safetensors").read_bytes(),
                                before["model.safetensors"])

    def test_a_worker_evaluates_tasks_while_it_trains(self):
        with Cluster() as cluster:
            source = cluster.folder / "task.jsonl"
            source.write_text('{"context": "over water", "completions": [" and", "zq#"], "label": 0}\n')
            task = cluster.folder / "task.bin"
            self.tool(WORKER, "make-task", f"--input={source}", f"--out={task}")
            cluster.start_coordinator(RUN % 8)
            worker = cluster.start_worker("a", f"--eval_tasks={task}", "--eval_tasks_every=4")
            self.assertEqual(worker.wait(), 0, worker.log())
            lines = [line for line in json_lines(cluster.out("a") / "metrics.jsonl")
                     if line["kind"] == "task"]
            self.assertEqual([line["step"] for line in lines], [0, 4, 8])
            result = json.loads(self.tool(
                WORKER, "eval", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                f"--tasks={task}", "--json"))["tasks"][0]
            last = cluster.summary("a")["tasks"][0]
            self.assertEqual(last["step"], 8)
            self.assertAlmostEqual(last["loss"], result["loss"], places=6)
            self.assertEqual(last["accuracy"], result["accuracy"])
            status, _, error = run_tool(
                WORKER, "train", "--coordinator=127.0.0.1:1", "--id=a", f"--data={cluster.data}",
                f"--out={cluster.out('b')}", "--eval_tasks_every=4")
            self.assertEqual(status, 2)
            self.assertIn("needs --eval_tasks", error)

    def test_the_end_of_text_goes_along_from_a_single_tokenizer_file(self):
        with Cluster() as cluster:
            self.exported(cluster)
            fixture = FIXTURES / "gpt2" / "tokenizer.json"
            tokenizer = cluster.folder / "mine.json"
            tokenizer.write_bytes(fixture.read_bytes())
            folder = cluster.folder / "with_tokenizer"
            self.tool(WORKER, "export", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                      f"--out={folder}", f"--tokenizer={tokenizer}")
            self.assertEqual((folder / "tokenizer.json").read_bytes(), fixture.read_bytes())
            added = json.loads(fixture.read_text())["added_tokens"]
            end = next(t["id"] for t in added if t["content"] == "<|endoftext|>")
            for name in ("config.json", "generation_config.json"):
                self.assertEqual(json.loads((folder / name).read_text())["eos_token_id"], end)
            status, _, error = run_tool(WORKER, "import", f"--from={folder}",
                                        f"--out={cluster.folder / 'x'}", "--sequence_length=-5")
            self.assertEqual(status, 2)
            self.assertIn("it is -5", error)

    def test_tasks_and_generation(self):
        with Cluster() as cluster:
            folder, _ = self.exported(cluster)
            lines = [{"context": "over water", "completions": [" and wind", "zzqqxx##"], "label": 0},
                     {"context": "slowly", "completions": ["@@@@", " home again"], "label": 1}]
            source = cluster.folder / "task.jsonl"
            source.write_text("".join(json.dumps(line) + "\n" for line in lines))
            task = cluster.folder / "task.bin"
            self.tool(WORKER, "make-task", f"--input={source}", f"--out={task}")
            result = json.loads(self.tool(
                WORKER, "eval", f"--checkpoint={folder}", f"--tasks={task}", "--json"))
            self.assertEqual(result["tasks"][0]["examples"], 2)
            self.assertIn(result["tasks"][0]["accuracy"], (0, 0.5, 1))

            prompts = cluster.folder / "prompts.txt"
            prompts.write_text("the bridge\nwater\n")
            flags = ["generate", f"--checkpoint={folder}", "--tokens=40",
                     "--temperature=0"]
            batch = [json.loads(line) for line in self.tool(
                WORKER, *flags, f"--prompts={prompts}", "--json").splitlines()]
            alone = self.tool(WORKER, *flags, "--prompt=the bridge")
            self.assertEqual(alone, "the bridge" + batch[0]["text"] + "\n")
            self.assertEqual([line["tokens"] for line in batch], [40, 40])
            # 20 kB hold the keys and values of one text of 32 tokens, 16 kB, not of two.
            one_by_one = self.tool(WORKER, *flags, f"--prompts={prompts}", "--json",
                                   "--max_cache_gb=0.00002")
            self.assertEqual([json.loads(line) for line in one_by_one.splitlines()], batch)
            status, _, error = run_tool(WORKER, *flags, "--prompt=a", "--max_cache_gb=0.000001")
            self.assertEqual(status, 2)
            self.assertIn("--max_cache_gb", error)


if __name__ == "__main__":
    unittest.main()
