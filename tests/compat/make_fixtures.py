#!/usr/bin/env python3
"""Makes the small tokenizers in tests/unit/worker/data/tokenizers and what they make of adversarial
texts, with the libraries that everyone uses. Needs `tokenizers` and `sentencepiece` from PyPI; run it
only to change the fixtures:

    python3 -m venv /tmp/compat && /tmp/compat/bin/pip install tokenizers sentencepiece
    /tmp/compat/bin/python tests/compat/make_fixtures.py

Each FOLDER has tokenizer.json or tokenizer.model, and expected.json: {"library": ..., "cases":
[{"text": ..., "tokens": [...]}, ...]}.
"""
import io
import json
import os
import sys

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import LLAMA3, QWEN, adversarial_texts, training_text  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIXTURES = os.path.join(ROOT, "tests", "unit", "worker", "data", "tokenizers")


def split_by(expression):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(expression), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_bpe(pre_tokenizer, special, normalizer=None, vocab_size=1000, text=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(training_text() if text is None else text, trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def make_bpe():
    gpt2 = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    prefix = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), ["<s>", "</s>"],
                       vocab_size=400)
    prefix.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False),
                       AddedToken("word", single_word=True), AddedToken("<r>", rstrip=True)])
    llama = train_bpe(split_by(LLAMA3), ["<|begin_of_text|>", "<|end_of_text|>"])
    llama.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            special_tokens=[("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))])])
    as_json = json.loads(llama.to_str())
    as_json["model"]["ignore_merges"] = True
    # A word that no merge leads to: ignore_merges alone finds it.
    vocabulary = as_json["model"]["vocab"]
    unused = max(vocabulary, key=vocabulary.get)
    number = vocabulary.pop(unused)
    as_json["model"]["merges"] = [
        m for m in as_json["model"]["merges"] if unused not in ("".join(m), *m)]
    vocabulary["Ġzyzzyva"] = number
    llama = Tokenizer.from_str(json.dumps(as_json))
    qwen = train_bpe(split_by(QWEN), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                     normalizers.NFC())
    qwen.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("\u00e9t\u00e9!")])
    return {"gpt2": gpt2, "prefix": prefix, "llama3": llama, "qwen": qwen}


def make_sentencepiece(model_type, normalization="identity", text=None, vocabulary=440):
    out = io.BytesIO()
    lines = "".join(training_text() if text is None else text).splitlines()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out,
        vocab_size=vocabulary, model_type=model_type, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name=normalization,
        split_digits=model_type == "bpe", remove_extra_whitespaces=model_type == "unigram",
        allow_whitespace_only_pieces=model_type == "bpe", num_threads=1, minloglevel=2)
    return out.getvalue()


def make_bpe_for(text, vocabulary):
    """One tokenizer of each family, as large as people use them, by file name."""
    lines = text.splitlines(keepends=True)
    families = {"gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
                "llama3": (split_by(LLAMA3), None), "qwen": (split_by(QWEN), normalizers.NFC())}
    for name, (pre_tokenizer, normalizer) in families.items():
        yield f"{name}_{vocabulary}.json", train_bpe(
            pre_tokenizer, ["<|endoftext|>"], normalizer, vocabulary, lines).to_str().encode()
    for kind in ("unigram", "bpe"):
        yield f"{kind}_{vocabulary // 2}.model", make_sentencepiece(
            kind, text=lines, vocabulary=vocabulary // 2)


def write(folder, name, content, expected):
    path = os.path.join(FIXTURES, folder)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, name), "wb") as file:
        file.write(content)
    with open(os.path.join(path, "expected.json"), "w", encoding="utf-8") as file:
        cases = ",\n".join(json.dumps(case, separators=(",", ":")) for case in expected["cases"])
        file.write(f'{{"library":{json.dumps(expected["library"])},"cases":[\n{cases}\n]}}\n')


def main():
    texts = adversarial_texts()
    for folder, tokenizer in make_bpe().items():
        as_json = json.loads(tokenizer.to_str())
        if folder == "gpt2":  # The older way to write merges.
            as_json["model"]["merges"] = [" ".join(m) for m in as_json["model"]["merges"]]
        content = json.dumps(as_json, separators=(",", ":"), ensure_ascii=False).encode()
        again = Tokenizer.from_str(content.decode())
        cases = [{"text": t, "tokens": again.encode(t, add_special_tokens=False).ids}
                 for t in texts]
        write(folder, "tokenizer.json", content,
              {"library": f"tokenizers {tokenizers.__version__}", "cases": cases})
    for model_type in ("unigram", "bpe"):
        model = make_sentencepiece(model_type)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        cases = [{"text": t, "tokens": processor.encode(t)} for t in texts]
        write(f"sentencepiece_{model_type}", "tokenizer.model", model,
              {"library": f"sentencepiece {sentencepiece.__version__}", "cases": cases})
    for folder, _, files in sorted(os.walk(FIXTURES)):
        for file in sorted(files):
            path = os.path.join(folder, file)
            print(f"{os.path.getsize(path):8} {os.path.relpath(path, ROOT)}")


if __name__ == "__main__":
    main()
