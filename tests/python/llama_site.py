"""A transformers LlamaForCausalLM as a site, for commands_test.py; started with a Python that has torch.

    llama_site.py --coordinator=HOST:PORT --id=NAME --data=FOLDER --out=FOLDER    trains
    llama_site.py evaluate MODEL DATA SEQUENCES    prints the held-out loss of an exported folder, nats per token
"""

import pathlib
import sys

import causeway.huggingface
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"))

import train_from_scratch  # noqa: E402
from token_shards import held_out_windows, open_data  # noqa: E402


class Llama(transformers.LlamaForCausalLM):
    def loss(self, windows):
        logits = self(windows[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def make_model(config):
    model = config["model"]
    return Llama(transformers.LlamaConfig(
        vocab_size=model["vocabulary_size"], hidden_size=model["width"],
        intermediate_size=model["mlp_width"], num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"], max_position_embeddings=model["sequence_length"],
        rms_norm_eps=model["norm_epsilon"], rope_theta=model["rope_theta"],
        tie_word_embeddings=not model["untied_head"], attn_implementation="sdpa"))


def evaluate(folder, data, sequences):
    theirs = f"{folder}_theirs"
    causeway.huggingface.export_folder(folder, theirs, replace=True)
    model = Llama.from_pretrained(theirs, dtype=torch.float32)
    _, held_out = open_data(pathlib.Path(data))
    windows = held_out_windows(held_out, model.config.max_position_embeddings, int(sequences))
    print(train_from_scratch.held_out_loss(model, torch.from_numpy(windows), batch=8))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["evaluate"]:
        torch.set_num_threads(1)
        sys.exit(evaluate(*sys.argv[2:]))
    sys.exit(train_from_scratch.main(make_model, __doc__))
