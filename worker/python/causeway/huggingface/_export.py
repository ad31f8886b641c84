"""A model of Causeway's becomes a folder that transformers loads."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Dict, List

from causeway.errors import InvalidArgument
from causeway.huggingface import _folder, _shape
from causeway.tokenize import load_tokenizer, missing, read_json, refuse_pointer, refuse_pointers

_CONFIG = "tokenizer_config.json"
_TOKENIZER = ("tokenizer.json", _CONFIG, "tokenizer.model", "special_tokens_map.json", "vocab.json", "merges.txt",
              "added_tokens.json", "chat_template.jinja", "generation_config.json")
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def _configuration(transformers: Any, shape: Dict[str, Any], architecture: str, positions: int, ids: Dict[str, Any]):
    common = {"vocab_size": shape["vocabulary_size"], "tie_word_embeddings": not shape.get("untied_head", False),
              "architectures": [architecture], **{name: ids.get(name) for name in _IDS}}
    if architecture == "GPT2LMHeadModel":
        return transformers.GPT2Config(
            n_embd=shape["width"], n_layer=shape["layers"], n_head=shape["heads"], n_inner=shape["mlp_width"],
            n_positions=shape["learned_positions"], layer_norm_epsilon=shape["norm_epsilon"], **common)
    rope: Dict[str, Any] = {"rope_type": "default", "rope_theta": float(shape["rope_theta"])}
    if scaling := shape.get("rope_scaling"):
        rope.update(rope_type="llama3", factor=scaling["factor"], low_freq_factor=scaling["low_frequency_factor"],
                    high_freq_factor=scaling["high_frequency_factor"],
                    original_max_position_embeddings=scaling["original_positions"])
    if int(transformers.__version__.split(".")[0]) >= 5:
        common["rope_parameters"] = rope
    else:
        common["rope_theta"] = rope.pop("rope_theta")
        common["rope_scaling"] = rope if scaling else None
    if architecture != "Qwen2ForCausalLM":
        common.update(attention_bias=shape.get("qkv_bias", False), head_dim=shape["head_dim"])
    if architecture == "LlamaForCausalLM":
        common["mlp_bias"] = shape.get("mlp_bias", False)
    kind = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    return kind(hidden_size=shape["width"], num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
                num_key_value_heads=shape["kv_heads"], intermediate_size=shape["mlp_width"],
                rms_norm_eps=shape["norm_epsilon"], max_position_embeddings=positions, **common)


def _weights(folder: str) -> Dict[str, Any]:
    from safetensors.torch import load_file
    index, files = os.path.join(folder, "model.safetensors.index.json"), ["model.safetensors"]
    if os.path.exists(index):
        one, files = files[0], sorted(set(read_json(index).get("weight_map", {}).values()))
        if one not in files and os.path.exists(os.path.join(folder, one)):
            raise InvalidArgument(f"{folder} has {one}, and {os.path.basename(index)}, which names other files: remove the "
                                  "older one")
    tensors: Dict[str, Any] = {}
    for path in (os.path.join(folder, name) for name in files):
        refuse_pointer(path)
        tensors.update(load_file(path))
    return tensors


def _their_tensors(torch: Any, folder: str, shape: Dict[str, Any], gpt2: bool) -> Dict[str, Any]:
    own = _weights(folder)
    wanted = _shape.names(shape)
    for name in sorted(set(wanted) ^ set(own)):
        raise InvalidArgument(f"{folder}: the tensor {name} "
                              f"{'is missing' if name in wanted else f'belongs to nothing that {_shape.MODEL_FILE} has'}")
    parts: Dict[str, List[Any]] = {}
    for name in wanted:
        parts.setdefault(_shape.theirs(name, gpt2), []).append(own[name])
    tensors = {}
    for name, values in parts.items():
        value = values[0] if len(values) == 1 else torch.cat(values)
        tensors[name] = value.T.contiguous() if gpt2 and _shape.is_transposed(name) else value
    return tensors


def _copy_tokenizer(source: str, folder: str) -> Dict[str, Any]:
    """Returns the numbers of the tokens that begin and end a text."""
    ids: Dict[str, Any] = {}
    own = None
    refuse_pointers(source)
    try:
        own = load_tokenizer(source)
    except InvalidArgument as error:
        if not os.path.isdir(source) or not any(os.path.exists(os.path.join(source, name)) for name in _TOKENIZER[:5]):
            raise
        # Exports need not be of a tokenizer that makes data here.
        print(f"causeway.huggingface: {source} is copied unread ({error.message}): the eos_token_id in config.json is "
              "what its own config.json says, or null")
    if own is not None:
        ids = {"bos_token_id": own.begin_of_text, "eos_token_id": own.end_of_text}
    if os.path.isdir(source):
        for name in _TOKENIZER:
            if os.path.exists(os.path.join(source, name)):
                shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
        if os.path.exists(path := os.path.join(source, "config.json")):
            ids.update({name: value for name, value in read_json(path).items() if name in _IDS})
    else:
        shutil.copyfile(source, os.path.join(folder, "tokenizer.json" if source.endswith(".json") else "tokenizer.model"))
        if os.path.exists(path := os.path.join(os.path.dirname(source), _CONFIG)):
            shutil.copyfile(path, os.path.join(folder, _CONFIG))
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        _name_class(folder, ids)
    return ids


def _name_class(folder: str, ids: Dict[str, Any]) -> None:
    """Without a class, transformers makes a tokenizer of the architecture's usual kind: other tokens."""
    path = os.path.join(folder, _CONFIG)
    try:
        content = read_json(path) if os.path.exists(path) else {}
    except InvalidArgument:
        return  # Copied as it is.
    if "tokenizer_class" in content:
        return
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    added = read_json(os.path.join(folder, "tokenizer.json")).get("added_tokens") or []
    for token in added:
        for name in ("bos_token", "eos_token"):
            if ids.get(f"{name}_id") == token.get("id"):
                content.setdefault(name, token.get("content"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")


def export_folder(source: str, out: str, tokenizer: str = "", dtype: str = "f32", max_file_gb: float = 5,
                  max_positions: int = 0, replace: bool = False) -> str:
    """Writes the model of `source`, which causeway-worker or causewayctl exported. Returns its architecture."""
    _folder.check(out, replace)
    if not 1e-6 <= max_file_gb <= 1e6:
        raise InvalidArgument(f"--max_file_gb must be in 1e-6 .. 1e6; it is {max_file_gb:g}")
    if not 0 <= max_positions <= 1 << 30:
        raise InvalidArgument(f"--max_positions must be in 0 .. {1 << 30}; it is {max_positions}")
    shape = _shape.read_shape(source)
    architecture = _shape.choose_architecture(shape)
    try:
        import torch
        import transformers
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        raise missing(error.name or "transformers", "exporting for Hugging Face") from None
    transformers.utils.logging.disable_progress_bar()
    gpt2 = architecture == "GPT2LMHeadModel"
    tensors = _their_tensors(torch, source, shape, gpt2)

    def write(folder: str) -> None:
        ids = _copy_tokenizer(tokenizer, folder) if tokenizer not in ("", "bytes") else {}
        config = _configuration(transformers, shape, architecture, max_positions or shape["sequence_length"], ids)
        with torch.device("meta"):
            model = getattr(transformers, architecture)(config)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        for name, value in model.named_parameters():
            if value.is_meta:
                raise InvalidArgument(f"{source}: transformers' model has a tensor {name}, Causeway's has none")
        generation = os.path.join(folder, "generation_config.json")
        kept = open(generation, "rb").read() if os.path.exists(generation) else None
        model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).save_pretrained(
            folder, max_shard_size=int(max_file_gb * 1e9))
        if kept is not None:  # The tokenizer's own says more.
            with open(generation, "wb") as file:
                file.write(kept)

    _folder.write(out, write, leave_out=_TOKENIZER if tokenizer else ())
    return architecture
