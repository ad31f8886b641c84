"""python3 -m causeway.generate: text from a model whose tokens are not bytes.

  python3 -m causeway.generate --checkpoint=out/a/checkpoint --tokenizer=shards --prompt='The run'

causeway-worker generate draws the tokens; what is not below goes to it: --run_dir, --tokens, --temperature, --top_k,
--top_p, --seed, --max_cache_gb, --threads. Exit status: 0; 2 for bad input; else the program's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Callable, List

from causeway.errors import InvalidArgument
from causeway.tokenize import Tokenizer, load_tokenizer

_CONTEXT = 16  # Tokens before a new one that may change how it is written.


class TextStream:
    """Hands out a text while its tokens come, never half a character."""

    def __init__(self, tokenizer: Tokenizer, prompt: List[int], sink: Callable[[str], None]):
        self._tokenizer, self._context, self._sink = tokenizer, prompt, sink
        self._waiting: List[int] = []

    def add(self, token: int) -> None:
        self._waiting.append(token)
        self._hand_out(whole=False)

    def finish(self) -> None:
        self._hand_out(whole=True)

    def _hand_out(self, whole: bool) -> None:
        # Tokenizers may drop a space at the beginning: tokens cannot be decoded without what is before.
        before = self._tokenizer.decode(self._context)
        text = self._tokenizer.decode(self._context + self._waiting)[len(before):]
        if text and (whole or not text.endswith("\ufffd")):
            self._sink(text)
            self._context, self._waiting = (self._context + self._waiting)[-_CONTEXT:], []


def _encode(tokenizer: Tokenizer, prompt: str) -> List[int]:
    begin = [] if tokenizer.begin_of_text is None else [tokenizer.begin_of_text]
    tokens = begin + list(tokenizer.encode([prompt])[0])
    if not tokens:
        raise InvalidArgument("a prompt must not be empty")
    return tokens


def _one(command: List[str], tokenizer: Tokenizer, prompt: str) -> int:
    tokens = _encode(tokenizer, prompt)
    process = subprocess.Popen([*command, f"--prompt={' '.join(map(str, tokens))}"], stdout=subprocess.PIPE, text=True)
    sys.stdout.write(prompt)
    stream = TextStream(tokenizer, tokens, lambda text: (sys.stdout.write(text), sys.stdout.flush()))
    word, count = "", 0
    while letter := process.stdout.read(1):
        if not letter.isspace():
            word += letter
            continue
        if word:
            count += 1
            if count > len(tokens):
                stream.add(int(word))
        word = ""
    stream.finish()
    sys.stdout.write("\n")
    return process.wait()


def _read(path: str) -> List[str]:
    with open(path, encoding="utf-8") as file:
        prompts = [line for line in file.read().splitlines() if line]
    if not prompts:
        raise InvalidArgument(f"{path} has no prompts; expected one per line that is not empty")
    return prompts


def _many(command: List[str], tokenizer: Tokenizer, prompts: List[str], as_json: bool) -> int:
    encoded = [_encode(tokenizer, prompt) for prompt in prompts]
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as ids:
        ids.write("".join(" ".join(map(str, tokens)) + "\n" for tokens in encoded))
        ids.flush()
        process = subprocess.Popen([*command, f"--prompts={ids.name}", "--json"], stdout=subprocess.PIPE, text=True)
        for i, line in enumerate(process.stdout):
            new = list(map(int, json.loads(line)["text"].split()))
            text = tokenizer.decode(encoded[i] + new)[len(tokenizer.decode(encoded[i])):]
            if as_json:
                print(json.dumps({"prompt": prompts[i], "text": text, "tokens": len(new)}), flush=True)
            else:
                print(f"{'---' + chr(10) if i else ''}{prompts[i]}{text}", flush=True)
        return process.wait()


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m causeway.generate", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, metavar="FILE",
                        help="the model's: a tokenizer.json, a *.model, or a folder with one, as that of the data")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", default="\n", metavar="TEXT", help="the text to continue")
    prompt.add_argument("--prompts", metavar="FILE", help="prompts, one per line, all at once")
    parser.add_argument("--ignore_end", action="store_true", help="goes on after the tokenizer's end of text")
    parser.add_argument("--json", action="store_true", help="a line of JSON per prompt")
    parser.add_argument("--worker", metavar="PROGRAM", help="causeway-worker; default: of $CAUSEWAY_BIN, or in PATH")
    options, others = parser.parse_known_args(arguments)
    try:
        worker = options.worker or shutil.which("causeway-worker", path=os.environ.get("CAUSEWAY_BIN", os.environ["PATH"]))
        if worker is None:
            raise InvalidArgument("there is no causeway-worker in PATH: name it by --worker=PROGRAM")
        tokenizer = load_tokenizer(options.tokenizer)
        command = [worker, "generate", "--ids", f"--known_tokens={tokenizer.vocabulary_size}", *others]
        if tokenizer.end_of_text is not None and not options.ignore_end:
            command.append(f"--end_token={tokenizer.end_of_text}")
        if options.prompts or options.json:
            prompts = _read(options.prompts) if options.prompts else [options.prompt]
            return _many(command, tokenizer, prompts, options.json)
        return _one(command, tokenizer, options.prompt)
    except (InvalidArgument, OSError) as error:
        print(f"causeway.generate: {error.message if isinstance(error, InvalidArgument) else error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
