"""A model of Causeway's own family, as its model.textproto says it, and Hugging Face's names for its parts."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List

from causeway import _textproto
from causeway.errors import InvalidArgument
from causeway.tokenize import refuse_pointer

MODEL_FILE = "model.textproto"
SUPPORTED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel")

# Ours behind "model.layers.N." and GPT-2's behind "transformer.h.N."; several of ours may be one there.
_GPT2_BLOCK = {
    "input_layernorm": "ln_1", "self_attn.q_proj": "attn.c_attn", "self_attn.k_proj": "attn.c_attn",
    "self_attn.v_proj": "attn.c_attn", "self_attn.o_proj": "attn.c_proj", "post_attention_layernorm": "ln_2",
    "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
_GPT2 = {"model.embed_tokens": "transformer.wte", "model.embed_positions": "transformer.wpe",
         "model.norm": "transformer.ln_f", "lm_head": "lm_head"}
_CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def read_shape(folder: str) -> Dict[str, Any]:
    """The fields of `model`."""
    path = os.path.join(folder, MODEL_FILE)
    if not os.path.exists(path):
        raise InvalidArgument(f"{folder} has no {MODEL_FILE}: expected a folder that causeway-worker export or "
                              "causewayctl export wrote (a run of tensors needs no export: load its safetensors)")
    refuse_pointer(path)
    shape: Dict[str, Any] = {}
    try:
        with open(path, encoding="utf-8") as file:
            for where, word in _textproto.fields(file.read()):
                if len(where) > 1 and where[0] == "model":
                    place = shape
                    for part in where[1:-1]:
                        place = place.setdefault(part, {})
                    place[where[-1]] = ({"true": True, "false": False}[word] if word in ("true", "false")
                                   else int(word) if re.fullmatch(r"-?\d+", word)
                                   else float(word) if re.match(r"-?[\d.]", word) else word.strip('"'))
    except ValueError as error:
        raise InvalidArgument(f"{path} {error}") from None
    if not shape:
        raise InvalidArgument(f"{path} has no model {{ ... }}")
    return shape


def shape_text(shape: Dict[str, Any]) -> str:
    """What read_shape reads."""
    def lines(values: Dict[str, Any], indent: str) -> str:
        text = ""
        for name, value in values.items():
            if isinstance(value, dict):
                text += f"{indent}{name} {{\n{lines(value, indent + '  ')}{indent}}}\n"
            else:
                said = {True: "true", False: "false"}[value] if isinstance(value, bool) else value
                text += f"{indent}{name}: {said}\n"
        return text
    return f"model {{\n{lines(shape, '  ')}}}\n"


def theirs(name: str, gpt2: bool) -> str:
    """Their tensor that holds ours."""
    if not gpt2:
        return name
    part, kind = name.rsplit(".", 1)
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", part)
    return f"transformer.h.{match[1]}.{_GPT2_BLOCK[match[2]]}.{kind}" if match else f"{_GPT2[part]}.{kind}"


def is_transposed(name: str) -> bool:
    """Whether theirs is [inputs, outputs], as GPT-2's Conv1D has it."""
    return name.endswith(_CONV1D)


def names(shape: Dict[str, Any]) -> List[str]:
    """Our tensors."""
    norms = ["weight", "bias"] if shape.get("layer_norm") else ["weight"]
    result = ["model.embed_tokens.weight"]
    result += ["model.embed_positions.weight"] if shape.get("learned_positions") else []
    for block in range(shape["layers"]):
        qkv = ["weight", "bias"] if shape.get("qkv_bias") else ["weight"]
        output = ["weight", "bias"] if shape.get("output_bias") else ["weight"]
        mlp = ["weight", "bias"] if shape.get("mlp_bias") else ["weight"]
        parts = {"input_layernorm": norms, **{f"self_attn.{x}_proj": qkv for x in "qkv"},
                 **({"self_attn.q_norm": ["weight"], "self_attn.k_norm": ["weight"]} if shape.get("qk_norm") else {}),
                 "self_attn.o_proj": output, "post_attention_layernorm": norms,
                 **({} if shape.get("mlp") == "GELU" else {"mlp.gate_proj": mlp}),
                 "mlp.up_proj": mlp, "mlp.down_proj": mlp}
        result += [f"model.layers.{block}.{part}.{kind}" for part, kinds in parts.items() for kind in kinds]
    result += [f"model.norm.{kind}" for kind in norms]
    return result + (["lm_head.weight"] if shape.get("untied_head") else [])


def choose_architecture(shape: Dict[str, Any]) -> str:
    has = lambda field: bool(shape.get(field))  # noqa: E731
    even_heads = shape["heads"] * shape["head_dim"] == shape["width"]
    gated = shape.get("mlp") != "GELU"
    paired = has("qkv_bias") == has("output_bias")
    if gated and not has("layer_norm") and not has("learned_positions"):
        if not has("qk_norm") and paired:
            return "LlamaForCausalLM"
        if has("qk_norm") and paired and not has("mlp_bias"):
            return "Qwen3ForCausalLM"
        if not has("qk_norm") and has("qkv_bias") and even_heads and not has("mlp_bias"):
            return "Qwen2ForCausalLM"
    if (not gated and all(map(has, ("layer_norm", "learned_positions", "qkv_bias", "output_bias", "mlp_bias")))
            and even_heads and not has("qk_norm") and shape["kv_heads"] == shape["heads"]):
        return "GPT2LMHeadModel"
    said = ", ".join(f"{field} {shape.get(field, False)}" for field in (
        "mlp", "layer_norm", "learned_positions", "qk_norm", "qkv_bias", "output_bias", "mlp_bias"))
    raise InvalidArgument(f"no architecture of Hugging Face has this model's shape: {said}, heads * head_dim "
                          f"{shape['heads'] * shape['head_dim']} for width {shape['width']}; docs/data.md lists "
                          "those that have one")
