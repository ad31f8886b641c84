#!/usr/bin/env python3
"""A fine-tune with LoRA under Hugging Face's Trainer as a site of a run.

    finetune_lora.py --coordinator=hub:7070 --id=paris --data=TEXT --out=FOLDER [--model=FOLDER]

Only the adapters train, so only they travel. Every site needs the same base model: --model names
one that is on the disk; without it a small one is made from a configuration and a fixed seed. The
run is one of any model, `causeway-coordinator serve --initial=first-site`.
"""

from __future__ import annotations

import argparse
import logging
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import Trainer, TrainingArguments

from causeway.transformers import CausewayCallback
from token_shards import Tokens, open_data


class Windows(torch.utils.data.Dataset):
    """Consecutive windows of tokens."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return self._tokens.windows(self._length)

    def __getitem__(self, index: int):
        window = torch.from_numpy(self._tokens.window(index, self._length)[:-1])
        return {"input_ids": window, "labels": window}


def base_model(folder: pathlib.Path | None) -> torch.nn.Module:
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, tie_word_embeddings=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--id", required=True, help="this site's name, unique in the run")
    parser.add_argument("--data", type=pathlib.Path, required=True,
                        help="this site's own: shards with the model's tokens, or a text of bytes")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the adapters")
    parser.add_argument("--model", type=pathlib.Path, help="folder of the base model")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--data_seed", type=int, default=1, help="of the order of this site's data")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    model = get_peft_model(base_model(arguments.model), LoraConfig(
        r=arguments.rank, lora_alpha=2 * arguments.rank, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    model.print_trainable_parameters()
    tokens, _ = open_data(arguments.data)
    with CausewayCallback(arguments.coordinator, id=arguments.id) as causeway:
        trainer = Trainer(
            model,
            TrainingArguments(
                output_dir=str(arguments.out), per_device_train_batch_size=arguments.batch,
                learning_rate=arguments.learning_rate, lr_scheduler_type="constant",
                max_steps=1_000_000,  # The run's budget ends training.
                logging_steps=10, save_strategy="no", report_to="none",
                data_seed=arguments.data_seed, include_num_input_tokens_seen="all"),
            train_dataset=Windows(tokens, arguments.length), callbacks=[causeway])
        trainer.train()
    with causeway.site.published():
        model.save_pretrained(arguments.out)
    print(f"the run's adapters are in {arguments.out}")


if __name__ == "__main__":
    main()
