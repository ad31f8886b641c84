"""The examples of worker/python/examples as people start them, with tiny settings."""

import os
import re
import sys
import unittest

from runs import HERE, ROOT, Run, cluster, needs

EXAMPLES = ROOT / "worker" / "python" / "examples"
sys.path.insert(0, str(EXAMPLES))

import token_shards  # noqa: E402

PATIENCE_S = 240
SYNC = """
sync { fragments: 2 pattern: BALANCED steps_between_syncs: 6 overlap_steps: 1 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 2 }
"""


class ExamplesTest(unittest.TestCase):
    def setUp(self):
        self.run_of_test = Run()
        self.run_of_test.__enter__()
        self.addCleanup(self.run_of_test.__exit__, None, None, None)
        self.text = self.run_of_test.folder / "text.txt"
        self.text.write_text(cluster.text(8000))

    def start_python(self, name, *words, **variables):
        return self.run_of_test.start(f"{name}.log", sys.executable, "-B", *words, variables={
            "PYTHONPATH": str(ROOT / "worker" / "python"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1", **variables})

    def start(self, name, program, *flags, launcher=()):
        """One site; `launcher` stands before the program."""
        return self.start_python(name, *launcher, EXAMPLES / program, f"--coordinator={self.run_of_test.address}",
                                 f"--id={name}", f"--data={self.text}", *flags)

    def finish(self, *sites):
        """Waits for them and the coordinator; returns the coordinator's summary."""
        for site in sites:
            self.assertEqual(0, site.child.wait(timeout=PATIENCE_S), site.log())
        return self.run_of_test.finish()

    def last_words(self, site):
        return site.log().strip().splitlines()[-1]

    def test_numpy_sites_end_with_one_model(self):
        self.run_of_test.serve(SYNC, "--initial=first-site", steps=60)
        sites = [self.start(f"s{i}", "numpy_site.py", f"--seed={i}") for i in range(2)]
        self.finish(*sites)
        said = [self.last_words(site) for site in sites]
        self.assertEqual(said[0], said[1])
        self.assertLess(float(said[0].split()[-1]), 4.5)  # Bytes at random have 5.55.

    @needs("torch")
    def test_script_of_the_page_ends_with_one_number_twice(self):
        page = (ROOT / "docs" / "pytorch.md").read_text()
        script = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
                      if "sys.argv" in block)
        config = re.search(r"<<'TEXT'\n(.*?)TEXT\n", page, re.DOTALL).group(1)
        path = self.run_of_test.folder / "train.py"
        path.write_text(script)
        # serve() names the steps itself.
        config, steps = re.sub(r"train \{ steps: (\d+) \}\n", "", config), 60
        self.run_of_test.serve(config, "--initial=first-site", steps=steps)
        sites = [self.start_python(name, path, self.run_of_test.address, name) for name in ("paris", "berlin")]
        self.finish(*sites)
        said = [self.last_words(site).split(": ")[1] for site in sites]
        self.assertEqual(said[0], said[1])
        self.assertLess(float(said[0].split()[-1]), 3.5)

    @needs("torch")
    def test_site_of_two_processes_beside_a_site_of_one(self):
        self.run_of_test.serve(SYNC, "--initial=first-site", steps=14)
        small = ("--layers=2", "--width=32", "--length=32", "--batch=2")
        torchrun = ("-m", "torch.distributed.run", "--standalone")
        out = [self.run_of_test.folder / f"{ranks}.pt" for ranks in (1, 2)]
        sites = [self.start(f"ranks-{ranks}", "train_fsdp2.py", *small, f"--out={out[ranks - 1]}",
                            launcher=(*torchrun, f"--nproc_per_node={ranks}")) for ranks in (1, 2)]
        self.finish(*sites)
        import torch
        one, two = (torch.load(path) for path in out)
        self.assertEqual(one.keys(), two.keys())
        for name in one:
            self.assertTrue(torch.equal(one[name], two[name]), name)

    @needs("torchtitan")
    def test_two_sites_of_torchtitan(self):
        self.run_of_test.serve(SYNC, "--initial=first-site", steps=7)
        sites = []
        for name in ("paris", "berlin"):
            folder = self.run_of_test.folder / name
            folder.mkdir()
            sites.append(self.start_python(
                name, HERE / "titan_on_cpu.py", folder, EXAMPLES / "train_torchtitan.py",
                f"--coordinator={self.run_of_test.address}", f"--id={name}", "--module=llama3",
                "--config=llama3_debugmodel", "--training.steps=100", "--training.local_batch_size=1",
                "--training.seq_len=32", PYTHONPATH=os.pathsep.join(sys.path), HF_DATASETS_CACHE=str(folder),
                TORCHDYNAMO_DISABLE="1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                MASTER_PORT="0"))
        summary = self.finish(*sites)
        self.assertEqual((0, 2 * 7 * 32), (summary["hash_mismatches"], summary["tokens"]))
        self.assertGreater(summary["hash_checks"], 0)
        for name, site in zip(("paris", "berlin"), sites):
            self.assertEqual(f"site {name}: step 7 of the run", self.last_words(site))

    @needs("torch", "transformers", "peft", "accelerate", "safetensors")
    def test_fine_tune_with_lora_sends_its_adapters_alone(self):
        self.run_of_test.serve(SYNC, "--initial=first-site", steps=14)
        out = [self.run_of_test.folder / f"s{i}" for i in range(2)]
        sites = [self.start(f"s{i}", "finetune_lora.py", f"--out={out[i]}", f"--data_seed={i}",
                            "--length=32", "--batch=4") for i in range(2)]
        summary = self.finish(*sites)
        self.assertEqual(8192, summary["parameters"])
        from safetensors.torch import load_file
        import torch
        one, two = (load_file(folder / "adapter_model.safetensors") for folder in out)
        self.assertEqual(8192, sum(tensor.numel() for tensor in one.values()))
        for name in one:
            self.assertTrue(torch.equal(one[name], two[name]), name)
        self.assertTrue(any(tensor.abs().max() > 0 for name, tensor in one.items() if "lora_B" in name))


class TokensTest(unittest.TestCase):
    def test_windows_are_drawn_as_causeway_worker_draws_them(self):
        # The values of tests/unit/common/base/random_test.cc.
        self.assertEqual([1, 9, 5, 6, 7, 2, 3, 4, 8, 0],
                         [token_shards.permuted(1, 2, 10, i) for i in range(10)])
        self.assertEqual(823_531, token_shards.permuted(3, 4, 1_000_000, 123_456))
        self.assertEqual(578_457_074_443, token_shards.permuted(3, 4, (1 << 40) + 1, 5))

    def test_tokens_across_shards_are_those_of_one(self):
        import numpy
        whole = numpy.arange(1000, dtype=numpy.uint16)
        one = token_shards.Tokens([whole])
        cut = token_shards.Tokens([whole[:7], whole[7:500], whole[500:]])
        for begin, count in ((0, 1000), (5, 3), (6, 600), (500, 1), (999, 1)):
            self.assertEqual(one.read(begin, count).tolist(), cut.read(begin, count).tolist())
        slots = [token_shards.draw_windows(cut, 9, 5, seed=3, slot=slot, slots=2, first_draw=0)
                 for slot in range(2)]
        self.assertEqual(10, len({row[0] for rows in slots for row in rows.tolist()}))

    @needs("torch", "transformers")
    def test_small_transformer_computes_what_qwen3_does(self):
        import torch
        import transformers
        from small_transformer import Shape, SmallTransformer
        torch.manual_seed(1)
        shape = Shape(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=48)
        ours = SmallTransformer(shape)
        theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5,
            rope_theta=10000.0, tie_word_embeddings=True))
        self.assertEqual(["lm_head.weight"],
                         theirs.load_state_dict(ours.state_dict(), strict=False).missing_keys)
        tokens = torch.randint(256, (2, 20))
        with torch.no_grad():
            difference = (ours(tokens) - theirs(tokens).logits).abs().max().item()
        self.assertLess(difference, 1e-5)
