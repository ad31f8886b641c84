"""python3 -m causeway.tokenize: the same bytes as causeway-worker's, and the libraries' own tokens."""

import contextlib
import io
import json
import os
import sys
import unittest

import numpy as np

from causeway.tokenize.__main__ import main
from runs import BIN, folder_of, needs, run_python, run_tool

TEXT = "".join(f"line {i} of the tide, it's {i * i} waves\n" for i in range(4000))
LINES = ['{"text": "one"}', "", '{"id": 2, "text": "two\\nlines", "more": {"text": 5}}\r', '{"text": ""}',
         '{"text": "three"}', '{"text": "four"}']


def read_part(folder, part):
    """Tokens, and where documents begin."""
    data = json.loads((folder / "data.json").read_text())
    tokens = []
    for name in data[f"{part}_shards"]:
        content = (folder / name).read_bytes()
        if data["shard_format"] == "llmc":
            magic, _, count, vocabulary = np.frombuffer(content[:16], "<i4")
            assert vocabulary == data["vocabulary_size"]
            kind, content = {20240520: "<u2", 20240801: "<u4"}[magic], content[1024:]
            assert len(content) == count * np.dtype(kind).itemsize
        else:
            kind = {"uint16": "<u2", "uint32": "<u4"}[data["shard_format"]]
        tokens += np.frombuffer(content, kind).tolist()
    index = (folder / data[f"{part}_documents"]).read_bytes()
    begin = 8 + int.from_bytes(index[:8], "little")
    header = json.loads(index[8:begin])
    assert header["__metadata__"]["tokens"] == str(len(tokens)) == str(data[f"{part}_tokens"])
    return tokens, np.frombuffer(index[begin:], "<i8").tolist()


class TokenizeTest(unittest.TestCase):
    def setUp(self):
        self.folder = folder_of(self)
        self.out = self.folder / "out"

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def call(self, *flags, without="", out=None):
        """Exit status, output, error: in this process, which has the libraries. `without`: a package that is not there."""
        there = sys.modules.get(without)
        if without:
            sys.modules[without] = None
        try:
            with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as error:
                return main([f"--out={out or self.out}", *flags]), said.getvalue(), error.getvalue()
        finally:
            if there is not None:
                sys.modules[without] = there
            else:
                sys.modules.pop(without, None)

    def made(self, *flags, out=None):
        status, output, error = self.call(*flags, out=out)
        self.assertEqual(0, status, error)
        return output

    def refused(self, message, *flags, **more):
        status, _, error = self.call(*flags, **more)
        self.assertEqual(2, status, error)
        self.assertIn(message, error)
        self.assertFalse((self.out / "unfinished").exists())

    def bpe(self, name="tokenizer.json", special=("<s>", "<|endoftext|>")):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
            vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tokenizer.add_special_tokens(list(special))
        path = self.write(name, "")
        tokenizer.save(str(path))
        return tokenizer, path

    def test_bytes_are_those_of_the_worker(self):
        self.write("corpus/b.txt", TEXT)
        self.write("corpus/a/x.md", "ü€😀" * 3001)
        self.write("corpus/c.bin", b"MZ\0\0")
        self.write("corpus/.hidden", "x")
        self.write("corpus/latin", b"caf\xe9\n" * 500)
        corpus = self.folder / "corpus"
        theirs = self.folder / "theirs"
        for flags in ([], ["--held_out_fraction=0.2"], ["--extensions=.txt,.md"]):
            self.made(f"--input={corpus}", "--replace", *flags)
            status, _, error = run_tool(BIN / "causeway-worker", "tokenize", f"--input={corpus}", f"--out={theirs}",
                                        "--replace", *flags)
            self.assertEqual(0, status, error)
            self.assertEqual(sorted(path.name for path in self.out.iterdir()),
                             sorted(path.name for path in theirs.iterdir()))
            for path in theirs.iterdir():
                if path.name != "data.json":
                    self.assertEqual(path.read_bytes(), (self.out / path.name).read_bytes(), (path.name, flags))
            ours, own = (json.loads((folder / "data.json").read_text()) for folder in (self.out, theirs))
            self.assertEqual(own, {name: ours[name] for name in own})

    @needs("tokenizers")
    def test_lines_become_documents_with_a_separator(self):
        tokenizer, path = self.bpe()
        lines = self.write("in.jsonl", "\n".join(LINES))
        words = [tokenizer.encode(text).ids for text in ("one", "two\nlines", "three", "four")]
        end = tokenizer.token_to_id("<|endoftext|>")
        for place, expected in (("after", lambda ids: ids + [end]), ("before", lambda ids: [end] + ids),
                                ("none", lambda ids: ids)):
            self.made(f"--input={lines}", f"--tokenizer={path}", "--held_out_fraction=0.5", "--replace",
                      f"--document_separator={place}")
            first, second, third, fourth = map(expected, words)
            self.assertEqual(read_part(self.out, "train"), (first + third, [0, len(first)]))
            self.assertEqual(read_part(self.out, "held_out"), (second + fourth, [0, len(second)]))
        data = json.loads((self.out / "data.json").read_text())
        self.assertEqual((data["documents"], data["bytes"], data["held_out_bytes"]), (4, 21, 13))
        self.assertEqual((self.out / "tokenizer.json").read_bytes(), path.read_bytes())
        self.made(f"--input={lines}", f"--tokenizer={path}", "--held_out_fraction=0.5", "--replace",
                  "--end_of_text=<s>", "--format=uint32")
        start = tokenizer.token_to_id("<s>")
        self.assertEqual(read_part(self.out, "train")[0], words[0] + [start] + words[2] + [start])
        self.refused("has no token <x>", f"--input={lines}", f"--tokenizer={path}", "--replace", "--end_of_text=<x>")
        _, path = self.bpe("bare/tokenizer.json", special=("<pad>",))
        for place, said in (("after", True), ("none", False)):
            status, _, error = self.call(f"--input={lines}", f"--tokenizer={path}", "--held_out_fraction=0.5", "--replace",
                                         f"--document_separator={place}")
            self.assertEqual((status, "says of no token that it ends a text" in error), (0, said), error)

    @needs("tokenizers")
    def test_neither_threads_nor_shards_change_a_token(self):
        _, path = self.bpe()
        self.write("corpus/a.txt", TEXT)
        self.write("corpus/b.jsonl", "".join(json.dumps({"text": TEXT[i * 100:i * 120]}) + "\n" for i in range(1, 300)))
        flags = (f"--input={self.folder / 'corpus'}", f"--tokenizer={path}")
        for threads, out in ((1, self.out), (3, self.folder / "again")):  # A process's number is that of its first use.
            status, _, error = run_python("-m", "causeway.tokenize", *flags, f"--threads={threads}", f"--out={out}",
                                          "--shard_tokens=10000", timeout=300)
            self.assertEqual(0, status, error)
        names = sorted(path.name for path in self.out.iterdir())
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertEqual((self.out / name).read_bytes(), (self.folder / "again" / name).read_bytes(), name)
        whole = self.folder / "whole"
        self.made(*flags, out=whole)
        for part in ("train", "held_out"):
            self.assertEqual(read_part(self.out, part), read_part(whole, part))

    @needs("tokenizers")
    def test_what_cannot_be_read_is_named_or_counted(self):
        _, path = self.bpe()
        bad = ['{"text": 7}', '{"txt": ""}', "[", '"text"', '{"text": "\\ud800"}', '{"text": NaN}', "[" * 100000]
        lines = self.write("in/a.jsonl", "\n".join(LINES + bad[:1] + LINES + bad[1:]))
        self.write("in/latin.txt", b"caf\xe9\n" * 50)
        flags = (f"--input={self.folder / 'in'}", f"--tokenizer={path}", "--held_out_fraction=0.5")
        self.refused("latin.txt is not UTF-8 (byte 3)", *flags)
        (self.folder / "in/latin.txt").unlink()
        self.refused(f'{lines}:7: its "text" is no text; --bad_lines=skip', *flags)
        self.write("in/latin.txt", b"caf\xe9\n" * 50)
        said = self.made(*flags, "--bad_lines=skip")
        self.assertIn(f"8 documents (1 files and {len(bad)} bad lines skipped)", said)
        self.assertEqual(json.loads((self.out / "data.json").read_text())["refused_lines"], len(bad))

    @needs("tokenizers", "transformers")
    def test_files_beside_a_tokenizer_add_no_tokens(self):
        tokenizer, path = self.bpe("own/tokenizer.json")
        text = self.write("in.txt", TEXT)
        flags = (f"--input={text}", f"--tokenizer={path.parent}", "--replace")
        for name, content, message in (
                ("added_tokens.json", {"<new>": 500}, '"<new>" with the number 500, which is not one'),
                ("added_tokens.json", {"<s>": 3}, f"has the number {tokenizer.token_to_id('<s>')} in"),
                ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<s>"}}}, "with the number 9"),
                ("tokenizer_config.json", {"pad_token": "<pad>"}, "tokenizer_config.json: pad_token has"),
                ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space is not what"),
                ("special_tokens_map.json", {"additional_special_tokens": ["<tool>"]}, '"<tool>", which is not one')):
            beside = self.write(f"own/{name}", json.dumps(content))
            self.refused(message, *flags)
            beside.unlink()
        # The end of text that it names stands between documents.
        self.write("own/tokenizer_config.json", json.dumps({"eos_token": {"__type": "AddedToken", "content": "<s>"}}))
        self.made(*flags)
        self.assertEqual(json.loads((self.out / "data.json").read_text())["separator"], tokenizer.token_to_id("<s>"))
        self.assertTrue((self.out / "tokenizer_config.json").exists())
        for name in ("tokenizer.json", "tokenizer_config.json"):
            kept = (path.parent / name).read_bytes()
            pointer = self.write(f"own/{name}", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
            self.refused(f"{pointer} is a Git LFS pointer", *flags)
            pointer.write_bytes(kept)

    @needs("tokenizers")
    def test_the_end_of_text_is_what_the_tokenizer_adds(self):
        from tokenizers import processors
        from causeway.tokenize import load_tokenizer
        tokenizer, path = self.bpe(special=("<bos>", "<eos2>", "<|endoftext|>"))
        self.assertEqual(load_tokenizer(str(path)).end_of_text, tokenizer.token_to_id("<|endoftext|>"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos2>", special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<bos>", "<eos2>")])
        tokenizer.save(str(path))
        loaded = load_tokenizer(str(path))
        self.assertEqual((loaded.begin_of_text, loaded.end_of_text),
                         (tokenizer.token_to_id("<bos>"), tokenizer.token_to_id("<eos2>")))

    @needs("tokenizers", "transformers")
    def test_files_beside_a_tokenizer_by_which_transformers_makes_other_tokens_are_refused(self):
        from tokenizers import AddedToken, models, normalizers, pre_tokenizers, Tokenizer
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
        from causeway.errors import InvalidArgument
        from causeway.tokenize import load_tokenizer

        def load(path, **files):
            for name, content in files.items():
                self.write(f"{path.parent.name}/{name}.json", json.dumps(content))
            try:
                return load_tokenizer(str(path.parent))
            finally:
                for name in files:
                    (path.parent / f"{name}.json").unlink()

        def refused(words, path, **files):
            with self.subTest(files), self.assertRaises(InvalidArgument) as caught:
                load(path, **files)
            for word in words:
                self.assertIn(word, caught.exception.message)

        bpe, path = self.bpe("bpe/tokenizer.json")
        number = bpe.token_to_id("<s>")
        plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
        refused(["because of split_special_tokens"], path, tokenizer_config=plain | {"split_special_tokens": True})
        for field in ("lstrip", "rstrip", "single_word"):
            token = {"content": "<s>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False,
                     "special": True}
            load(path, tokenizer_config=plain | {"added_tokens_decoder": {number: token}})
            refused(["because of added_tokens_decoder", "'a <s> b<s>c<s>"], path,
                    tokenizer_config=plain | {"added_tokens_decoder": {number: token | {field: True}}})
        # A class, or a model's type, by which the parts of the tokenizer are made anew.
        refused(["Qwen2Tokenizer", "because of config.json"], path, config={"model_type": "qwen2"})
        refused(["transformers does not load it", "[UNK]"], path, tokenizer_config={"tokenizer_class": "BertTokenizer"})
        refused(["custom code"], path, tokenizer_config={"auto_map": {"AutoTokenizer": ["x.T", None]}})
        words = Tokenizer(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3, "[MASK]": 4, "hello": 5,
                                            "HELLO": 6, "end": 7, "e": 8, "é": 9}, unk_token="[UNK]"))
        words.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        words.add_special_tokens([AddedToken(name, special=True) for name in
                                  ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")])
        path = self.write("bert/tokenizer.json", words.to_str())
        bert = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False}
        load(path, tokenizer_config=bert)
        refused(["because of do_lower_case"], path, tokenizer_config=bert | {"do_lower_case": True})
        refused(["because of do_lower_case, strip_accents"], path, tokenizer_config=bert | {"strip_accents": True})
        refused(["tokenize_chinese_chars"], path, tokenizer_config=bert | {"tokenize_chinese_chars": False})

        # What is taken is what transformers has.
        _, path = self.bpe("ends/tokenizer.json")
        PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<s>").save_pretrained(path.parent)
        found, theirs = load_tokenizer(str(path.parent)), AutoTokenizer.from_pretrained(path.parent)
        self.assertEqual((found.begin_of_text, found.end_of_text), (None, theirs.eos_token_id))
        self.assertEqual(list(map(list, found.encode([TEXT[:500]]))), theirs([TEXT[:500]])["input_ids"])
        status = self.call(f"--input={self.write('in.txt', TEXT)}", f"--tokenizer={path}", without="transformers")
        self.assertEqual(2, status[0])
        self.assertIn("needs the Python package transformers, which is missing", status[2])

    @needs("sentencepiece")
    def test_sentencepiece(self):
        import sentencepiece
        from causeway.tokenize import load_tokenizer
        for kind in ("unigram", "bpe"):
            model = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=300, model_type=kind,
                byte_fallback=True, num_threads=1, minloglevel=2)
            path = self.write(f"{kind}/tokenizer.model", model.getvalue())
            lines = self.write("in.jsonl", "\n".join(LINES))
            flags = (f"--input={lines}", f"--tokenizer={path.parent}", "--held_out_fraction=0.5", "--replace")
            self.made(*flags)
            pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
            self.assertEqual(read_part(self.out, "train")[0],
                             [*pieces.encode("one"), pieces.eos_id(), *pieces.encode("three"), pieces.eos_id()])
            for begins, number in ((True, pieces.bos_id()), (False, None)):
                beside = self.write(f"{kind}/tokenizer_config.json", json.dumps({"add_bos_token": begins}))
                self.assertEqual(load_tokenizer(str(path)).begin_of_text, number)
                beside.unlink()
            for name, content, message in (
                    ("added_tokens.json", {"<pad>": 300}, "tokens are not added to a tokenizer here"),
                    ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"}, 'tokenizer_class is "T5Tokenizer"'),
                    ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case is set"),
                    ("tokenizer_config.json", {"add_prefix_space": False}, "add_prefix_space is false"),
                    ("tokenizer_config.json", {"eos_token": "<s>"}, "eos_token is not the one that")):
                beside = self.write(f"{kind}/{name}", json.dumps(content))
                self.refused(message, *flags)
                beside.unlink()

    @needs("tokenizers")
    def test_a_tokenizer_json_that_is_not_understood_names_the_model_beside_it(self):
        path = self.write("llama/tokenizer.json", '{"version": "1.0", "model": {"type": "of a later release"}}')
        flags = (f"--input={self.write('in.txt', TEXT)}", f"--tokenizer={path.parent}")
        self.refused(f"{path} is no tokenizer that the package tokenizers", *flags)
        self.assertNotIn("take the other one", self.call(*flags)[2])
        model = self.write("llama/tokenizer.model", b"pieces")
        self.refused(f"; take the other one, --tokenizer={model}", *flags)

    def test_packages_that_are_missing_are_named(self):
        text = self.write("in.txt", TEXT)
        for name, package in (("tokenizer.json", "tokenizers"), ("tokenizer.model", "sentencepiece")):
            path = self.write(name, "{}")
            self.refused(f"needs the Python package {package}, which is missing: pip install {package}",
                         f"--input={text}", f"--tokenizer={path}", without=package)

    def test_data_that_are_there_stay_until_the_new_are_whole(self):
        first = self.write("first.txt", TEXT)
        second = self.write("second.txt", TEXT * 2)
        self.made(f"--input={first}", "--shard_tokens=20000")
        self.write("out/notes.txt", "mine")
        before = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.refused("holds data already (data.json)", f"--input={second}")
        small = self.write("small.txt", "x" * 1279)
        self.refused("has 1279 bytes, too few to hold out a part of 0.05; at least 1280", f"--input={small}", "--replace")
        self.assertEqual(before, {path.name: path.read_bytes() for path in self.out.iterdir()})
        # What a process that was killed left is cleared, or moved up where it was whole.
        self.write("out/unfinished/train_000000.bin.tmp", "half")
        self.made(f"--input={second}", "--replace")
        self.assertEqual(sorted(path.name for path in self.out.iterdir()),
                         ["data.json", "held_out.documents", "held_out_000000.bin", "notes.txt", "train.documents",
                          "train_000000.bin"])
        whole = {path.name: path.read_bytes() for path in self.out.iterdir() if path.name != "notes.txt"}
        (self.out / "unfinished").mkdir()
        for name in whole:
            (self.out / name).rename(self.out / "unfinished" / name)
        self.refused("holds data already", f"--input={first}")
        self.assertEqual(whole, {path.name: path.read_bytes() for path in self.out.iterdir() if path.name != "notes.txt"})
        self.write("out/unfinished/thesis.txt", "mine")
        status, _, error = self.call(f"--input={first}", "--replace")
        self.assertEqual(2, status)
        self.assertIn("holds thesis.txt, which is not written here", error)

    def test_a_corpus_that_becomes_shorter_is_named(self):
        text = self.write("in.txt", TEXT * 20)
        script = ("import os, sys; from causeway.errors import InvalidArgument; from causeway.tokenize import _corpus\n"
                  "found = _corpus.pieces(_corpus.find(sys.argv[1:]), 0.05); next(found); os.truncate(sys.argv[1], 4096)\n"
                  "try: print(sum(1 for _ in found))\n"
                  "except InvalidArgument as error: print(error.message)")
        status, output, error = run_python("-c", script, text)
        self.assertEqual((0, ""), (status, error))
        self.assertIn(f"{text} had {20 * len(TEXT)} bytes and now has ", output)

    def test_pointers_of_git_lfs_are_no_text(self):
        for name in ("a/in.txt", "b/in.jsonl"):
            self.write(f"{name[0]}/first.txt", TEXT)
            path = self.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n" * 50)
            self.refused(f"{path} is a Git LFS pointer", f"--input={path.parent}", "--bad_lines=skip")
            self.refused(f"{path} is a Git LFS pointer", f"--input={path}")

    def test_what_is_no_text_is_refused_by_name(self):
        self.refused("No such file or directory", f"--input={self.folder / 'missing'}")
        program = self.write("program", b"ELF\0")
        self.refused(f"{program} is not text", f"--input={program}")
        (self.folder / "empty").mkdir()
        self.refused("there is no text in", f"--input={self.folder / 'empty'}")
        text = self.write("in.txt", TEXT)
        self.refused("held_out_fraction must be above 0", f"--input={text}", "--held_out_fraction=0.6")
        self.refused("shard_tokens must be 1 ..", f"--input={text}", "--shard_tokens=0")
        self.refused('there is no tokenizer "gpt2"', f"--input={text}", "--tokenizer=gpt2")
        self.refused("there is neither a tokenizer.json nor a tokenizer.model", f"--input={text}",
                     f"--tokenizer={self.folder}")
        os.symlink(".", self.folder / "empty" / "loop")
        self.refused("a link in a circle", f"--input={self.folder / 'empty'}")
        self.assertFalse(self.out.exists())
