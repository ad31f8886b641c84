#!/usr/bin/env python3
"""Compares Causeway's tokenizers, token for token and in speed, with the libraries that everyone uses.

Needs `tokenizers` and `sentencepiece` from PyPI, so it is no part of tests/run:

    python3 -m venv /tmp/compat && /tmp/compat/bin/pip install tokenizers sentencepiece
    build/release/bin/... (tests/run, or: cmake --build build/release --target tokenizer_probe)
    /tmp/compat/bin/python tests/compat/tokenizers_compat.py

Trains a tokenizer of each kind, then encodes with both sides: adversarial texts, every code point of
Unicode in six contexts, random strings, and 1 MB without a space. Then measures MB/s of one thread,
both on the same text (--text; by default this repository's own text). Further tokenizer.json or
*.model files may be named. Prints JSON; the exit status is 1 if a single token differs. One case is known and does not
count: of 1 MB of letters without a space, sentencepiece 0.1 (Debian's) and 0.2 choose different paths
of a unigram model whose scores are equal but for rounding.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_fixtures  # noqa: E402
import texts  # noqa: E402

ROOT = make_fixtures.ROOT


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="tokenizer.json and *.model files to compare too")
    parser.add_argument("--probe", default=os.path.join(ROOT, "build/release/bin/tokenizer_probe"))
    parser.add_argument("--text", help="a text file to measure with")
    parser.add_argument("--random", type=int, default=20000, help="random strings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=16000, help="of what is trained to measure")
    return parser.parse_args()


def repository_text():
    """The sources and documents of this tree, in order of their paths; about 3 MB."""
    parts = []
    for folder, folders, files in sorted(os.walk(ROOT)):
        folders[:] = sorted(f for f in folders if f not in ("build", ".git", "corpus", "tokenizers"))
        for name in sorted(files):
            if name.endswith((".cc", ".h", ".py", ".md", ".txt", ".proto")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    parts.append(file.read())
    return "".join(parts)


def no_space_texts():
    generator = random.Random(3)
    letters = "".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(1_000_000))
    return {"1 MB of one letter": "a" * 1_000_000, "1 MB of letters": letters,
            "1 MB of CJK": "".join(chr(generator.randrange(0x4E00, 0x9000))
                                   for _ in range(333_333)),
            "1 MB of digits": "".join(generator.choice("0123456789") for _ in range(1_000_000)),
            "1 MB of signs": "=" * 1_000_000, "1 MB of spaces": " " * 1_000_000}


def encode_ours(probe, path, strings):
    lines = "".join(json.dumps(s) + "\n" for s in strings)
    done = subprocess.run([probe, f"--tokenizer={path}"], input=lines.encode(),
                          stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


class Theirs:
    def __init__(self, path):
        if path.endswith(".model"):
            processor = sentencepiece.SentencePieceProcessor(model_file=path)
            self.library = f"sentencepiece {sentencepiece.__version__}"
            self.encode = lambda text: processor.encode(text)
        else:
            tokenizer = Tokenizer.from_file(path)
            self.library = f"tokenizers {tokenizers.__version__}"
            self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
            # Without the offsets, which nobody asked for here: the fastest way that it has.
            self.encode_fast = lambda text: tokenizer.encode_batch_fast(
                [text], add_special_tokens=False)
        if path.endswith(".model"):
            self.encode_fast = self.encode

    def mb_per_s(self, text, repeats=3):
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            self.encode_fast(text)
            best = min(best, time.perf_counter() - start)
        return len(text.encode()) * 1e-6 / best


def compare(name, path, options, strings):
    theirs = Theirs(path)
    result = {"tokenizer": name, "library": theirs.library, "strings": len(strings),
              "bytes": 0, "tokens": 0, "differences": 0}
    examples = []
    for begin in range(0, len(strings), 2000):
        part = strings[begin:begin + 2000]
        for text, ours in zip(part, encode_ours(options.probe, path, part)):
            expected = theirs.encode(text)
            result["bytes"] += len(text.encode())
            result["tokens"] += len(expected)
            if ours != expected:
                result["differences"] += 1
                at = next((i for i, (a, b) in enumerate(zip(ours, expected)) if a != b),
                          min(len(ours), len(expected)))
                examples.append({"text": text[:200], "at": at, "ours": ours[at:at + 8],
                                 "theirs": expected[at:at + 8]})
    if examples:
        result["examples"] = examples[:5]
    long = {}
    for what, text in no_space_texts().items():
        start = time.perf_counter()
        expected = theirs.encode(text)
        their_seconds = time.perf_counter() - start
        start = time.perf_counter()
        ours = encode_ours(options.probe, path, [text])[0]
        long[what] = {"equal": ours == expected,
                      "seconds_with_loading": round(time.perf_counter() - start, 3),
                      "their_seconds": round(their_seconds, 3)}
        if (name.startswith("unigram"), what) != (True, "1 MB of letters"):
            result["differences"] += ours != expected
    result["long"] = long
    return result


def measure(name, path, options, text_path, text):
    theirs = Theirs(path)
    ours = json.loads(subprocess.run(
        [options.probe, f"--tokenizer={path}", f"--bench={text_path}"], stdout=subprocess.PIPE,
        check=True).stdout)
    rate = theirs.mb_per_s(text)
    return {"tokenizer": name, "library": theirs.library, "bytes": ours["bytes"],
            "bytes_per_token": round(ours["bytes"] / ours["tokens"], 2),
            "mb_per_s": round(ours["mb_per_s"], 1), "their_mb_per_s": round(rate, 1),
            "ratio": round(ours["mb_per_s"] / rate, 1)}


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        files = {}

        def keep(name, content):
            path = os.path.join(folder, name)
            with open(path, "wb") as file:
                file.write(content)
            files[name] = path

        for name, tokenizer in make_fixtures.make_bpe().items():
            keep(f"{name}.json", tokenizer.to_str().encode())
        for kind in ("unigram", "bpe"):
            for rule in ("identity", "nmt_nfkc"):
                keep(f"{kind}_{rule}.model", make_fixtures.make_sentencepiece(kind, rule))
        for path in options.files:
            files[path] = path

        strings = (texts.adversarial_texts() + list(texts.every_code_point()) +
                   texts.random_texts(options.random, options.seed))
        equality = []
        for name, path in files.items():
            equality.append(compare(name, path, options, strings))
            say(f"{name}: {equality[-1]['differences']} of {len(strings)} strings differ")

        text = repository_text()
        if options.text:
            with open(options.text, encoding="utf-8") as file:
                text = file.read()
        text_path = os.path.join(folder, "text")
        with open(text_path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        measured = dict(make_fixtures.make_bpe_for(text, options.vocabulary))
        speed = []
        for name, content in measured.items():
            keep(name, content)
            speed.append(measure(name, files[name], options, text_path, text))
            say(f"{name}: {speed[-1]['mb_per_s']} MB/s, theirs {speed[-1]['their_mb_per_s']}")
        for path in options.files:
            speed.append(measure(path, path, options, text_path, text))
    print(json.dumps({"equality": equality, "speed_of_one_thread": speed}, indent=2))
    return 1 if any(e["differences"] for e in equality) else 0


if __name__ == "__main__":
    sys.exit(main())
