"""A run's parameters out of it, and what is done with them: another run, evaluation, generation."""

import json
import unittest

from cluster import COORDINATOR, WORKER, Cluster, json_lines, output_of, refusal_of

RUN = """train { steps: %d } sync { steps_between_syncs: 4 }
membership { start_workers: 1 max_workers: 1 }"""


def evaluations(cluster, worker):
    return [line for line in json_lines(cluster.out(worker) / "metrics.jsonl")
            if line["kind"] == "eval"]


class StoredModelTest(unittest.TestCase):
    def exported(self, cluster):
        """The folder of a short run's published parameters, and their held-out loss."""
        cluster.start_coordinator(RUN % 8)
        self.assertEqual(cluster.start_worker("a").wait(), 0)
        self.assertEqual(cluster.coordinator.wait(), 0)
        run_dir = cluster.folder / "coordinator"
        folder = cluster.folder / "exported"
        output_of(WORKER, "export", f"--run_dir={run_dir}", f"--out={folder}")
        again = cluster.folder / "exported_again"
        output_of(WORKER, "export", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                  f"--out={again}")
        self.assertEqual((folder / "model.safetensors").read_bytes(),
                         (again / "model.safetensors").read_bytes())
        command = [WORKER, "export", f"--run_dir={run_dir}", f"--out={again}", "--dtype=bf16"]
        self.assertIn("holds a model already", refusal_of(*command))
        self.assertEqual((folder / "model.safetensors").read_bytes(),
                         (again / "model.safetensors").read_bytes())
        output_of(*command, "--replace")
        self.assertNotEqual((folder / "model.safetensors").read_bytes(),
                            (again / "model.safetensors").read_bytes())
        return folder, evaluations(cluster, "a")[-1]["eval_loss"]

    def test_a_run_begins_where_another_ended(self):
        with Cluster() as first:
            folder, loss = self.exported(first)
            result = json.loads(output_of(
                WORKER, "eval", f"--checkpoint={folder}", f"--data={first.data}",
                "--sequences=8", "--json"))
            self.assertAlmostEqual(result["loss"], loss, places=6)
            # Every token is a byte.
            self.assertAlmostEqual(result["bits_per_byte"], loss / 0.6931471805599453, places=5)

            with Cluster().serving(RUN % 100000, f"--initial={folder}",
                                   "--retain_deltas", "--snapshot_every_rounds=1000") as second:
                worker = second.start_worker("b")
                second.wait_for_step("b", 9)
                self.assertAlmostEqual(evaluations(second, "b")[0]["eval_loss"], loss, places=6)
                # Nothing is saved yet but what it began with and the deltas.
                second.coordinator.kill()
                (second.folder / "address").unlink()
                worker.kill()
                self.assertIn("began with other parameters", refusal_of(
                    COORDINATOR, "serve", f"--run_dir={second.folder / 'coordinator'}",
                    f"--initial={self.other_parameters(second)}", "--listen=127.0.0.1:0"))
                second.start_coordinator(RUN % 100000, f"--initial={folder}", "--retain_deltas")
                second.coordinator.stop()
                output = output_of(COORDINATOR, "replay",
                                   f"--run_dir={second.folder / 'coordinator'}")
                self.assertIn("each with its recorded hashes", output)

    def other_parameters(self, cluster):
        with Cluster().serving(RUN % 4 + " train { seed: 77 }") as other:
            self.assertEqual(other.start_worker("c").wait(), 0)
            self.assertEqual(other.coordinator.wait(), 0)
            folder = other.folder / "exported"
            output_of(WORKER, "export", f"--run_dir={other.folder / 'coordinator'}",
                      f"--out={folder}")
            return folder.rename(cluster.folder / "other")

    def test_a_checkpoint_with_masked_documents_is_worth_what_its_run_said(self):
        with Cluster().serving(RUN % 4 + " train { document_masking: true }") as cluster:
            self.assertEqual(cluster.start_worker("a").wait(), 0)
            self.assertEqual(cluster.coordinator.wait(), 0)
            result = json.loads(output_of(
                WORKER, "eval", f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                f"--data={cluster.data}", "--sequences=8", "--json"))
            self.assertAlmostEqual(result["loss"], evaluations(cluster, "a")[-1]["eval_loss"],
                                   places=6)
            self.assertGreater(result["bits_per_byte"], 0)

    def test_shards_of_others_have_a_loss_alone(self):
        with Cluster() as cluster:
            folder, loss = self.exported(cluster)
            shards = cluster.folder / "foreign"
            shards.mkdir()
            for path in cluster.data.glob("*.bin"):
                (shards / path.name).write_bytes(path.read_bytes())
            command = [WORKER, "eval", f"--checkpoint={folder}", f"--data={shards}",
                       "--sequences=8", "--json"]
            result = json.loads(output_of(*command))
            self.assertAlmostEqual(result["loss"], loss, places=6)
            self.assertNotIn("bits_per_byte", result)
            self.assertIn("--threads must be in 0 .. 1024", refusal_of(*command, "--threads=1000000"))

    def test_bits_per_byte_are_those_of_the_datas_text(self):
        with Cluster() as cluster:
            folder, loss = self.exported(cluster)
            description = json.loads((cluster.data / "data.json").read_text())
            # As if every token were three bytes.
            description.update(tokenizer="tokenizer.json", held_out_bytes=3 * description["held_out_tokens"])
            (cluster.data / "data.json").write_text(json.dumps(description))
            command = [WORKER, "eval", f"--checkpoint={folder}", f"--data={cluster.data}", "--sequences=8"]
            result = json.loads(output_of(*command, "--json"))
            self.assertAlmostEqual(result["bits_per_byte"], loss / 0.6931471805599453 / 3, places=5)
            self.assertIn(" held-out tokens, ", output_of(*command))
            # Of data that say nothing, as those of former releases.
            del description["held_out_bytes"]
            (cluster.data / "data.json").write_text(json.dumps(description))
            self.assertNotIn("bits_per_byte", json.loads(output_of(*command, "--json")))

    def test_generation_of_bytes_and_of_token_numbers(self):
        with Cluster() as cluster:
            folder, _ = self.exported(cluster)
            prompts = cluster.folder / "prompts.txt"
            prompts.write_text("the bridge\nwater\n")
            flags = ["generate", f"--checkpoint={folder}", "--tokens=40",
                     "--temperature=0"]
            batch = [json.loads(line) for line in output_of(
                WORKER, *flags, f"--prompts={prompts}", "--json").splitlines()]
            alone = output_of(WORKER, *flags, "--prompt=the bridge")
            self.assertEqual(alone, "the bridge" + batch[0]["text"] + "\n")
            self.assertEqual([line["tokens"] for line in batch], [40, 40])
            # 20 kB hold the keys and values of one text of 32 tokens, 16 kB, not of two.
            one_by_one = output_of(WORKER, *flags, f"--prompts={prompts}", "--json",
                                   "--max_cache_gb=0.00002")
            self.assertEqual([json.loads(line) for line in one_by_one.splitlines()], batch)
            self.assertIn("--max_cache_gb", refusal_of(WORKER, *flags, "--prompt=a", "--max_cache_gb=0.000001"))

            text = "the bridge" + batch[0]["text"]
            numbers = " ".join(str(byte) for byte in text.encode())
            asked = " ".join(str(byte) for byte in b"the bridge")
            self.assertEqual(output_of(WORKER, *flags, "--ids", f"--prompt={asked}"), numbers + "\n")
            end = text.encode()[13]
            short = output_of(WORKER, *flags, "--ids", f"--prompt={asked}", f"--end_token={end}")
            first = text.encode().index(end, 10)
            self.assertEqual(short.split(), numbers.split()[:first])
            for wrong, said in ((["--prompt=1 256"], '"256" is none'), (["--prompt= "], "must not be empty"),
                                (["--prompt=1", "--end_token=256"], "--end_token must be within the model's 256")):
                self.assertIn(said, refusal_of(WORKER, *flags, "--ids", *wrong))


if __name__ == "__main__":
    unittest.main()
