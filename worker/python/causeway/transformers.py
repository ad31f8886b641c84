"""A Hugging Face Trainer as a site of a Causeway run.

>>> with CausewayCallback("hub:7070", id="paris") as causeway:
...     trainer = Trainer(model, arguments, train_dataset=data, callbacks=[causeway])
...     trainer.train()
>>> with causeway.site.published():
...     trainer.save_model()
"""

from __future__ import annotations

import logging
import os
from typing import Any, Optional

import torch
from transformers import TrainerCallback

import causeway.torch as cw
from causeway import _arguments as check
from causeway._unfollowed import say_if_unused

STATE_FILE = "causeway.pt"
log = logging.getLogger("causeway")


class CausewayCallback(TrainerCallback):
    """Joins when training begins, follows every optimizer step, and stops training with the run.

    A checkpoint of the Trainer gets the site's state beside it, and training that resumes from one
    continues from there. As a context manager it also tells the run of an exception; without,
    the run notices when this site's lease ends.

    Args:
        coordinator, id, arguments: as of `causeway.torch.join`.

    Attributes:
        site: the `causeway.torch.Site`, from the beginning of training on.
    """

    def __init__(self, coordinator: str, *, id: Optional[str] = None, **arguments: Any) -> None:
        self._join = lambda model, **more: cw.join(coordinator, model, id=id, **arguments, **more)
        self._unused = say_if_unused(self, check.site_id(coordinator, id)[1],
                                     "give its callback to the Trainer (callbacks=[...]), and train")
        self._tokens_seen = 0
        self.site: Optional[cw.Site] = None

    def __enter__(self) -> "CausewayCallback":
        return self

    def __exit__(self, _kind, error, _traceback) -> None:
        if self.site is not None:
            self.site.close(error)
        elif error is None:
            self._unused()

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_others):
        self._unused.detach()
        path = self._checkpoint(args, state)
        saved = torch.load(path, weights_only=True) if os.path.exists(path) else None
        self.site = self._join(model, state=saved)
        if saved is None and state.global_step > 0 and state.is_world_process_zero:
            log.warning("site %s: the Trainer continues at step %d, and %s is not there: the site begins from the "
                        "run's values, not the checkpoint's. Resume in the output_dir that has both", self.site._id,
                        state.global_step, path)
        self.site.look_at(optimizer)
        self._tokens_seen = state.num_input_tokens_seen
        self.site.open()
        control.should_training_stop = self.site.should_stop

    def on_step_end(self, args, state, control, **_others):
        # Tokens where the Trainer counts them (include_num_input_tokens_seen), of all processes:
        # each tells its part, and the site adds them up. Otherwise sequences.
        before, self._tokens_seen = self._tokens_seen, state.num_input_tokens_seen
        if state.num_input_tokens_seen > before:
            size, rank = args.world_size, args.process_index
            tokens = [int(state.num_input_tokens_seen - before) * part // size
                      for part in (rank, rank + 1)]
            counted = tokens[1] - tokens[0]
        else:
            batch = args.train_batch_size
            if args.auto_find_batch_size:  # A state that was resumed has the size that it was saved with.
                total = getattr(_others.get("train_dataloader"), "total_batch_size", None)
                batch = total // args.world_size if total else state.train_batch_size
            counted = batch * args.gradient_accumulation_steps
        if not self.site.step(counted):
            control.should_training_stop = True
            if args.load_best_model_at_end:
                self.site.close()  # Before that model is loaded: what is in flight would mix with it.
        if self.site.should_save and args.save_strategy != "no":
            control.should_save = True

    def on_log(self, args, state, control, logs=None, **_others):
        if self.site is not None and logs and "loss" in logs:
            self.site.report(loss=float(logs["loss"]))

    def on_save(self, args, state, control, **_others):
        saved = self.site.state_dict()
        if saved:
            path = self._checkpoint(args, state)
            torch.save(saved, path + ".new")
            os.replace(path + ".new", path)
            self.site.saved()

    def on_train_end(self, args, state, control, **_others):
        self.site.close()

    @staticmethod
    def _checkpoint(args, state) -> str:
        return os.path.join(args.output_dir, f"checkpoint-{state.global_step}", STATE_FILE)
