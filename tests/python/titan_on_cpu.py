#!/usr/bin/env python3
"""Runs a program with torchtitan on a CPU, for which its wheel is not made.

usage: titan_on_cpu.py FOLDER PROGRAM [ARGUMENT...], where FOLDER takes what it writes
"""
import json
import os
import pathlib
import runpy
import sys
import types

import torch
from torch.nn import functional


class Devices:
    """torch.cpu, with what torchtitan asks of memory and devices."""

    def __getattr__(self, name):
        answer = {"get_device_properties": types.SimpleNamespace(total_memory=1 << 30), "memory_stats": {},
                  "get_device_name": "a CPU", "current_device": 0}.get(name)
        return (lambda *_: answer) if answer is not None else getattr(torch.cpu, name, lambda *_: None)


def attention(query, key, value, block_mask=None, scale=None, enable_gqa=False, **_):
    """Flex attention, which has no backward pass on CPUs."""
    rows, columns = (torch.arange(tensor.shape[-2]) for tensor in (query, key))
    batch, heads = (torch.arange(size) for size in (query.shape[0], 1))
    mask = None if block_mask is None else block_mask.mask_mod(
        batch[:, None, None, None], heads[None, :, None, None], rows[:, None], columns[None, :])
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale,
                                                   enable_gqa=enable_gqa), None


def write_assets():
    """What its tests have, and its wheel lacks: a tokenizer of bytes, and a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    folder = pathlib.Path("tests/assets")
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "c4_test").mkdir(exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate([*letters, "<|begin_of_text|>", "<|end_of_text|>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}))
    (folder / "c4_test/data.json").write_text("".join(
        json.dumps({"text": f"the bridge carries {i} over the water " * 40}) + "\n" for i in range(200)))


def main():
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _kind: Devices()
    from torchtitan.models.common.attention import FlexAttention
    FlexAttention._compiled_flex_attn = staticmethod(attention)
    os.chdir(sys.argv[1])
    write_assets()
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
