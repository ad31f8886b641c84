"""Tokenizers by the libraries that define them: `tokenizers` and `sentencepiece`."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from causeway.errors import InvalidArgument

_CONFIG = "tokenizer_config.json"
_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "<|im_end|>")
# Fields by which transformers makes other tokens than the tokenizer.json beside them.
_CHANGING = ("add_prefix_space", "added_tokens_decoder", "do_lower_case", "legacy", "split_special_tokens",
             "strip_accents", "tokenize_chinese_chars", "tokenizer_class")
# Shows case, accents, compatible characters, Chinese, spaces, digits and marks.
_PROBE = "Hello HELLO  É é e\u0301 ß ﬁ １ 中文字 한국 😀 don't, “q”…\u00a0x_y 12345\n\n\tend "
_PIECE_CLASSES = ("", "LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast",
                  "PreTrainedTokenizerFast")


def missing(package: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} needs the Python package {package}, which is missing: pip install {package}")


class Tokenizer:
    """Each byte a token, and the form of all others."""
    name = "bytes"
    path: Optional[str] = None  # Its file.
    vocabulary_size = 256
    begin_of_text: Optional[int] = None  # What comes before a text that is to be continued.
    end_of_text: Optional[int] = None
    needs_utf8 = False

    def find(self, token: str) -> Optional[int]:
        """The number of a token that has a name of its own."""
        return None

    def encode(self, texts: Sequence[Any]) -> List[Sequence[int]]:
        return [text.encode() if isinstance(text, str) else text for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class _Json(Tokenizer):
    needs_utf8 = True

    def __init__(self, path: str, threads: int):
        if threads:
            os.environ["RAYON_NUM_THREADS"] = str(threads)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            import tokenizers
        except ImportError:
            raise missing("tokenizers", path) from None
        self.name = self.path = path
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # The library raises no narrower type.
            beside = os.path.join(os.path.dirname(path), "tokenizer.model")
            hint = f"; take the other one, --tokenizer={beside}" if os.path.exists(beside) else ""
            raise InvalidArgument(f"{path} is no tokenizer that the package tokenizers {tokenizers.__version__} "
                                  f"reads: {error}{hint}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.added = {token.content: number
                      for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if self.vocabulary_size < 1:
            raise InvalidArgument(f"{path} has no tokens")
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        if len(whole) > len(bare):  # What the post-processor adds.
            if whole[0] in self.added.values() and whole[:1] != bare[:1]:
                self.begin_of_text = whole[0]
            if whole[-1] in self.added.values() and whole[-1:] != bare[-1:]:
                self.end_of_text = whole[-1]
        if self.end_of_text is None:
            self.end_of_text = next((self.added[name] for name in _END_OF_TEXT if name in self.added), None)

    def find(self, token: str) -> Optional[int]:
        return self.added.get(token)

    def encode(self, texts: Sequence[Any]) -> List[Sequence[int]]:
        texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


class _Pieces(Tokenizer):
    needs_utf8 = True

    def __init__(self, path: str, threads: int):
        try:
            import sentencepiece
        except ImportError:
            raise missing("sentencepiece", path) from None
        self.name = self.path = path
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=path)
        except Exception as error:
            raise InvalidArgument(f"{path} is no SentencePiece model: {error}") from None
        self._threads = threads or -1
        self.vocabulary_size = self._pieces.vocab_size()
        self.begin_of_text = self._pieces.bos_id() if self._pieces.bos_id() >= 0 else None
        self.end_of_text = self._pieces.eos_id() if self._pieces.eos_id() >= 0 else None

    def find(self, token: str) -> Optional[int]:
        number = self._pieces.piece_to_id(token)
        return number if self._pieces.id_to_piece(number) == token else None

    def encode(self, texts: Sequence[Any]) -> List[Sequence[int]]:
        texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
        return self._pieces.encode(texts, out_type=int, num_threads=self._threads)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._pieces.decode(list(tokens))


def refuse_pointer(path: str) -> None:
    """Says so if a file is the pointer that Git leaves where its large file was not fetched."""
    with open(path, "rb") as file:
        if file.read(40).startswith(b"version https://git-lfs.github.com/spec"):
            raise InvalidArgument(f"{path} is a Git LFS pointer, and not the file itself: fetch it with `git lfs pull`")


def refuse_pointers(path: str) -> None:
    """The same of a file, or of those of a folder."""
    for name in sorted(os.listdir(path)) if os.path.isdir(path) else [""]:
        if os.path.isfile(file := os.path.join(path, name) if name else path):
            refuse_pointer(file)


def read_json(path: str) -> Dict[str, Any]:
    refuse_pointer(path)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except ValueError as error:
        raise InvalidArgument(f"{path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{path} is no JSON object")
    return content


def _text(token: Any) -> str:
    """A token that is given as its text, or as an object with "content"."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else ""


class _Beside:
    """The files beside a tokenizer, whose tokens transformers adds: here it must have them already."""

    def __init__(self, path: str, find: Callable[[str], Optional[int]]):
        self._path, self._folder, self._find = path, os.path.dirname(path), find
        self.end_of_text: Optional[int] = None
        self.config: Dict[str, Any] = {}
        if (added := self._read("added_tokens.json")) is not None:
            for text, number in added[1].items():
                self._check(text, number, added[0])
        for name in ("special_tokens_map.json", _CONFIG):
            if (found := self._read(name)) is not None:
                self._check_fields(*found)
                if name == _CONFIG:
                    self.config = found[1]

    def _read(self, name: str):
        path = os.path.join(self._folder, name)
        return (path, read_json(path)) if os.path.exists(path) else None

    def _check(self, text: str, number: Optional[int], where: str) -> None:
        known = self._find(text)
        if known is not None and number in (None, known):
            return
        wanted = "" if number is None else f" with the number {number}"
        raise InvalidArgument(
            f'{where} has the token "{text[:100]}"{wanted}, which '
            f"{'is not one' if known is None else f'has the number {known}'} in {self._path}: tokens are not added "
            "to a tokenizer here. Save it whole: transformers.AutoTokenizer.from_pretrained("
            f"{self._folder or '.'!r}).save_pretrained(FOLDER) writes a tokenizer.json")

    def _check_fields(self, path: str, content: Dict[str, Any]) -> None:
        for field, value in content.items():
            where = f"{path}: {field}"
            if field == "added_tokens_decoder" and isinstance(value, dict):
                for number, token in value.items():
                    self._check(_text(token), int(number) if number.isdecimal() else -1, where)
            elif field in ("additional_special_tokens", "extra_special_tokens"):
                tokens = value.values() if isinstance(value, dict) else value or []
                for text in filter(None, map(_text, tokens)):
                    self._check(text, None, where)
            elif field.endswith("_token") and (text := _text(value)):
                self._check(text, None, where)
                if field != "eos_token":
                    continue
                end = self._find(text)
                if self.end_of_text not in (None, end):
                    raise InvalidArgument(f"{where} is not the eos_token of special_tokens_map.json beside it")
                self.end_of_text = end

    def compare(self, own: Tokenizer, added: Iterable[str]) -> None:
        """Refuses where transformers makes other tokens than a tokenizer.json, and takes the first and the last token
        of a text from it: it obeys the files beside it."""
        others = [name for name in ("config.json", "special_tokens_map.json", _CONFIG)
                  if os.path.exists(os.path.join(self._folder, name))]
        if not others or os.path.basename(self._path) != "tokenizer.json":
            return
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise missing("transformers", f"{self._path}, with {others[-1]} beside it,") from None
        texts = [_PROBE, f" {_PROBE}", *(f"a {token} b{token}c{token}  {token.upper()}{token.lower()}\n{token}"
                                         for token in added)]
        try:
            theirs = AutoTokenizer.from_pretrained(self._folder or ".", local_files_only=True, trust_remote_code=False)
            found = theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]
            whole, bare = (theirs("a", add_special_tokens=special)["input_ids"] for special in (True, False))
        except Exception as error:  # Those of its many classes are of any type.
            raise InvalidArgument(f"{self._path}: transformers does not load it with {', '.join(others)} beside it "
                                  f"({error}). To take it as it is, copy it alone into a folder") from None
        for text, number in theirs.get_added_vocab().items():
            self._check(text, number, type(theirs).__name__)
        for text, their, our in zip(texts, found, own.encode(texts)):
            if list(their) == list(our):
                continue
            at = next((i for i, pair in enumerate(zip(their, our)) if pair[0] != pair[1]), min(len(their), len(our)))
            fields = [name for name in _CHANGING if name in self.config] or others
            raise InvalidArgument(
                f"{self._path}: of {text!r} transformers ({type(theirs).__name__}) makes {list(their[at:at + 5])} where "
                f"it has {list(our[at:at + 5])}, because of {', '.join(fields)} beside it. To take it as it is, copy it "
                "alone into a folder")
        own.begin_of_text = whole[0] if len(whole) > len(bare) and whole[:1] != bare[:1] else None
        if theirs.eos_token_id is not None:
            own.end_of_text = theirs.eos_token_id

    def refuse(self, field: str, what: str) -> InvalidArgument:
        return InvalidArgument(f"{os.path.join(self._folder, _CONFIG)}: {field} {what}")


def _load_json(path: str, threads: int) -> Tokenizer:
    tokenizer = _Json(path, threads)
    beside = _Beside(path, tokenizer.find)
    steps = read_json(path).get("pre_tokenizer") or {}
    own = next((step["add_prefix_space"] for step in steps.get("pretokenizers", [steps])
                if "add_prefix_space" in step), None)
    given = beside.config.get("add_prefix_space")
    if own is not None and given is not None and given != own:
        raise beside.refuse("add_prefix_space", f"is not what {path} says, and transformers takes it")
    if beside.end_of_text is not None:
        tokenizer.end_of_text = beside.end_of_text
    beside.compare(tokenizer, tokenizer.added)
    return tokenizer


def _load_pieces(path: str, threads: int) -> Tokenizer:
    tokenizer = _Pieces(path, threads)
    beside = _Beside(path, tokenizer.find)
    if beside.end_of_text not in (None, tokenizer.end_of_text):
        raise beside.refuse("eos_token", f"is not the one that {path} has")
    if beside.config.get("add_bos_token") is False:
        tokenizer.begin_of_text = None
    # Others number the pieces anew, or change the text before.
    if (name := beside.config.get("tokenizer_class") or "") not in _PIECE_CLASSES:
        raise beside.refuse("tokenizer_class", f'is "{name}", which is not supported with a SentencePiece model')
    if beside.config.get("add_prefix_space") is False:
        raise beside.refuse("add_prefix_space", "is false, which is not supported")
    for field in ("do_lower_case", "split_by_punct", "sp_model_kwargs"):
        if beside.config.get(field):
            raise beside.refuse(field, "is set, which is not supported")
    return tokenizer


def load_tokenizer(name: str, threads: int = 0) -> Tokenizer:
    """`name` is "bytes", a tokenizer.json, a SentencePiece *.model, or a folder with one of them."""
    if name == "bytes":
        return Tokenizer()
    path = name
    if os.path.isdir(name):
        path = next((found for file in ("tokenizer.json", "tokenizer.model")
                     if os.path.exists(found := os.path.join(name, file))), "")
        if not path:
            raise InvalidArgument(f"there is neither a tokenizer.json nor a tokenizer.model in {name}")
    elif not name.endswith((".json", ".model")):
        raise InvalidArgument(f'there is no tokenizer "{name}"; known: bytes, the path of a tokenizer.json or of a '
                              "SentencePiece *.model, or a folder that holds one")
    elif not os.path.exists(name):
        raise InvalidArgument(f"there is no tokenizer {name}")
    refuse_pointer(path)
    return (_load_json if path.endswith(".json") else _load_pieces)(path, threads)
