"""The callbacks for a Hugging Face Trainer and for Lightning, with LoRA by peft."""

import gc
import logging
import pathlib
import pickle
import types

import torch

import causeway
import causeway.torch as cw
from models import loss_of, small_model, tokens, values_of
from runs import PLAIN, STREAMING, Run, RunTest, needs

torch.set_num_threads(1)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        line = tokens(index, (16,))
        return {"input_ids": line, "labels": line}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32))


@needs("transformers", "accelerate")
class TransformersTest(RunTest):
    @classmethod
    def setUpClass(cls):
        from causeway.transformers import CausewayCallback
        cls.callback = CausewayCallback

    def trainer(self, model, folder, *callbacks, **more):
        from transformers import Trainer, TrainingArguments
        return Trainer(
            model, TrainingArguments(
                output_dir=str(folder), per_device_train_batch_size=2,
                gradient_accumulation_steps=2, learning_rate=1e-2, report_to=[], use_cpu=True,
                disable_tqdm=True, logging_steps=5, dataloader_num_workers=0,
                lr_scheduler_type="constant", **{"max_steps": 100, **more}),
            train_dataset=Texts(), eval_dataset=Texts(), callbacks=list(callbacks))

    def test_the_run_ends_the_training_and_checkpoints_continue_it(self):
        sent = []
        for resume in (False, True):
            with Run().serving(STREAMING, steps=12, initial=values_of(llama())) as run:
                model = llama()
                if resume:
                    from transformers import TrainerCallback

                    class EndsAfterSaving(TrainerCallback):
                        def on_step_end(self, args, state, control, **_others):
                            if state.global_step == 8:
                                raise KeyboardInterrupt

                    with self.assertRaises(KeyboardInterrupt):
                        with self.callback(run.address, id="s") as callback:
                            self.trainer(model, run.folder, callback, EndsAfterSaving(),
                                         save_steps=7).train()
                    model = llama()
                with self.callback(run.address, id="s") as callback:
                    trainer = self.trainer(model, run.folder, callback, save_steps=7)
                    result = trainer.train(resume_from_checkpoint=resume)
                self.assertEqual(result.global_step, 12)
                self.assertTrue(callback.site.finished)
                self.assertEqual(callback.site.info.restored, resume)
                run.finish()
                sent.append(run.published_hashes())
        self.assertEqual(sent[1], sent[0])

    def test_a_checkpoint_without_the_sites_state_is_mentioned(self):
        with Run().serving(PLAIN, steps=8, initial=values_of(llama())) as run:
            elsewhere = run.folder / "elsewhere"
            self.trainer(llama(), run.folder, save_steps=3, max_steps=3).train()
            with self.callback(run.address, id="s") as callback, self.assertLogs("causeway", "WARNING") as logs:
                self.trainer(llama(), elsewhere, callback, save_strategy="no").train(f"{run.folder}/checkpoint-3")
            self.assertIn(f"site s: the Trainer continues at step 3, and {elsewhere}", logs.output[0])
            self.assertTrue(callback.site.finished)
            run.finish()

    def test_a_callback_that_no_trainer_has_says_so(self):
        with self.assertLogs("causeway", logging.WARNING) as logs:
            with self.callback("h:1", id="paris"):
                pass
            self.callback("h:1", id="berlin")
            gc.collect()
        self.assertEqual([line.split(": ", 1)[0].split(":")[-1] for line in logs.output],
                         ["site paris never joined its run", "site berlin never joined its run"])
        self.assertIn("callbacks=[...]", logs.output[0])
        with self.assertNoLogs("causeway", logging.WARNING):
            with self.assertRaisesRegex(ValueError, "before it trained"):
                with self.callback("h:1", id="rome") as kept:
                    raise ValueError("before it trained")
        kept._unused.detach()

    def test_a_training_that_begins_anew_with_smaller_batches_joins_anew(self):
        from transformers import TrainerCallback

        class OutOfMemoryOnce(TrainerCallback):
            steps = []

            def on_step_begin(self, args, state, control, **_others):
                self.steps.append(state.global_step)
                if len(self.steps) == 4:
                    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

        with Run().serving(PLAIN, steps=12, initial=values_of(llama())) as run:
            with self.callback(run.address, id="s") as callback:
                with self.says("site s: its training begins anew", None):
                    result = self.trainer(llama(), run.folder, callback, OutOfMemoryOnce(), save_strategy="no",
                                          auto_find_batch_size=True).train()
            self.assertEqual(OutOfMemoryOnce.steps[:5], [0, 1, 2, 3, 0])
            self.assertTrue(callback.site.finished)
            self.assertEqual(result.global_step, len(OutOfMemoryOnce.steps) - 4)
            run.finish()
            ways = [event["reason"] for event in run.events() if event["event"] == "worker_left"]
            self.assertEqual(ways, ["drained", "finished"])

    def test_the_best_model_that_is_loaded_at_the_end_is_that_of_its_checkpoint(self):
        from safetensors.torch import load_file
        with Run().serving(STREAMING, steps=12, initial=values_of(llama())) as run:
            model = llama()
            with self.callback(run.address, id="s") as callback:
                trainer = self.trainer(model, run.folder, callback, save_steps=5, eval_strategy="steps", eval_steps=5,
                                       load_best_model_at_end=True)
                trainer.train()
            self.assertTrue(callback.site.finished)
            run.finish()
            best = load_file(pathlib.Path(trainer.state.best_model_checkpoint) / "model.safetensors")
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, best[name]), name)

    def test_tokens_of_several_processes_count_once(self):
        counted = []
        site = types.SimpleNamespace(step=lambda tokens: counted.append(tokens) or True,
                                     should_save=False)
        # The Trainer's figure is that of all processes, in each of them.
        for rank in range(3):
            callback = self.callback("h:1", id="s")
            callback.site = site
            arguments = types.SimpleNamespace(
                world_size=3, process_index=rank, train_batch_size=4,
                gradient_accumulation_steps=2, save_strategy="no", auto_find_batch_size=False)
            for seen in (1000, 1000, 1704):
                callback.on_step_end(arguments,
                                     types.SimpleNamespace(num_input_tokens_seen=seen), None)
        first, unknown, last = counted[0::3], counted[1::3], counted[2::3]
        self.assertEqual((sum(first), sum(last)), (1000, 704))
        self.assertEqual(unknown, [8, 8, 8])  # Sequences.
        arguments.auto_find_batch_size = True
        resumed = types.SimpleNamespace(num_input_tokens_seen=seen, train_batch_size=8)  # As it was saved.
        callback.on_step_end(arguments, resumed, None, train_dataloader=types.SimpleNamespace(total_batch_size=6))
        self.assertEqual(counted[-1], 4)

    @needs("peft")
    def test_only_what_lora_adds_is_synchronized(self):
        from peft import LoraConfig, get_peft_model
        torch.manual_seed(0)
        model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        base = {name: parameter.clone() for name, parameter in model.named_parameters()
                if not parameter.requires_grad}
        with Run().serving(PLAIN, steps=6, initial=values_of(model)) as run:
            with self.callback(run.address, id="s") as callback:
                self.trainer(model, run.folder, callback, save_strategy="no").train()
            self.assertEqual(callback.site.info.parameters, 2 * 2 * 2 * (16 * 2))
            self.assertIn("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
                          [entry.name for entry in cw.trained_tensors(model)])
            run.finish()
        for name, parameter in model.named_parameters():
            if name in base:
                self.assertTrue(torch.equal(parameter, base[name]), name)


@needs("lightning")
class LightningTest(RunTest):
    @classmethod
    def setUpClass(cls):
        from causeway.lightning import CausewayCallback
        cls.callback = CausewayCallback

    def module(self, steps=None):
        """`steps`: what a batch does by hand with its optimizers, of matrices and of the rest."""
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = small_model()
                self.automatic_optimization = steps is None
                self.losses = 0

            def training_step(self, batch, index):
                # Where the loader is after a resumption is Lightning's matter.
                if steps is None:
                    return loss_of(self.model, self.trainer.global_step)
                steps(self, index)

            def backward_once(self):
                self.zero_grad()
                loss_of(self.model, self.losses).backward()
                self.losses += 1

            def configure_optimizers(self):
                if steps is None:
                    return torch.optim.AdamW(self.parameters(), lr=1e-2)
                return [torch.optim.SGD([p for p in self.parameters() if p.ndim == 2], lr=0.1),
                        torch.optim.AdamW([p for p in self.parameters() if p.ndim != 2], lr=1e-2)]

        return Module()

    def fit(self, run, module, *callbacks, path=None, **more):
        import lightning
        data = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.stack([tokens(i, (6,)) for i in range(200)])),
            batch_size=2)
        callback = self.callback(run.address, id="s", rename=lambda name: name[len("model."):])
        trainer = lightning.Trainer(
            callbacks=[callback, *callbacks], max_epochs=-1,
            accumulate_grad_batches=2 if module.automatic_optimization else 1,
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=str(run.folder), **more)
        trainer.fit(module, data, ckpt_path=path)
        return callback, trainer

    def test_the_run_ends_the_training(self):
        with Run().serving(PLAIN, steps=10, initial=values_of(small_model())) as run:
            callback, trainer = self.fit(run, self.module())
            self.assertEqual(trainer.global_step, 10)
            self.assertTrue(callback.site.finished)
            run.finish()

    def test_lightning_may_train_on_when_the_run_has_ended(self):
        with Run().serving(STREAMING, steps=10, initial=values_of(small_model())) as run:
            with self.assertLogs("causeway", logging.WARNING) as logs:
                callback, trainer = self.fit(run, self.module(), min_steps=15, limit_train_batches=24)
            self.assertEqual(trainer.global_step, 15)
            self.assertTrue(callback.site.finished)
            self.assertEqual([line for line in logs.output if "Lightning trains on (min_steps" not in line], [])
            self.assertEqual(run.left("s")["reason"], "finished")
            run.finish()

    def test_processes_that_lightning_spawns_have_the_callback(self):
        with self.assertNoLogs("causeway", logging.WARNING):
            callback = pickle.loads(pickle.dumps(self.callback("h:1", id="s")))
            gc.collect()
        with self.assertRaisesRegex(causeway.InvalidArgument, "model must be a torch.nn.Module"):
            callback.on_train_start(None, None)

    def test_with_accumulated_gradients_a_step_is_one_of_the_optimizer(self):
        made = []
        with Run().serving(PLAIN, steps=10, initial=values_of(small_model())) as run:
            module = self.module()
            module.optimizer_step = lambda _epoch, batch, optimizer, closure: (
                made.append(batch), optimizer.step(closure))
            _, trainer = self.fit(run, module)
            self.assertEqual(made, list(range(1, 20, 2)))
            self.assertEqual(trainer.fit_loop.total_batch_idx, 19)
            self.assertEqual(run.finish()["tokens"], 10)

    def test_by_hand_a_step_is_one_of_each_optimizer(self):
        def together(module, _index):
            module.backward_once()
            for optimizer in module.optimizers():
                optimizer.step()

        def in_turn(module, index):
            module.backward_once()
            module.optimizers()[index % 2].step()

        def without_lightning(module, _index):
            module.backward_once()
            for optimizer in module.optimizers(use_pl_optimizer=False):
                optimizer.step()

        for steps, batches in ((together, 6), (in_turn, 12), (without_lightning, 6)):
            with self.subTest(steps.__name__), Run().serving(PLAIN, steps=6, initial=values_of(small_model())) as run:
                module = self.module(steps)
                callback, trainer = self.fit(run, module)
                self.assertEqual(module.losses, batches)
                self.assertTrue(callback.site.finished)
                self.assertEqual(run.finish()["tokens"], 6)
                self.assertFalse(any(optimizer._optimizer_step_post_hooks
                                     for optimizer in trainer.optimizers))

    def test_optimizers_that_do_not_step_once_each_are_refused(self):
        def twice_in_a_batch(module, _index):
            for _ in range(2):
                module.backward_once()
                module.optimizers()[1].step()

        def one_of_two(module, _index):
            module.backward_once()
            module.optimizers(use_pl_optimizer=False)[0].step()

        for steps, name in ((twice_in_a_batch, "AdamW"), (one_of_two, "SGD")):
            with self.subTest(steps.__name__), Run().serving(PLAIN, steps=6, initial=values_of(small_model())) as run:
                with self.assertRaisesRegex(causeway.InvalidArgument,
                                            f"{name} steps twice for one step of the site"):
                    self.fit(run, self.module(steps))
                run.wait_for_event("worker_left", worker="s")

    def test_checkpoints_continue_it(self):
        import lightning
        sent = []
        for resume in (False, True):
            with Run().serving(STREAMING, steps=12, initial=values_of(small_model())) as run:
                module, path = self.module(), None
                if resume:
                    path = run.folder / "saved.ckpt"

                    class Ends(lightning.Callback):
                        def on_train_batch_start(self, trainer, *_others):
                            if trainer.global_step == 7:
                                trainer.save_checkpoint(path)
                                raise ValueError("enough")

                    with self.assertRaisesRegex(ValueError, "enough"):
                        self.fit(run, module, Ends())
                    module = self.module()
                callback, _ = self.fit(run, module, path=path)
                self.assertEqual(callback.site.info.restored, resume)
                run.finish()
                sent.append(run.published_hashes())
        self.assertEqual(sent[1], sent[0])

    def test_a_callback_that_no_trainer_has_says_so(self):
        with self.assertLogs("causeway", logging.WARNING) as logs:
            self.callback("h:1", id="berlin")
            gc.collect()
        self.assertIn("site berlin never joined its run: give its callback to the Trainer", logs.output[0])

    def test_a_fit_after_one_that_told_of_no_end_joins_anew(self):
        model = small_model()
        trainer = types.SimpleNamespace(optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)], should_stop=False)
        with Run().serving(PLAIN, initial=values_of(model)) as run:
            callback = self.callback(run.address, id="s")
            callback.on_train_start(trainer, model)
            first = callback.site
            with self.assertLogs("causeway", logging.WARNING) as logs:
                callback.on_train_start(trainer, model)
            self.assertIn("site s: its training begins anew", logs.output[0])
            self.assertTrue(first.should_stop)
            self.assertFalse(callback.site.should_stop)
            self.assertEqual(len(trainer.optimizers[0]._optimizer_step_post_hooks), 1)
            self.assertTrue(callback.site.step())
            callback.on_train_end(trainer, model)
            self.assertEqual(run.left("s")["reason"], "drained")

    def test_a_step_that_calls_that_of_its_base_counts_once(self):
        class Twice(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        torch.optim.SGD(small_model().parameters(), lr=0.1)  # From now on torch calls the hooks for the base's step, too.
        with Run().serving(PLAIN, steps=6, initial=values_of(small_model())) as run:
            module = self.module()
            module.configure_optimizers = lambda: Twice(module.parameters(), lr=0.1)
            callback, _ = self.fit(run, module)
            self.assertTrue(callback.site.finished)
            self.assertEqual(run.finish()["tokens"], 6)

    def test_an_exception_reaches_the_coordinator(self):
        with Run().serving(PLAIN, initial=values_of(small_model())) as run:
            module = self.module()
            def fails(_outputs, _batch, index):
                if index == 5:
                    raise ValueError("the data ended")

            module.on_train_batch_end = fails
            with self.assertRaisesRegex(ValueError, "the data ended"):
                self.fit(run, module)
            self.assertIn("ValueError: the data ended", str(run.left("s")))
