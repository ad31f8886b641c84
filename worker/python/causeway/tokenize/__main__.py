"""python3 -m causeway.tokenize: text files, folders and JSON Lines to the token files that a run trains on.

  python3 -m causeway.tokenize --input=texts/,more.jsonl --tokenizer=tokenizer.json --out=shards/

Exit status: 0; 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import List

from causeway.errors import InvalidArgument
from causeway.tokenize import load_tokenizer, tokenize


class ProgressLine:
    """One line that is written over on a terminal; a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begin, self._shown = time.monotonic(), float("-inf")

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._shown < (0.2 if self._terminal else 5):
            return
        self._shown = now
        rate = done / max(1e-3, now - self._begin)
        print(f"{chr(13) if self._terminal else ''}tokenized {done / 1e6:.1f} of {total / 1e6:.1f} MB, "
              f"{rate / 1e6:.1f} MB/s, ETA {(total - done) / rate if rate else 0:.0f} s",
              end="" if self._terminal and done < total else "\n", file=sys.stderr, flush=True)


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m causeway.tokenize", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--input", required=True, metavar="FILE,...", help="text files, folders and *.jsonl")
    add("--out", required=True, metavar="FOLDER", help="receives the token files")
    add("--tokenizer", default="bytes", metavar="FILE",
        help="bytes, a tokenizer.json (tokenizers), a *.model (sentencepiece), or a folder with one")
    add("--extensions", default="", metavar=".EXT,...", help="takes only such files of folders, as .txt,.md")
    add("--jsonl_field", default="text", help="with the text, in *.jsonl and *.ndjson; empty: they are text files")
    add("--bad_lines", choices=["refuse", "skip"], default="refuse",
        help="JSON lines that cannot be read, and files that are not UTF-8; skip counts them")
    add("--document_separator", choices=["after", "before", "none"], default="after",
        help="where the end-of-text token stands at each document")
    add("--end_of_text", default="", metavar="TOKEN", help="the name of that token; else the tokenizer's own")
    add("--format", choices=["llmc", "uint16", "uint32"], default="llmc", help="llm.c's with a header, or without one")
    add("--shard_tokens", type=int, default=100_000_000, help="tokens per file")
    add("--held_out_fraction", type=float, default=0.05, help="share of the text kept for evaluation")
    add("--threads", type=int, default=0, help="0: all processors; the bytes do not depend on it")
    add("--replace", action="store_true", help="puts the new data in the place of what is in --out")
    return parser.parse_args(arguments)


def main(arguments: List[str]) -> int:
    options = parse(arguments)
    try:
        found = tokenize([path for path in options.input.split(",") if path], options.out,
                         load_tokenizer(options.tokenizer, options.threads),
                         extensions=[end for end in options.extensions.split(",") if end],
                         jsonl_field=options.jsonl_field, skip_bad=options.bad_lines == "skip",
                         separator=options.document_separator, end_of_text=options.end_of_text, form=options.format,
                         shard_tokens=options.shard_tokens, held_out_fraction=options.held_out_fraction,
                         replace=options.replace, progress=ProgressLine())
    except (InvalidArgument, OSError) as error:
        message = error.message if isinstance(error, InvalidArgument) else error
        print(f"causeway.tokenize: {message}", file=sys.stderr)
        return 2
    tokens = found["train_tokens"] + found["held_out_tokens"]
    print(f"{found['documents']} documents ({found['skipped_files']} files and {found['refused_lines']} bad lines "
          f"skipped), {found['bytes']} bytes: {found['train_tokens']} tokens to train on, {found['held_out_tokens']} "
          f"held out, {found['bytes'] / tokens:.2f} bytes per token, in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
