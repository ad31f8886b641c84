"""Text to token files that a run trains on, by the tokenizers of Hugging Face and SentencePiece.

`python3 -m causeway.tokenize --help`; docs/data.md describes it.
"""

from __future__ import annotations

import codecs
import hashlib
import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from causeway.errors import InvalidArgument
from causeway.tokenize import _corpus, _shards
from causeway.tokenize._corpus import Piece
from causeway.tokenize._tokenizer import Tokenizer, load_tokenizer, missing, read_json  # noqa: F401
from causeway.tokenize._tokenizer import refuse_pointer, refuse_pointers  # noqa: F401

_BATCH_BYTES = 8 << 20


def _check_utf8(skip: bool) -> Callable[[str], bool]:
    def check(path: str) -> bool:
        decoder = codecs.getincrementaldecoder("utf-8")()
        with open(path, "rb") as file:
            read = 0
            while True:
                content = file.read(_BATCH_BYTES)
                before = len(decoder.getstate()[0])  # Of a character that goes on.
                try:
                    decoder.decode(content, final=not content)
                except UnicodeDecodeError as error:
                    if skip:
                        return False
                    raise InvalidArgument(f"{path} is not UTF-8 (byte {read - before + error.start}): convert it; "
                                          "--bad_lines=skip leaves such files out") from None
                if not content:
                    return True
                read += len(content)
    return check


def _batches(found: Iterator[Piece]) -> Iterator[List[Piece]]:
    batch: List[Piece] = []
    size = 0
    for piece in found:
        batch.append(piece)
        size += piece.bytes
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def tokenize(inputs: Sequence[str], out: str, tokenizer: Tokenizer, *, extensions: Sequence[str] = (),
             jsonl_field: str = "text", skip_bad: bool = False, separator: str = "after",
             end_of_text: str = "", form: str = "llmc", shard_tokens: int = 100_000_000,
             held_out_fraction: float = 0.05, replace: bool = False,
             progress: Optional[Callable[[int, int], None]] = None) -> Dict[str, Any]:
    """Writes the token files of `inputs` into the folder `out` and returns its data.json.

    The same inputs make the same bytes. After an error `out` is as it was.
    """
    if not 0 < held_out_fraction <= 0.5:
        raise InvalidArgument(f"held_out_fraction must be above 0 and at most 0.5; it is {held_out_fraction:g}")
    if not 1 <= shard_tokens <= _shards.MOST_SHARD_TOKENS:
        raise InvalidArgument(f"shard_tokens must be 1 .. {_shards.MOST_SHARD_TOKENS}; it is {shard_tokens}")
    if form == "uint16" and tokenizer.vocabulary_size > 65536:
        raise InvalidArgument(f"the format uint16 holds 65536 tokens, {tokenizer.name} has "
                              f"{tokenizer.vocabulary_size}; take uint32 or llmc")
    mark = None
    if separator != "none":
        mark = tokenizer.find(end_of_text) if end_of_text else tokenizer.end_of_text
        if end_of_text and mark is None:
            raise InvalidArgument(f"--end_of_text: {tokenizer.name} has no token {end_of_text}")
        if mark is None and tokenizer.path is not None:
            logging.getLogger("causeway").warning("%s says of no token that it ends a text: none stands between documents. "
                                                  "--end_of_text=TOKEN names one", tokenizer.name)
    corpus = _corpus.find(inputs, extensions, jsonl=bool(jsonl_field),
                          check=_check_utf8(skip_bad) if tokenizer.needs_utf8 else None)
    refused = 0

    def count_bad() -> None:
        nonlocal refused
        refused += 1

    def documents() -> Iterator[Piece]:
        yield from _corpus.pieces(corpus, held_out_fraction)
        for path, _ in corpus.jsonl:
            for text in _corpus.lines(path, jsonl_field, skip_bad, count_bad):
                yield Piece(text, False, True, True, len(text.encode()))

    # Refuses a corpus that is too small before anything is written.
    next(_corpus.pieces(corpus, held_out_fraction), None)
    staged = _shards.StagedData(out, replace)
    try:
        train, held_out = (_shards.Part(staged.folder, prefix, tokenizer.vocabulary_size, shard_tokens, form)
                           for prefix in ("train", "held_out"))
        marks = [] if mark is None else [mark]
        before, after = (marks if separator == place else [] for place in ("before", "after"))
        total, done, count, lines = corpus.bytes(), 0, 0, 0
        is_line = False
        for batch in _batches(documents()):
            for piece, tokens in zip(batch, tokenizer.encode([piece.text for piece in batch])):
                is_line = isinstance(piece.text, str)
                if is_line and len(tokens) == 0:
                    continue
                if is_line:  # Every 1/fraction-th.
                    lines += 1
                    piece.held_out = int(lines * held_out_fraction) > int((lines - 1) * held_out_fraction)
                part, other = (held_out, train) if piece.held_out else (train, held_out)
                part.append(tokens, piece.begins, piece.ends, piece.bytes, before, after)
                if not piece.ends:
                    other.interrupt()
                count += piece.begins
                done += piece.bytes
            if progress:
                progress(min(done, total), total)
        indexes = [part.finish() for part in (train, held_out)]
        if not train.tokens or not held_out.tokens:
            raise InvalidArgument(f"the corpus has {count} documents, too few to hold out a part of "
                                  f"{held_out_fraction:g} ({train.tokens} tokens to train on, {held_out.tokens} held out)")
        name, digest = "bytes", ""
        if tokenizer.path is not None:
            name = staged.copy_tokenizer(tokenizer.path)
            with open(tokenizer.path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
        description = {
            "format": 1, "tokenizer": name, "tokenizer_sha256": digest, "vocabulary_size": tokenizer.vocabulary_size,
            "held_out_fraction": held_out_fraction, "train_tokens": train.tokens, "held_out_tokens": held_out.tokens,
            "train_shards": train.names, "held_out_shards": held_out.names, "sources": list(inputs),
            "documents": count, "bytes": train.bytes + held_out.bytes, "held_out_bytes": held_out.bytes,
            "shard_format": form, "separator": -1 if mark is None else mark, "train_documents": indexes[0],
            "held_out_documents": indexes[1], "refused_lines": refused, "skipped_files": corpus.skipped_files}
        staged.finish(description)
    except BaseException:
        staged.discard()
        raise
    return description
