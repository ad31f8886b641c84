"""A checkpoint of Hugging Face, as transformers loads it, becomes a model that a run starts from."""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any, Dict, List, Optional, Tuple

from causeway.errors import InvalidArgument
from causeway.huggingface import _folder, _shape
from causeway.tokenize import missing, read_json, refuse_pointers

_USUAL_WINDOW = 1024
_ROPE = ("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
         "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
         "truncate", "short_factor", "long_factor")
_ROPE_OF = {"default": _ROPE[:3], "llama3": _ROPE[:7]}
# Fields that say nothing about what the model computes: names, tokens, how text is generated, how a
# training began and what it dropped, how the program is to work.
_SAY_NOTHING = set("""
architectures torch_dtype dtype name_or_path tokenizer_class unsloth_version unsloth_fixed
transformers.js_config is_llama_config license task_specific_params finetuning_task sep_token_id unk_token_id
cls_token_id mask_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id bos_token eos_token
pad_token unk_token max_length min_length max_sequence_length model_max_length do_sample early_stopping num_beams
num_beam_groups num_return_sequences temperature top_k top_p typical_p diversity_penalty repetition_penalty
length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids suppress_tokens
begin_suppress_tokens remove_invalid_values exponential_decay_length_penalty return_dict_in_generate output_scores
prefix hidden_dropout dropout output_past torchscript use_bfloat16 tf_legacy_loss gradient_checkpointing
attn_implementation num_labels n_ctx n_special predict_special_tokens""".split())
# Read by transformers where there is RoPE, which GPT-2 has not.
_OF_ROPE = dict.fromkeys(("rope_theta", "rope_scaling", "head_dim"))
_MUST_BE_FALSE = ("rope_interleaved", "use_mrope", "use_sliding_window", "is_encoder_decoder",
                  "scale_attn_by_inverse_layer_idx", "add_cross_attention")


def _refuse(path: str, field: str, value: Any, why: str = "which is not supported") -> InvalidArgument:
    return InvalidArgument(f"{path}: {field} is {json.dumps(value)[:100]}, {why}")


def _load(folder: str, architecture: str):
    try:
        import torch
        import transformers
    except ImportError as error:
        raise missing(error.name or "transformers", "importing a checkpoint of Hugging Face's") from None
    transformers.utils.logging.disable_progress_bar()
    logger = logging.getLogger("transformers")
    level, logger.level = logger.level, logging.CRITICAL  # What it would say is refused below, by name.

    def load(mismatched: bool):
        return getattr(transformers, architecture).from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=mismatched)

    try:
        try:
            model, info = load(mismatched=False)
        except RuntimeError as error:
            if "mismatched" not in str(error):
                raise
            try:
                model, info = load(mismatched=True)  # Names what does not match.
            except Exception:
                raise ValueError("a tensor, lm_head.weight perhaps, has another shape than its config.json asks "
                                 "for") from None
    except Exception as error:  # Of many types, by what is wrong with the folder.
        raise InvalidArgument(f"{folder}: transformers {transformers.__version__} does not load it: {error}") from None
    finally:
        logger.level = level
    for name, found, wanted in sorted(info.get("mismatched_keys") or (), key=str):
        raise InvalidArgument(f"{folder}: the tensor {name} is {list(found)}; its config.json takes {list(wanted)}")
    for what, said in (("missing_keys", "that its config.json asks for is missing"),
                       ("unexpected_keys", "belongs to nothing that its config.json describes")):
        if names := sorted(info.get(what) or ()):
            raise InvalidArgument(f"{folder}: the tensor {names[0]} {said}")
    return torch, model.eval()


def _check_folder(folder: str) -> Dict[str, Any]:
    if not os.path.isdir(folder):
        raise InvalidArgument(f"there is no folder {folder}: give one with config.json and safetensors")
    refuse_pointers(folder)
    if os.path.exists(adapter := os.path.join(folder, "adapter_config.json")):
        raise InvalidArgument(f"{adapter} makes the folder an adapter of a model, which is not supported: merge it into "
                              "the model (merge_and_unload of peft), or remove it")
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        raise InvalidArgument(f"{folder} has no config.json")
    config = read_json(path)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in _shape.SUPPORTED:
        raise InvalidArgument(f"{path}: architectures is {json.dumps(architectures)}, which is not supported: "
                              f"{', '.join(_shape.SUPPORTED)} are")
    if config.get("quantization_config"):
        raise InvalidArgument(f"{path}: quantization_config is given: quantized weights are not supported")
    for field in ("rope_parameters", "rope_scaling"):
        said = config.get(field)
        if said is None:
            continue
        if not isinstance(said, dict):
            raise InvalidArgument(f"{path}: {field} must be an object, as {{\"rope_type\": \"llama3\", ...}}; it is "
                                  f"{json.dumps(said)[:100]}")
        if any(isinstance(value, dict) for value in said.values()):
            raise InvalidArgument(f"{path}: {field} is nested by layer type ({', '.join(sorted(said))}), which is not "
                                  "supported: give what full_attention has, without the name around it")
        for name in said:
            if name not in _ROPE:
                raise _refuse(path, f"{field}.{name}", said[name])
    _compare_rope(path, config)
    return config


def _rope_said(config: Dict[str, Any]) -> List[Tuple[str, str, Any]]:
    """What a file says of RoPE: where, which, and the value."""
    return [(f"{field}.{name}", "rope_type" if name == "type" else name, value)
            for field in ("rope_parameters", "rope_scaling")
            for name, value in (config.get(field) or {}).items() if value is not None]


def _compare_rope(path: str, config: Dict[str, Any]) -> None:
    """Refuses a RoPE that is said twice and differs: transformers takes one place and does not say so."""
    places: Dict[str, Any] = {}
    for place, name, value in _rope_said(config):
        former, before = places.setdefault(name, (place, value))
        if before != value:
            raise InvalidArgument(f"{path}: {former} is {json.dumps(before)}, and {place} is {json.dumps(value)}: remove "
                                  "what does not hold")


def _check_fields(path: str, config: Dict[str, Any], known: Dict[str, Any]) -> None:
    """Refuses what transformers would not read, and what is not done here."""
    for field, value in config.items():
        if value is None or field.startswith("_") or field in known or field in _SAY_NOTHING:
            continue
        if field in _MUST_BE_FALSE and value is False:
            continue
        raise _refuse(path, field, value, "which is not understood: if the model is the same without it, remove it")
    for field in _MUST_BE_FALSE:
        if config.get(field):
            raise _refuse(path, field, config[field])
    if config.get("scale_attn_weights") is False:
        raise _refuse(path, "scale_attn_weights", False)
    for field, allowed in (("hidden_act", ("silu",)), ("activation_function", ("gelu_new", "gelu_pytorch_tanh"))):
        if field in config and field in known and config[field] not in allowed:
            raise _refuse(path, field, config[field], f"which is not supported: {allowed[0]} is")


def _frequencies(torch: Any, head_dim: int, theta: float, scaling: Optional[Dict[str, Any]]):
    """Those of our RoPE, as docs/algorithm.md has them."""
    own = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling is None:
        return own
    length = 2 * math.pi / own
    low, high = scaling["low_frequency_factor"], scaling["high_frequency_factor"]
    positions = scaling["original_positions"]
    smooth = ((positions / length - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * own / scaling["factor"] + smooth * own


def _check_taken(path: str, given: Dict[str, Any], said: Dict[str, Any], kind: str) -> None:
    """Refuses what the file says of RoPE and transformers does not turn by."""
    taken = {**said, "rope_type": kind}
    for place, name, value in sorted(_rope_said(given), key=lambda entry: entry[1] != "rope_type"):
        if name not in _ROPE_OF[kind]:
            raise _refuse(path, place, value, f"which counts for nothing with the rope_type {kind} that transformers takes: "
                          "remove it, or give the rope_type that it belongs to")
        if taken.get(name) != value:
            raise _refuse(path, place, value, f"and transformers takes the file as {name} "
                          f"{json.dumps(taken.get(name))[:100]}: remove what does not hold")


def _rope(torch: Any, path: str, given: Dict[str, Any], model: Any, head_dim: int) -> Dict[str, Any]:
    """What transformers turns by, whichever of its spellings said it: compared frequency by frequency."""
    config = model.config
    said = getattr(config, "rope_parameters", None)
    if said is None:  # Before transformers 5.
        said = {"rope_theta": config.rope_theta, **(config.rope_scaling or {})}
    for place in ("rope_theta", "rope_parameters"):
        base = given.get(place)
        base = base.get("rope_theta") if isinstance(base, dict) else base
        if base is not None and (isinstance(base, bool) or not isinstance(base, (int, float))):
            raise InvalidArgument(f"{path}: rope_theta must be a number; it is {json.dumps(base)}")
        if base is not None and base != said["rope_theta"]:
            raise InvalidArgument(f"{path}: the base of RoPE is {base:g} by {place}, and {said['rope_theta']:g} as transformers "
                                  "takes the file: remove one of them")
    kind = said.get("rope_type", said.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise _refuse(path, "rope_type", kind, "which is not supported: default and llama3 are")
    _check_taken(path, given, said, kind)
    result: Dict[str, Any] = {"rope_theta": float(said["rope_theta"])}
    if kind == "llama3":
        result["rope_scaling"] = {
            "factor": float(said["factor"]), "low_frequency_factor": float(said["low_freq_factor"]),
            "high_frequency_factor": float(said["high_freq_factor"]),
            "original_positions": int(said["original_max_position_embeddings"])}
    rotary = model.model.rotary_emb
    own = _frequencies(torch, head_dim, result["rope_theta"], result.get("rope_scaling"))
    turned = rotary.inv_freq.to(torch.float64)
    if turned.shape != own.shape or not torch.allclose(turned, own, rtol=1e-5, atol=0) or rotary.attention_scaling != 1:
        raise InvalidArgument(f"{path}: its RoPE, {json.dumps(said)[:300]}, turns by other angles than are supported: "
                              "default and llama3 are, of the whole head")
    return result


def _shape_of(torch: Any, path: str, given: Dict[str, Any], model: Any) -> Dict[str, Any]:
    config = model.config
    if type(model).__name__ == "GPT2LMHeadModel":
        heads, width = config.n_head, config.n_embd
        return {"vocabulary_size": config.vocab_size, "layers": config.n_layer, "width": width, "heads": heads,
                "kv_heads": heads, "head_dim": width // heads, "mlp_width": config.n_inner or 4 * width,
                "mlp": "GELU", "qk_norm": False, "norm_epsilon": float(config.layer_norm_epsilon), "qkv_bias": True,
                "output_bias": True, "mlp_bias": True, "layer_norm": True, "learned_positions": config.n_positions,
                "untied_head": model.lm_head.weight is not model.transformer.wte.weight}
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        raise InvalidArgument(f"{path}: layer_types has others than full_attention, which are not supported")
    layers = model.model.layers
    attention, mlp = layers[0].self_attn, layers[0].mlp
    if not math.isclose(attention.scaling, attention.head_dim ** -0.5):
        raise InvalidArgument(f"{path}: attention is scaled by {attention.scaling:g}, which is not supported: "
                              f"{attention.head_dim ** -0.5:g} is, of a head's {attention.head_dim} values")
    return {"vocabulary_size": config.vocab_size, "layers": len(layers), "width": config.hidden_size,
            "heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads, "head_dim": attention.head_dim,
            "mlp_width": config.intermediate_size, "mlp": "SWIGLU", "qk_norm": hasattr(attention, "q_norm"),
            "norm_epsilon": float(config.rms_norm_eps), "qkv_bias": attention.q_proj.bias is not None,
            "output_bias": attention.o_proj.bias is not None, "mlp_bias": mlp.up_proj.bias is not None,
            "untied_head": model.lm_head.weight is not model.model.embed_tokens.weight,
            **_rope(torch, path, given, model, attention.head_dim)}


def _own_tensors(torch: Any, folder: str, model: Any, shape: Dict[str, Any]) -> Dict[str, Any]:
    gpt2 = type(model).__name__ == "GPT2LMHeadModel"
    state = model.state_dict()
    tensors = {}
    for name in _shape.names(shape):
        source = _shape.theirs(name, gpt2)
        value = state[source].detach()
        if _shape.is_transposed(source) and gpt2:
            value = value.T
        if gpt2 and ".attn.c_attn." in source:
            part = ("q_proj", "k_proj", "v_proj").index(name.split(".")[-2])
            value = value.chunk(3)[part]
        if not torch.isfinite(value).all():
            raise InvalidArgument(f"{folder}: the tensor {source} has a value that is not finite; parameters must be")
        tensors[name] = value.contiguous().clone()
    return tensors


def import_folder(source: str, out: str, sequence_length: int = 0, replace: bool = False) -> Dict[str, Any]:
    """Writes what `causeway-coordinator serve --initial` reads, and returns its shape.

    transformers reads the folder, so its rules decide which file and which setting counts. What of it
    is not done by Causeway's model is refused by name.
    """
    _folder.check(out, replace)
    config = _check_folder(source)
    path = os.path.join(source, "config.json")
    torch, model = _load(source, config["architectures"][0])
    _check_fields(path, config, {**type(model.config)().to_dict(),
                                 **({} if type(model).__name__ == "GPT2LMHeadModel" else _OF_ROPE)})
    if config.get("model_type") not in (None, type(model.config).model_type):
        raise _refuse(path, "model_type", config["model_type"],
                      f"which is not that of {config['architectures'][0]}: {type(model.config).model_type}")
    shape = _shape_of(torch, path, config, model)
    if shape["untied_head"] and config.get("tie_word_embeddings"):
        logging.getLogger("causeway").warning("%s: lm_head.weight is not the embedding that tie_word_embeddings says: the model "
                                              "has both, as transformers takes it", source)
    positions = getattr(model.config, "max_position_embeddings", 0)
    if positions < 1:
        raise InvalidArgument(f"{path}: max_position_embeddings must be 1 or more; it is {positions}")
    if not shape["norm_epsilon"] > 0:
        raise InvalidArgument(f"{path}: the norms' epsilon must be above 0; it is {shape['norm_epsilon']}")
    if not 0 <= sequence_length <= positions:
        raise InvalidArgument(f"{path}: the model takes {positions} positions; --sequence_length must be at most that, or "
                              f"0 for the smaller of it and {_USUAL_WINDOW}; it is {sequence_length}")
    shape["sequence_length"] = sequence_length or min(positions, _USUAL_WINDOW)
    tensors = _own_tensors(torch, source, model, shape)

    def write(folder: str) -> None:
        from safetensors.torch import save_file
        save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, _shape.MODEL_FILE), "w", encoding="utf-8") as file:
            file.write(_shape.shape_text(shape))

    _folder.write(out, write)
    return shape
