"""Checkpoints of Hugging Face in and out, held against transformers: bits, logits, losses, tokens."""

import contextlib
import importlib
import io
import json
import os
import pathlib
import shutil
import unittest
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from causeway.errors import InvalidArgument  # noqa: E402
from causeway.huggingface import export_folder, import_folder  # noqa: E402
from causeway.score import score  # noqa: E402
from runs import BIN, COORDINATOR, Cluster, folder_of, needs, run_python, run_tool  # noqa: E402

WORKER = BIN / "causeway-worker"
LOGIT_BOUND = 1e-4
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 20000.0}


def configurations():
    """What they have in common is small and odd."""
    def made(kind, rope, **more):
        return kind(**{"vocab_size": 256, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
                       "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "rope_parameters": rope, **more})

    llama, qwen2, qwen3 = transformers.LlamaConfig, transformers.Qwen2Config, transformers.Qwen3Config
    return {
        "llama": made(llama, PLAIN, vocab_size=131),
        "llama_tied_biases": made(llama, PLAIN, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=20,
                                  rms_norm_eps=1e-5),
        "llama3_rope": made(llama, LLAMA3),
        "qwen2": made(qwen2, PLAIN),
        "qwen3": made(qwen3, PLAIN, head_dim=16),
        "qwen3_tied": made(qwen3, PLAIN, head_dim=12, tie_word_embeddings=True),
        "gpt2": transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=2, n_head=4, n_positions=64, bos_token_id=0,
                                        eos_token_id=0),
    }


def random_model(config, seed=0):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Norms around one, biases felt, matrices wide enough for logits of some size.
            noise = torch.randn_like(value)
            value.copy_(0.15 * noise if value.dim() > 1 else 0.1 * noise + ("bias" not in name))
    return model.eval().float()


def weights(folder):
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


class HuggingFaceTest(unittest.TestCase):
    def setUp(self):
        self.folder = folder_of(self)
        transformers.utils.logging.disable_progress_bar()

    def saved(self, name, kind="llama", change=None, **more):
        """A folder of transformers'. `change` gets what is in config.json."""
        folder = self.folder / name
        model = random_model(configurations()[kind])
        model.save_pretrained(folder, **more)
        if change:
            path = folder / "config.json"
            config = json.loads(path.read_text())
            change(config)
            path.write_text(json.dumps(config))
        return folder, model

    def change_weights(self, folder, change):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    def imported(self, folder, **more):
        own = pathlib.Path(f"{folder}_own")
        return own, import_folder(str(folder), str(own), **more)

    def logits(self, folder, tokens, vocabulary):
        path = self.folder / "logits"
        status, _, error = run_tool(BIN / "model_logits", f"--checkpoint={folder}", f"--logits={path}",
                                    f"--token_list={','.join(map(str, tokens))}")
        self.assertEqual(0, status, error)
        return np.fromfile(path, np.float32).reshape(len(tokens), vocabulary)

    def assert_same_logits(self, own, model):
        tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, 24).tolist()
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0].numpy()
        found = self.logits(own, tokens, model.config.vocab_size)
        self.assertGreater(np.abs(expected).max(), 0.5)
        self.assertLess(np.abs(found - expected).max(), LOGIT_BOUND)

    def test_every_architecture_has_transformers_logits_and_comes_back_with_its_bits(self):
        for kind in configurations():
            with self.subTest(kind):
                folder, model = self.saved(kind, kind)
                own, shape = self.imported(folder)
                self.assertEqual(shape["sequence_length"], 64)
                self.assert_same_logits(own, model)
                back = self.folder / f"{kind}_back"
                self.assertEqual(export_folder(str(own), str(back)), type(model).__name__)
                before, after = weights(folder), weights(back)
                self.assertEqual(list(before), list(after))
                for name, value in before.items():
                    self.assertTrue(torch.equal(value.view(torch.int32), after[name].view(torch.int32)), name)
                again = transformers.AutoModelForCausalLM.from_pretrained(back)
                tokens = torch.arange(20)[None]
                with torch.no_grad():
                    self.assertTrue(torch.equal(model(tokens).logits, again(tokens).logits))

    def test_bf16_and_several_files_keep_every_bit(self):
        model = random_model(configurations()["qwen3"]).bfloat16()
        folder = self.folder / "half"
        model.save_pretrained(folder, max_shard_size="20KB")
        self.assertGreater(len(list(folder.glob("*.safetensors"))), 2)
        own, _ = self.imported(folder)
        back = self.folder / "back"
        export_folder(str(own), str(back), dtype="bf16", max_file_gb=20e-6)
        self.assertGreater(len(list(back.glob("*.safetensors"))), 2)
        before, after = weights(folder), weights(back)
        self.assertEqual(set(before), set(after))
        for name, value in before.items():
            self.assertEqual(after[name].dtype, torch.bfloat16)
            self.assertTrue(torch.equal(value.view(torch.int16), after[name].view(torch.int16)), name)

    def test_rope_that_llama3_scales_the_old_way_is_that_of_transformers(self):
        scaling = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}

        def beside(config):  # The same, said twice.
            config.update(rope_parameters={**scaling, "rope_theta": 10000.0}, rope_scaling=scaling)

        def alone(config):
            del config["rope_parameters"]
            config.update(rope_theta=5000.0, rope_scaling=scaling)

        for name, change, theta in (("beside", beside, 10000), ("alone", alone, 5000)):
            folder, _ = self.saved(name, "llama", change)
            own, shape = self.imported(folder)
            self.assertEqual((shape["rope_theta"], shape["rope_scaling"]["factor"]), (theta, 8))
            self.assert_same_logits(own, transformers.AutoModelForCausalLM.from_pretrained(folder))

    def test_a_newer_file_beside_an_old_index_counts_as_transformers_takes_it(self):
        folder, _ = self.saved("stale")
        tensors = load_file(folder / "model.safetensors")
        index = {}
        for i in (0, 1):
            part = {name: tensors[name] for name in sorted(tensors)[i::2]}
            save_file(part, folder / f"model-0000{i + 1}-of-00002.safetensors", {"format": "pt"})
            index.update(dict.fromkeys(part, f"model-0000{i + 1}-of-00002.safetensors"))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
        self.change_weights(folder, lambda newer: newer.update({name: value + 1 for name, value in newer.items()}))
        own, _ = self.imported(folder)
        self.assertTrue(torch.equal(weights(own)["model.norm.weight"], tensors["model.norm.weight"] + 1))
        self.assert_same_logits(own, transformers.AutoModelForCausalLM.from_pretrained(folder))

    def test_a_file_beside_an_index_of_others_is_refused_by_the_export(self):
        own, _ = self.imported(self.saved("model")[0])
        (own / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
        with self.assertRaisesRegex(InvalidArgument, "has model.safetensors, and model.safetensors.index.json, which names"):
            export_folder(str(own), str(self.folder / "back"))

    def test_a_tied_model_with_another_head_is_untied_and_that_is_said(self):
        folder, model = self.saved("tied", "llama", lambda config: config.update(tie_word_embeddings=True))
        with self.assertLogs("causeway", "WARNING") as said:
            own, shape = self.imported(folder)
        self.assertIn("lm_head.weight is not the embedding", said.output[0])
        self.assertTrue(shape["untied_head"])
        self.assert_same_logits(own, model)
        folder, _ = self.saved("same", "llama_tied_biases")
        self.change_weights(folder, lambda tensors: tensors.update(
            {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
        self.assertFalse(self.imported(folder)[1]["untied_head"])

    def test_what_is_not_done_here_is_refused_by_name(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
        nested = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
        for kind, change, message in (
                ("qwen3", {"rope_parameters": nested}, "rope_parameters is nested by layer type (full_attention)"),
                ("llama", {"rope_parameters": {**PLAIN, "rope_theta": 10000.0}, "rope_scaling": yarn}, 'rope_type is "yarn"'),
                ("llama", {"rope_parameters": {}, "rope_scaling": yarn}, 'rope_type is "yarn"'),
                ("llama", {"rope_parameters": LLAMA3, "rope_scaling": {"rope_type": "default"}},
                 'rope_parameters.rope_type is "llama3", and rope_scaling.rope_type is "default": remove'),
                ("llama", {"rope_parameters": LLAMA3, "rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
                 "rope_parameters.factor is 8.0, and rope_scaling.factor is 2.0"),
                ("llama", {"rope_parameters": None, "rope_scaling": {"rope_type": "llama3", "type": "linear"}},
                 "rope_scaling.type is"),
                ("llama", {"rope_parameters": {**PLAIN, "factor": 8.0}},
                 "rope_parameters.factor is 8.0, which counts for nothing with the rope_type default"),
                ("llama", {"rope_parameters": None, "rope_scaling": {"factor": 8.0}}, "rope_scaling.factor is 8.0, which counts"),
                *(("llama", {"rope_parameters": {**LLAMA3, name: value}},
                   f"rope_parameters.{name} is {value}, which counts for nothing with the rope_type llama3")
                  for name, value in (("attention_factor", 0.7), ("mscale", 2.0), ("beta_fast", 32))),
                *(("llama", {"rope_parameters": scaled, "rope_scaling": {"rope_theta": scaled["rope_theta"]}},
                   f'rope_parameters.rope_type is "{scaled["rope_type"]}", and transformers takes the file as rope_type "default"')
                  for scaled in (LLAMA3, {**yarn, "rope_theta": 10000.0})),
                ("llama", {"rope_scaling": "llama3"}, 'rope_scaling must be an object'),
                ("llama", {"rope_parameters": [1]}, "rope_parameters must be an object"),
                ("llama", {"architectures": {"a": 1}}, 'architectures is {"a": 1}'),
                ("llama", {"architectures": 7}, "architectures is 7"),
                ("llama", {"max_position_embeddings": 0}, "max_position_embeddings must be 1 or more"),
                ("llama", {"rms_norm_eps": 0.0}, "the norms' epsilon must be above 0"),
                ("llama", {"rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 2.0}}, 'rope_type is "linear"'),
                ("llama", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
                 "rope_parameters.partial_rotary_factor is 0.5"),
                ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not understood"),
                ("llama", {"rope_theta": 777.0}, "the base of RoPE is 777 by rope_theta, and 20000 as transformers"),
                ("llama", {"rope_theta": "20000"}, 'rope_theta must be a number; it is "20000"'),
                ("llama", {"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
                ("llama", {"sliding_window": 16}, "sliding_window is 16"),
                ("llama", {"logit_scale": 2.0}, "logit_scale is 2.0, which is not understood"),
                ("llama", {"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "auto_map is"),
                ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights"),
                ("llama", {"architectures": ["MistralForCausalLM"]}, 'architectures is ["MistralForCausalLM"]'),
                ("llama", {"model_type": "mistral"}, 'model_type is "mistral"'),
                ("qwen2", {"use_sliding_window": True, "sliding_window": 16}, "use_sliding_window is true"),
                ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has others"),
                ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true"),
                ("gpt2", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
                 'rope_scaling is {"rope_type": "linear", "factor": 2.0}, which is not understood'),
                ("gpt2", {"rope_parameters": PLAIN}, "rope_parameters is"),
                ("gpt2", {"rope_theta": 500.0}, "rope_theta is 500.0, which is not understood"),
                ("gpt2", {"head_dim": 24}, "head_dim is 24, which is not understood"),
                ("gpt2", {"activation_function": "gelu"}, 'activation_function is "gelu"')):
            with self.subTest(message):
                folder, _ = self.saved(f"refused_{abs(hash(message))}", kind, lambda config: config.update(change))
                with self.assertRaisesRegex(InvalidArgument, r"config\.json") as refused:
                    self.imported(folder)
                self.assertIn(message, refused.exception.message)
                self.assertFalse(pathlib.Path(f"{folder}_own").exists())

    def test_weights_that_are_not_the_models_are_refused_by_name(self):
        name = "model.layers.1.mlp.up_proj.weight"
        for what, change, message in (
                ("missing", lambda tensors: tensors.pop(name), f"the tensor {name} that its config.json asks for is missing"),
                ("extra", lambda tensors: tensors.update(x=torch.zeros(3)), "the tensor x belongs to nothing"),
                ("shape", lambda tensors: tensors.update({name: torch.zeros(3, 5)}),
                 f"the tensor {name} is [3, 5]; its config.json takes [88, 48]"),
                ("infinite", lambda tensors: tensors[name].view(-1)[7:8].fill_(float("inf")), f"{name} has a value that is not"),
                ("head", lambda tensors: tensors.pop("lm_head.weight"), "the tensor lm_head.weight that")):
            with self.subTest(what):
                folder, _ = self.saved(what)
                self.change_weights(folder, change)
                with self.assertRaises(InvalidArgument) as refused:
                    self.imported(folder)
                self.assertIn(message, refused.exception.message)
        folder, _ = self.saved("junk", "llama", lambda config: config.update(tie_word_embeddings=True))
        self.change_weights(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(3, 5)}))
        with self.assertRaisesRegex(InvalidArgument, "lm_head.weight perhaps, has another shape"):
            self.imported(folder)

    @contextlib.contextmanager
    def refuses_pointer(self, path):
        """What is done inside, while the file is what Git leaves of a large one."""
        kept = path.read_bytes() if path.exists() else None
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        with self.assertRaisesRegex(InvalidArgument, f"{path.name} is a Git LFS pointer"):
            yield
        path.unlink() if kept is None else path.write_bytes(kept)

    def test_folders_that_are_not_whole_are_told_apart(self):
        folder, _ = self.saved("whole")
        for name in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"):
            with self.refuses_pointer(folder / name):
                self.imported(folder)
        own, _ = self.imported(folder)
        exported, tokenizer, tasks = self.folder / "exported", folder / "tokenizer.json", self.folder / "tasks.jsonl"
        for name in ("model.safetensors", "model.textproto"):
            with self.refuses_pointer(own / name):
                export_folder(str(own), str(exported))
        with self.refuses_pointer(tokenizer):
            export_folder(str(own), str(exported), tokenizer=str(folder))
        with self.refuses_pointer(tokenizer):
            score(str(folder), ["x"])
        with self.refuses_pointer(tasks):
            score(str(folder), [str(tasks)])
        shutil.rmtree(own)
        (folder / "adapter_config.json").write_text("{}")
        with self.assertRaisesRegex(InvalidArgument, "makes the folder an adapter"):
            self.imported(folder)
        (folder / "adapter_config.json").unlink()
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[:-100])
        with self.assertRaisesRegex(InvalidArgument, "transformers .* does not load it"):
            self.imported(folder)
        (folder / "model.safetensors").unlink()
        torch.save({}, folder / "pytorch_model.bin")
        with self.assertRaisesRegex(InvalidArgument, "no file named model.safetensors"):
            self.imported(folder)
        status, _, error = run_tool(WORKER, "eval", f"--checkpoint={folder}", "--data=x")
        self.assertEqual(2, status)
        self.assertIn(f"python3 -m causeway.huggingface import --from={folder}", error)

    def test_the_training_windows_are_within_the_models_positions(self):
        folder, _ = self.saved("short")
        self.assertEqual(self.imported(folder, sequence_length=8)[1]["sequence_length"], 8)
        for length in (65, -5):
            with self.assertRaisesRegex(InvalidArgument, f"64 positions; .* it is {length}"):
                self.imported(folder, sequence_length=length, replace=True)

    def test_a_models_folder_is_replaced_as_a_whole_and_only_when_asked(self):
        folder, _ = self.saved("first")
        own, _ = self.imported(folder)
        (own / "notes.txt").write_text("mine")
        (own / "more").mkdir()
        before = {path.name: path.read_bytes() for path in own.iterdir() if path.is_file()}
        with self.assertRaisesRegex(InvalidArgument, "holds a model already .*give --replace"):
            self.imported(folder)
        self.change_weights(folder, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))
        with self.assertRaises(InvalidArgument):
            self.imported(folder, replace=True)
        self.assertEqual(before, {path.name: path.read_bytes() for path in own.iterdir() if path.is_file()})
        self.change_weights(folder, lambda tensors: tensors["model.norm.weight"].fill_(2))
        self.imported(folder, replace=True)
        self.assertEqual(sorted(path.name for path in own.iterdir()), ["model.safetensors", "model.textproto", "more", "notes.txt"])
        self.assertTrue((weights(own)["model.norm.weight"] == 2).all())
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".")], [])

    def test_a_run_begins_where_transformers_is_and_ends_where_transformers_goes_on(self):
        folder, model = self.saved("qwen3", "qwen3")
        own, _ = self.imported(folder, sequence_length=32)
        with Cluster().serving(
            "train { steps: 8 evaluation_sequences: 4 batch_sequences: 2 } sync { steps_between_syncs: 4 } "
            "membership { start_workers: 1 max_workers: 1 }", f"--initial={own}", model="") as cluster:
            worker = cluster.start_worker("a")
            self.assertEqual(0, worker.wait(), worker.log())
            self.assertEqual(0, cluster.coordinator.wait())
            losses = [json.loads(line)["eval_loss"] for line in (cluster.out("a") / "metrics.jsonl").read_text().splitlines()
                      if '"eval"' in line]
            data = json.loads((cluster.data / "data.json").read_text())
            held_out = np.frombuffer((cluster.data / data["held_out_shards"][0]).read_bytes()[1024:], "<u2").astype(np.int64)
            # Four windows, spread evenly.
            count = (len(held_out) - 1) // 32
            windows = torch.tensor(np.stack([held_out[32 * (i * count // 4):][:33] for i in range(4)]))

            def loss(of):
                with torch.no_grad():
                    logits = of(windows[:, :-1]).logits
                return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()

            self.assertAlmostEqual(losses[0], loss(model), places=4)
            saved = [self.folder / name for name in ("of_worker", "of_run")]
            for out, source in zip(saved, (f"--checkpoint={cluster.out('a') / 'checkpoint'}",
                                           f"--run_dir={cluster.folder / 'coordinator'}")):
                status, _, error = run_tool(WORKER, "export", source, f"--out={out}")
                self.assertEqual(0, status, error)
            self.assertEqual(*((out / "model.safetensors").read_bytes() for out in saved))
            back = self.folder / "back"
            self.assertEqual(export_folder(str(saved[0]), str(back)), "Qwen3ForCausalLM")
            self.assertAlmostEqual(losses[-1], loss(transformers.AutoModelForCausalLM.from_pretrained(back)), places=4)
            self.assertLess(losses[-1], losses[0])
            status, output, error = run_tool(WORKER, "eval", f"--checkpoint={saved[0]}", f"--data={cluster.data}",
                                             "--sequences=4", "--json")
            self.assertEqual(0, status, error)
            self.assertAlmostEqual(json.loads(output)["loss"], losses[-1], places=5)
            self.assertAlmostEqual(json.loads(output)["bits_per_byte"], losses[-1] / np.log(2), places=5)

    def tokenizer(self, vocabulary=300):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(["the bridge carries a stone over water"] * 9, trainers.BpeTrainer(
            vocab_size=vocabulary - 2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tokenizer.add_special_tokens(["<s>", "<|endoftext|>"])
        path = self.folder / "tokens" / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        tokenizer.save(str(path))
        return tokenizer, path.parent

    def with_tokenizer(self):
        """A model of such tokens: ours, transformers' with its tokenizer, and the model in memory."""
        tokenizer, tokens = self.tokenizer()
        config = configurations()["llama"]
        config.vocab_size = tokenizer.get_vocab_size()
        model = random_model(config)
        model.save_pretrained(self.folder / "spoken")
        own, _ = self.imported(self.folder / "spoken")
        exported = self.folder / "exported"
        export_folder(str(own), str(exported), tokenizer=str(tokens))
        return tokenizer, own, exported, model

    @needs("tokenizers")
    def test_the_tokenizer_goes_along_and_takes_the_formers_place(self):
        tokenizer, own, exported, _ = self.with_tokenizer()
        end = tokenizer.token_to_id("<|endoftext|>")
        for name in ("config.json", "generation_config.json"):
            self.assertEqual(json.loads((exported / name).read_text())["eos_token_id"], end)
        loaded = transformers.AutoTokenizer.from_pretrained(exported)
        for text in ("the bridge", "  Ünïcode\n\n12345", "a<|endoftext|>b"):
            self.assertEqual(loaded(text, add_special_tokens=False)["input_ids"],
                             tokenizer.encode(text, add_special_tokens=False).ids)
        self.assertEqual(loaded.eos_token, "<|endoftext|>")
        other = self.folder / "other"
        other.mkdir()
        (other / "vocab.json").write_text("{}")
        (other / "config.json").write_text('{"eos_token_id": 7, "hidden_size": 3}')
        (exported / "notes.txt").write_text("mine")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            export_folder(str(own), str(exported), tokenizer=str(other), replace=True)
        self.assertIn("is copied unread", said.getvalue())
        self.assertEqual(sorted(path.name for path in exported.iterdir()),
                         ["config.json", "generation_config.json", "model.safetensors", "notes.txt", "vocab.json"])
        self.assertEqual(json.loads((exported / "config.json").read_text())["eos_token_id"], 7)
        with self.assertRaisesRegex(InvalidArgument, "there is no tokenizer"):
            export_folder(str(own), str(exported), tokenizer=str(self.folder / "none.json"), replace=True)
        self.assertTrue((exported / "vocab.json").exists())

    def command(self, module, *flags, status=0):
        """What it says, in this process, which has the libraries: its errors where another status is asked for."""
        cache = {"CAUSEWAY_BIN": str(BIN), "HF_DATASETS_CACHE": str(self.folder / "cache")}
        said, error = io.StringIO(), io.StringIO()
        with mock.patch.dict(os.environ, cache), contextlib.redirect_stdout(said), contextlib.redirect_stderr(error):
            try:
                found = importlib.import_module(f"causeway.{module}").main([str(flag) for flag in flags])
            except SystemExit as ended:
                found = ended.code
        self.assertEqual(status, found, error.getvalue()[-3000:])
        return (said if status == 0 else error).getvalue()

    @needs("tokenizers")
    def test_text_that_is_generated_is_transformers(self):
        tokenizer, own, _, model = self.with_tokenizer()
        flags = (f"--checkpoint={own}", f"--tokenizer={self.folder / 'tokens'}", "--tokens=20", "--temperature=0")
        prompts = ["the bridge", "water ünd"]
        texts = []
        for prompt in prompts:
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            with torch.no_grad():
                new = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0,
                                     eos_token_id=tokenizer.token_to_id("<|endoftext|>"))[0].tolist()
            if new[-1] == tokenizer.token_to_id("<|endoftext|>"):
                new.pop()
            texts.append(tokenizer.decode(new, skip_special_tokens=False))
        self.assertEqual(self.command("generate", *flags, f"--prompt={prompts[0]}"), texts[0] + "\n")
        path = self.folder / "prompts.txt"
        path.write_text("\n".join(prompts) + "\n")
        lines = [json.loads(line) for line in self.command("generate", *flags, f"--prompts={path}", "--json").splitlines()]
        self.assertEqual([line["prompt"] + line["text"] for line in lines], texts)
        for prompt in ("the bridge\nwater", "\n"):  # One prompt, whatever is in it; "\n" is the default one.
            flag = [] if prompt == "\n" else [f"--prompt={prompt}"]
            found = json.loads(self.command("generate", *flags, *flag, "--json"))
            self.assertEqual(found["prompt"], prompt)
            self.assertEqual(prompt + found["text"] + "\n", self.command("generate", *flags, f"--prompt={prompt}"))
        self.assertIn("not allowed with argument --prompt",
                      self.command("generate", *flags, "--prompt=x", f"--prompts={path}", status=2))
        self.assertIn("are no bytes", run_tool(WORKER, "generate", f"--checkpoint={own}", "--prompt=x")[2])
        self.assertIn("there is no tokenizer", self.command("generate", f"--checkpoint={own}", "--tokenizer=none.json", status=2))

    @needs("tokenizers", "lm_eval")
    def test_tasks_are_scored_by_the_harness(self):
        tokenizer, _, exported, model = self.with_tokenizer()
        examples = [{"context": "the bridge", "completions": [" carries", " over water", "#"], "label": i % 3}
                    for i in range(6)]
        path = self.folder / "mine.jsonl"
        path.write_text("".join(json.dumps(example) + "\n" for example in examples))

        def likelihood(completion):
            context, whole = (tokenizer.encode(text).ids for text in ("the bridge", "the bridge" + completion))
            with torch.no_grad():
                logits = torch.log_softmax(model(torch.tensor([whole])).logits[0], -1)
            return sum(logits[i - 1, whole[i]].item() for i in range(len(context), len(whole)))

        best = max(range(3), key=lambda i: likelihood(examples[0]["completions"][i]))
        found = json.loads(self.command("score", f"--model={exported}", f"--tasks={path}", "--device=cpu", "--json"))
        self.assertAlmostEqual(found["mine.jsonl"]["acc"], sum(e["label"] == best for e in examples) / 6)
        path.write_text('{"context": "x", "completions": ["a"], "label": 0}\n')
        self.assertIn("mine.jsonl:1: expected", self.command("score", f"--model={exported}", f"--tasks={path}", status=2))

    def test_shapes_that_no_architecture_has_are_refused(self):
        own, _ = self.imported(self.saved("odd")[0])
        text = (own / "model.textproto").read_text()
        (own / "model.textproto").write_text(text.replace("mlp: SWIGLU", "mlp: GELU"))
        with self.assertRaisesRegex(InvalidArgument, "no architecture of Hugging Face has this model's shape: mlp GELU"):
            export_folder(str(own), str(self.folder / "x"))
        (own / "model.textproto").write_text(text.replace("layers: 2", "layers: 3"))
        with self.assertRaisesRegex(InvalidArgument, r"model\.layers\.2\..* is missing"):
            export_folder(str(own), str(self.folder / "x"))
        config = self.folder / "run.textproto"
        config.write_text("train { steps: 400 }")
        status, _, error = run_tool(COORDINATOR, "serve", f"--initial={own}", f"--run_dir={self.folder / 'run'}",
                                    f"--config={config}", "--listen=127.0.0.1:0")
        self.assertEqual(2, status)
        self.assertIn("model.layers.2.", error)

    def test_packages_that_are_missing_are_named(self):
        folder, _ = self.saved("plain")
        hide = "import sys; sys.modules['transformers'] = None; from causeway.huggingface.__main__ import main; "
        status, _, error = run_python("-c", hide + "sys.exit(main(sys.argv[1:]))", "import", f"--from={folder}",
                                      f"--out={self.folder / 'x'}")
        self.assertEqual(2, status)
        self.assertIn("needs the Python package transformers, which is missing: pip install transformers", error)
