#!/usr/bin/env python3
"""torchtitan's trainer as a site, of one process or of as many as torchrun starts. All other flags are torchtitan's.

    torchrun --nproc_per_node=8 train_torchtitan.py --coordinator=hub:7070 --id=paris \
        --module llama3 --config llama3_8b --training.steps 10000

The coordinator serves a run of any model, of as many steps: `causeway-coordinator serve --initial=first-site`. Pipeline
stages (several model parts in a process) are not supported.
"""

from __future__ import annotations

import argparse
import sys

import torch.distributed as dist
from torchtitan.config import ConfigManager

import causeway.torch as cw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--id", required=True, help="this site's name, unique in the run")
    arguments, theirs = parser.parse_known_args()
    trainer = ConfigManager().parse_args(theirs).build()
    (model,) = trainer.model_parts
    training = trainer.config.training
    site = cw.join(arguments.coordinator, model, trainer.optimizers, id=arguments.id,
                   tokens_per_step=trainer.gradient_accumulation_steps * training.local_batch_size * training.seq_len)
    goes_on = trainer.should_continue_training

    def goes_on_and_so_does_the_run() -> bool:
        if site.info is None:  # The first time: torchtitan has loaded what it continues from.
            site.open()
        return goes_on() and not site.should_stop

    trainer.should_continue_training = goes_on_and_so_does_the_run
    try:
        trainer.train()
    finally:
        site.close(sys.exc_info()[1])
        trainer.close()
    print(f"site {arguments.id}: step {site.current_step} of the run", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
