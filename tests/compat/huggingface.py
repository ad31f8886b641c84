#!/usr/bin/env python3
"""Holds imports, exports and evaluations against Hugging Face's transformers.

usage: huggingface.py --bin BUILD/bin [--work FOLDER] [--fixtures FOLDER] [--json]

Needs transformers, torch and safetensors of the Python that runs it, and so is no part of tests/run.
For small random models of every supported architecture:

  import    their folder -> causeway-worker import -> the logits of both agree
  export    causeway-worker export -> from_pretrained -> the same logits; the same bits in every tensor
  bf16      a bf16 folder comes back with the same bits from import and export --dtype=bf16
  shards    a folder of several files with an index, in and out
  run       a run of causeway-coordinator --initial=... and one worker: its first evaluation is
            transformers' loss on the same windows
  tokenizers  AutoTokenizer of an exported folder gives the tokens of the tokenizer.json in it
  refusals  what is not supported is refused by name

Prints one line per check and exits 1 if any failed. --fixtures writes the folders with expected
logits that the unit tests read.
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import numpy
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

LOGIT_BOUND = 1e-4
LOSS_BOUND = 1e-4
TOKENS = 24

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def shapes():
    """Name -> configuration; what they have in common is small and odd."""
    common = dict(vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                  bos_token_id=None, eos_token_id=None, pad_token_id=None)

    def rope(parameters, **values):
        values["rope_parameters"] = parameters
        return values

    plain = {"rope_type": "default", "rope_theta": 20000.0}
    return {
        "llama": transformers.LlamaConfig(**common, **rope(plain)),
        "llama_tied_biases": transformers.LlamaConfig(
            **common, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=20,
            rms_norm_eps=1e-5, **rope(plain)),
        "llama3_rope": transformers.LlamaConfig(**common, **rope(LLAMA3_ROPE)),
        "qwen2": transformers.Qwen2Config(**common, use_sliding_window=False, **rope(plain)),
        "qwen3": transformers.Qwen3Config(**common, head_dim=16, use_sliding_window=False,
                                          **rope(plain)),
        "qwen3_tied": transformers.Qwen3Config(**common, head_dim=12, tie_word_embeddings=True,
                                               use_sliding_window=False, **rope(plain)),
        "gpt2": transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=2, n_head=4,
                                        n_positions=64, bos_token_id=0, eos_token_id=0),
    }


def random_model(config, seed=0):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Norms around one, biases felt, matrices wide enough for logits of some size.
            noise = torch.randn_like(value)
            if value.dim() == 1:
                value.copy_(0.1 * noise + (1.0 if "bias" not in name else 0.0))
            else:
                value.copy_(0.15 * noise)
    return model.eval().float()


class Checks:
    def __init__(self, options, work):
        self.bin = options.bin
        self.work = work
        self.results = []

    def report(self, name, passed, detail):
        self.results.append({"check": name, "passed": bool(passed), "detail": detail})
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {detail}", flush=True)

    def run(self, *arguments, check=True):
        done = subprocess.run([os.path.join(self.bin, arguments[0]), *arguments[1:]],
                              capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
        return done

    def logits(self, checkpoint, tokens, vocabulary):
        path = os.path.join(self.work, "logits")
        self.run("model_logits", f"--checkpoint={checkpoint}", f"--logits={path}",
                 f"--token_list={','.join(map(str, tokens))}")
        return numpy.fromfile(path, dtype=numpy.float32).reshape(len(tokens), vocabulary)


def their_logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def stored_tensors(folder):
    """Of all files; a tied head is no tensor of its own."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(folder, name)))
    return tensors


def same_bits(left, right):
    """'' if all tensors are equal, else what differs first."""
    if set(left) != set(right):
        return f"names differ: {sorted(set(left) ^ set(right))[:3]}"
    for name, value in left.items():
        other = right[name]
        if value.dtype != other.dtype or value.shape != other.shape:
            return f"{name}: {value.dtype} {tuple(value.shape)}, {other.dtype} {tuple(other.shape)}"
        kind = torch.int32 if value.dtype == torch.float32 else torch.int16
        if not torch.equal(value.contiguous().view(kind), other.contiguous().view(kind)):
            return f"{name}: other bits"
    return ""


def check_architecture(checks, name, config):
    tokens = [int(t) for t in numpy.random.default_rng(1).integers(0, config.vocab_size, TOKENS)]
    model = random_model(config)
    theirs = os.path.join(checks.work, name)
    model.save_pretrained(theirs)
    expected = their_logits(model, tokens)

    ours = os.path.join(checks.work, name + ".parameters")
    checks.run("causeway-worker", "import", f"--from={theirs}", f"--out={ours}")
    difference = numpy.abs(checks.logits(ours, tokens, config.vocab_size) - expected).max()
    checks.report(f"{name} import", difference <= LOGIT_BOUND,
                  f"largest difference of a logit {difference:.2e} (of up to "
                  f"{numpy.abs(expected).max():.2f})")

    back = os.path.join(checks.work, name + "_back")
    checks.run("causeway-worker", "export", f"--checkpoint={ours}", f"--out={back}")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).eval()
    difference = numpy.abs(their_logits(loaded, tokens) - expected).max()
    checks.report(f"{name} export", type(loaded) is type(model) and difference <= LOGIT_BOUND,
                  f"{type(loaded).__name__}, largest difference {difference:.2e}")
    differs = same_bits(stored_tensors(theirs), stored_tensors(back))
    checks.report(f"{name} bits", not differs, differs or "the same in every tensor")

    half = os.path.join(checks.work, name + "_bf16")
    half_back = half + "_back"
    model.to(torch.bfloat16).save_pretrained(half, max_shard_size="60KB")
    checks.run("causeway-worker", "export", f"--checkpoint={half}", f"--out={half_back}",
               "--dtype=bf16", "--max_file_gb=0.00006")
    differs = same_bits(stored_tensors(half), stored_tensors(half_back))
    files = len([f for f in os.listdir(half_back) if f.endswith(".safetensors")])
    checks.report(f"{name} bf16 in several files", not differs and files > 1,
                  differs or f"the same bits, {files} files")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(half_back, dtype=torch.float32)
    reference = transformers.AutoModelForCausalLM.from_pretrained(half, dtype=torch.float32)
    difference = numpy.abs(their_logits(loaded.eval(), tokens) -
                           their_logits(reference.eval(), tokens)).max()
    checks.report(f"{name} bf16 loads", difference == 0, f"largest difference {difference:.2e}")


def write_shard(path, tokens, vocabulary):
    header = [20240520, 1, len(tokens), vocabulary] + [0] * 252
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", *header))
        file.write(numpy.asarray(tokens, dtype=numpy.uint16).tobytes())


def check_run(checks, name, config):
    """The first evaluation of a run that starts from the model."""
    length, windows = 32, 4
    model = random_model(config, seed=3)
    theirs = os.path.join(checks.work, name + "_run")
    model.save_pretrained(theirs)
    ours = theirs + ".parameters"
    checks.run("causeway-worker", "import", f"--from={theirs}", f"--out={ours}",
               f"--sequence_length={length}")
    data = theirs + "_data"
    os.makedirs(data)
    generator = numpy.random.default_rng(2)
    held_out = generator.integers(0, config.vocab_size, length * windows + 1)
    write_shard(os.path.join(data, "train_000000.bin"),
                generator.integers(0, config.vocab_size, 4000), config.vocab_size)
    write_shard(os.path.join(data, "val_000000.bin"), held_out, config.vocab_size)
    losses = []
    for begin in range(0, length * windows, length):
        window = torch.tensor(held_out[begin:begin + length + 1])
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits, window[1:]).item())
    expected = sum(losses) / len(losses)

    settings = os.path.join(checks.work, "run.textproto")
    with open(settings, "w") as file:
        file.write('run_name: "imported"\ntrain { steps: 4 batch_sequences: 2 '
                   'evaluation_sequences: 4 }\nsync { steps_between_syncs: 2 }\n'
                   'membership { start_workers: 1 max_workers: 1 }\n')
    run_dir = theirs + "_dir"
    address_file = theirs + "_address"
    command = [os.path.join(checks.bin, "causeway-coordinator"), "serve", f"--run_dir={run_dir}",
               f"--config={settings}", f"--initial={ours}", "--listen=127.0.0.1:0",
               f"--address_file={address_file}", "--exit_when_finished"]
    coordinator = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.time() + 60
        while not os.path.exists(address_file) and time.time() < deadline:
            time.sleep(0.05)
        with open(address_file) as file:
            address = file.read()
        out = theirs + "_worker"
        checks.run("causeway-worker", "train", f"--coordinator={address}", "--id=a",
                   f"--data={data}", f"--out={out}", "--threads=1")
        coordinator.wait(timeout=60)
    finally:
        if coordinator.poll() is None:
            coordinator.kill()
    with open(os.path.join(out, "metrics.jsonl")) as file:
        first = next(line for line in map(json.loads, file) if line["kind"] == "eval")
    difference = abs(first["eval_loss"] - expected)
    checks.report(f"{name} run", first["step"] == 0 and difference <= LOSS_BOUND,
                  f"first evaluation {first['eval_loss']:.6f}, transformers {expected:.6f}, "
                  f"difference {difference:.1e}")
    exported = theirs + "_published"
    checks.run("causeway-worker", "export", f"--run_dir={run_dir}", f"--out={exported}")
    trained = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    checkpoint = checks.logits(os.path.join(out, "checkpoint"), [1, 2, 3], config.vocab_size)
    difference = numpy.abs(their_logits(trained.eval(), [1, 2, 3]) - checkpoint).max()
    checks.report(f"{name} published", difference <= LOGIT_BOUND,
                  f"export of the coordinator's folder against the worker's checkpoint: "
                  f"{difference:.2e}")


def check_tokenizers(checks):
    """AutoTokenizer of an exported folder against the tokenizer.json that was given."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/worker/data/tokenizers")
    strings = ["year 12345 I'm  here\n\n x", "caf\u00e9 cafe\u0301", "a <|endoftext|> b", " lead"]
    for kind in ("gpt2", "llama3", "qwen"):
        source = os.path.join(root, kind, "tokenizer.json")
        reference = tokenizers.Tokenizer.from_file(source)
        for name in ("llama", "qwen2", "qwen3", "gpt2"):
            folder = os.path.join(checks.work, f"{name}_{kind}_tokenizer")
            checks.run("causeway-worker", "export", f"--out={folder}", f"--tokenizer={source}",
                       f"--checkpoint={os.path.join(checks.work, name + '.parameters')}")
            # For qwen2, AutoTokenizer takes Qwen2Tokenizer whatever a folder says.
            loader = (transformers.PreTrainedTokenizerFast if name == "qwen2" and kind != "qwen"
                      else transformers.AutoTokenizer)
            theirs = loader.from_pretrained(folder)
            different = [s for s in strings if theirs(s, add_special_tokens=False)["input_ids"] !=
                         reference.encode(s, add_special_tokens=False).ids]
            checks.report(f"{name} with the tokenizer of {kind}", not different,
                          f"{type(theirs).__name__}, eos_token {theirs.eos_token}" +
                          (f", other tokens for {different}" if different else ""))


def check_refusals(checks):
    def refused(name, edit, expected):
        folder = os.path.join(checks.work, "refused_" + name)
        shutil.copytree(os.path.join(checks.work, "llama"), folder)
        edit(folder)
        done = checks.run("causeway-worker", "import", f"--from={folder}",
                          f"--out={folder}.parameters", check=False)
        checks.report(f"refusal of {name}", done.returncode == 2 and expected in done.stderr,
                      done.stderr.strip()[-160:])

    def config(**values):
        def edit(folder):
            path = os.path.join(folder, "config.json")
            with open(path) as file:
                content = json.load(file)
            content.update(values)
            with open(path, "w") as file:
                json.dump(content, file)
        return edit

    def tensors(change):
        def edit(folder):
            path = os.path.join(folder, "model.safetensors")
            content = load_file(path)
            change(content)
            save_file(content, path)
        return edit

    refused("architecture", config(architectures=["MambaForCausalLM"]), "MambaForCausalLM")
    refused("rope", config(rope_parameters={"rope_type": "yarn", "factor": 2.0}), "yarn")
    refused("activation", config(hidden_act="relu"), "relu")
    refused("shape", config(intermediate_size=96), "[88, 48]")
    refused("missing tensor", tensors(lambda t: t.pop("model.norm.weight")), "model.norm.weight")
    refused("more tensors", tensors(lambda t: t.update(odd=torch.zeros(2))), "odd")


def write_fixtures(folder):
    for name, config in shapes().items():
        target = os.path.join(folder, name)
        shutil.rmtree(target, ignore_errors=True)
        tiny = dict(vocab_size=19, max_position_embeddings=16)
        if name == "gpt2":
            tiny = dict(vocab_size=19, n_embd=8, n_head=2, n_positions=16)
        else:
            tiny.update(hidden_size=8, intermediate_size=12, num_attention_heads=2, num_key_value_heads=1,
                        head_dim=6 if "head_dim" in config.to_diff_dict() else 4)
        for field, value in tiny.items():
            setattr(config, field, value)
        model = random_model(config, seed=5)
        model.save_pretrained(target)
        tokens = [int(t) for t in numpy.random.default_rng(4).integers(0, 19, 10)]
        logits = their_logits(model, tokens)
        with open(os.path.join(target, "expected.json"), "w") as file:
            json.dump({"tokens": tokens,
                       "logits": [[round(float(v), 6) for v in row] for row in logits]}, file)
            file.write("\n")
        if os.path.exists(os.path.join(target, "generation_config.json")):
            os.remove(os.path.join(target, "generation_config.json"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="folder of the built programs")
    parser.add_argument("--work", help="keeps the folders that are compared")
    parser.add_argument("--fixtures", help="writes the unit tests' fixtures and stops")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, too")
    options = parser.parse_args()
    if options.fixtures:
        write_fixtures(options.fixtures)
        return 0
    if not options.bin:
        parser.error("--bin is required")
    work = options.work or tempfile.mkdtemp(prefix="causeway-huggingface-")
    os.makedirs(work, exist_ok=True)
    checks = Checks(options, work)
    try:
        for name, config in shapes().items():
            check_architecture(checks, name, config)
        for name in ("llama", "qwen2", "qwen3", "gpt2"):
            check_run(checks, name, shapes()[name])
        check_tokenizers(checks)
        check_refusals(checks)
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    failed = [r for r in checks.results if not r["passed"]]
    if options.json:
        print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__,
                          "checks": checks.results}))
    print(f"{len(checks.results) - len(failed)} of {len(checks.results)} checks passed with "
          f"transformers {transformers.__version__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
