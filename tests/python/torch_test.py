"""Sites of PyTorch models in one process: bits, kinds of training, checkpoints."""

import copy
import gc
import io
import logging
import pathlib
import tempfile
import types
import weakref

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import causeway
import causeway.torch as cw
from models import equal, loss_of, small_model, step_once, tokens, train, values_of
from runs import PLAIN, STREAMING, Run, RunTest, beside

torch.set_num_threads(1)
OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def expected(model, make, steps):
    """Plain training of a copy."""
    plain = copy.deepcopy(model)
    optimizer = make(plain.parameters())
    for step in range(steps):
        step_once(plain, optimizer, step)
    return plain


class TorchTest(RunTest):
    def run_of(self, settings, model, steps=20):
        return super().run_of(settings, steps=steps, initial=values_of(model))

    def joins(self, settings=PLAIN, steps=20, model=None, make="SGD", **more):
        """A run of a model's values, the model, its optimizer, and a site that is to join by them."""
        model = model or small_model()
        run = self.run_of(settings, model, steps)
        optimizer = OPTIMIZERS[make](p for p in model.parameters() if p.requires_grad)
        return run, model, optimizer, cw.join(run.address, model, optimizer, id="s", **more)

    def test_alone_it_is_plain_training_bit_for_bit(self):
        for name, make in OPTIMIZERS.items():
            with self.subTest(name):
                start = small_model()
                run = self.run_of(PLAIN, start)
                model = small_model(seed=9)  # Replaced by the run's.
                before = [p.data_ptr() for p in model.parameters()]
                optimizer = make(model.parameters())
                train(cw.join(run.address, model, optimizer, id="s"), model, optimizer)
                run.finish()
                self.assertTrue(equal(model, expected(start, make, 20)))
                self.assertEqual([p.data_ptr() for p in model.parameters()], before)

    def test_the_model_brings_its_values(self):
        model, make = small_model(), OPTIMIZERS["AdamW"]
        run = super().run_of(PLAIN, steps=8)
        plain = expected(model, make, 8)
        optimizer = make(model.parameters())
        train(cw.join(run.address, model, optimizer, id="s"), model, optimizer)
        run.finish()
        self.assertTrue(equal(model, plain))

    def test_a_merge_does_not_vanish_in_bfloat16(self):
        # One weight of 1 in the run's values; steps are too small for bfloat16 to see them, but
        # what merges bring adds up.
        model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
        with torch.no_grad():
            model.weight.fill_(1)
        run = self.run_of("""
            sync { steps_between_syncs: 1 mixing: 0.5 } outer { learning_rate: 1 momentum: 0 }
            membership { start_workers: 2 }""", model, steps=40)
        near, far = copy.deepcopy(model), copy.deepcopy(model).float()
        def move_far():
            with cw.join(run.address, far, None, id="far", rename=lambda name: name) as site:
                while not site.should_stop:
                    with torch.no_grad():
                        far.weight.sub_(2e-4)
                    site.step()

        with beside(move_far), cw.join(run.address, near, None, id="near") as site:
            while not site.should_stop:
                site.step()
        run.finish()
        # Half of 40 * 2e-4 * what both weigh; a unit of bfloat16 below 1 is 0.0039.
        self.assertLess(near.weight.max().item(), 1 - 2e-3)

    def test_published_values_are_lent(self):
        _, model, optimizer, site = self.joins(STREAMING, make="AdamW")
        with site:
            while site.current_step < 11:
                step_once(model, optimizer, site.current_step)
            local = copy.deepcopy(model)
            with self.assertRaisesRegex(ValueError, "evaluation failed"):
                with site.published():
                    self.assertFalse(equal(model, local))
                    for call in (site.step, site.state_dict):
                        with self.assertRaisesRegex(causeway.InvalidArgument, "inside published"):
                            call()
                    raise ValueError("evaluation failed")
            self.assertTrue(equal(model, local))

    def test_a_model_that_moved_while_it_was_lent_has_its_own_values_again(self):
        for dtype, other in ((torch.bfloat16, torch.float32), (torch.float32, torch.float64)):
            _, model, optimizer, site = self.joins(STREAMING, model=small_model(dtype), make="AdamW")
            with site:
                while site.current_step < 7:
                    step_once(model, optimizer, site.current_step)
                local = copy.deepcopy(model)
                with site.published():
                    model.to(other).to(dtype)  # Its tensors have other memory now, as after cpu() and cuda().
                    self.assertFalse(equal(model, local))
                self.assertTrue(equal(model, local), dtype)
                step_once(model, optimizer, site.current_step)

    def test_frozen_parameters_and_ties(self):
        model = small_model()
        model.norm.requires_grad_(False)
        frozen = model.norm.weight.clone()
        _, _, optimizer, site = self.joins(steps=4, model=model)
        train(site, model, optimizer)
        self.assertEqual(site.info.parameters, sum(p.numel() for p in model.parameters() if p.requires_grad))
        self.assertIs(model.head.weight, model.embed.weight)
        self.assertTrue(torch.equal(model.norm.weight, frozen))

    def test_ties_by_storage_count_once(self):
        first = nn.Linear(4, 4, bias=False)
        second = nn.Linear(4, 4, bias=False)
        second.weight.data = first.weight.data
        names = [entry.name for entry in
                 cw.trained_tensors(nn.ModuleDict({"a": first, "b": second}))]
        self.assertEqual(names, ["a.weight"])
        second.weight.data = first.weight.data[1:]
        with self.assertRaisesRegex(causeway.InvalidArgument, "share some memory"):
            cw.trained_tensors(nn.ModuleDict({"a": first, "b": second}))

    def test_what_cannot_be_trained_is_named(self):
        cases = {
            "no parameter that requires": nn.Linear(2, 2).requires_grad_(False),
            "meta device": nn.Linear(2, 2, device="meta"),
            "weight is of torch.float64": nn.Linear(2, 2).double(),
            "w is torch.sparse_coo": {"w": torch.zeros(2, 2).to_sparse()},
            "w has several elements in the same memory": {"w": torch.zeros(1).expand(5)},
        }
        for message, model in cases.items():
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                cw.join("h:1", model, None, id="s")
        steps = types.SimpleNamespace(step=lambda: None)
        with self.assertRaisesRegex(causeway.InvalidArgument, "without hooks.*call site.step"):
            cw.join("h:1", nn.Linear(2, 2), steps, id="s")

    def test_buffers_are_synchronized_when_asked_for(self):
        model = nn.BatchNorm1d(4)
        names = [entry.name for entry in cw.trained_tensors(model, buffers=True)]
        self.assertEqual(names, ["weight", "bias", "running_mean", "running_var"])
        with self.assertRaisesRegex(causeway.InvalidArgument, "'running'"):
            cw.trained_tensors(model, buffers=["running"])

    def test_several_optimizers_make_one_step(self):
        model = small_model()
        run = self.run_of(PLAIN, model, steps=6)
        matrices = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        optimizers = [torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(others, lr=1e-2)]
        done = 0
        with cw.join(run.address, model, optimizers, id="s") as site:
            while not site.should_stop:
                loss_of(model, done).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                done += 1
                self.assertEqual(site.current_step, done)
        self.assertEqual(done, 6)

    def test_an_exception_between_two_optimizers_steps_costs_a_step(self):
        model = small_model()
        run = self.run_of(PLAIN, model, steps=6)
        optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()][:2]
        found = []
        with cw.join(run.address, model, optimizers, id="s") as site:
            while not site.should_stop:
                try:
                    loss_of(model, site.current_step).backward()
                    optimizers[0].step()
                    if len(found) == 2:
                        raise MemoryError("of the device")
                    optimizers[1].step()
                except (MemoryError, causeway.InvalidArgument) as error:
                    found.append(str(error))
                else:
                    found.append(site.current_step)
        self.assertEqual(found[:3] + found[4:], [1, 2, "of the device", 3, 4, 5, 6])
        self.assertIn("this step does not count, and the next one of each does", found[3])
        run.finish()

    def test_steps_that_a_scaler_skips_count(self):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
        run, model, optimizer, site = self.joins(steps=6, scaler=scaler)
        scales = []
        with site:
            for step in range(6):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model, step)
                scaler.scale(loss * (float("inf") if step == 2 else 1)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
                self.assertEqual(site.current_step, step + 1)
            self.assertTrue(site.finished)
        self.assertLess(scales[2], scales[1])
        self.assertNotIn("update", vars(scaler))
        run.finish()

    def test_gradient_accumulation_counts_the_optimizers_steps(self):
        run, model, optimizer, site = self.joins(steps=5)
        with site:
            for step in range(5):
                for part in range(3):
                    loss_of(model, 3 * step + part).backward()
                    site.add(tokens(0).numel())
                optimizer.step()
                optimizer.zero_grad()
                self.assertEqual(site.current_step, step + 1)
        self.assertEqual(run.finish()["tokens"], 5 * 3 * tokens(0).numel())

    def test_a_compiled_model_goes_on(self):
        start, make = small_model(), OPTIMIZERS["AdamW"]
        run = self.run_of(PLAIN, start, steps=8)
        model = small_model(seed=4)
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = make(model.parameters())
        torch._dynamo.utils.counters.clear()
        train(cw.join(run.address, compiled, optimizer, id="s"), compiled, optimizer)
        self.assertEqual(torch._dynamo.utils.counters["stats"]["unique_graphs"], 1)
        plain = expected(start, make, 8)
        for one, other in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(one, other)

    def test_a_data_loader_with_processes(self):
        run, model, optimizer, site = self.joins(steps=12, make="AdamW")
        data = torch.utils.data.TensorDataset(tokens(0, (400, 6)))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2,
                                             multiprocessing_context="fork")
        with site:
            # The workers are forked while the library's threads are at work.
            for batch, in loader:
                logits = model(batch[:, :-1])
                nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
                if site.should_stop:
                    break
            self.assertTrue(site.finished)
        run.finish()

    def test_what_would_count_a_step_twice_or_never_is_refused(self):
        def besides(model, optimizer, site):
            step_once(model, optimizer, 0)
            site.step(100)

        def one_of_two(model, optimizer, site):
            for step in range(2):
                step_once(model, optimizer[1], step)

        def without_update(model, optimizer, site):
            for step in range(2):
                step_once(model, optimizer, step)

        scaler = torch.amp.GradScaler("cpu")
        cases = (
            (besides, OPTIMIZERS["SGD"], None, "would count this step twice: .* its? ?.*optimizer"),
            (besides, OPTIMIZERS["SGD"], scaler, "would count this step twice: .*scaler"),
            (one_of_two, lambda p: [torch.optim.SGD(p, lr=0.1), torch.optim.AdamW(p, lr=1e-2)],
             None, r"optimizer 1 \(AdamW\) has stepped twice, and optimizer 0 \(SGD\) not"),
            (without_update, OPTIMIZERS["SGD"], scaler, r"without scaler.update\(\)"),
        )
        for takes_steps, make, scaler, message in cases:
            with self.subTest(message):
                model = small_model()
                run = self.run_of(PLAIN, model)
                optimizer = make(list(model.parameters()))
                with self.assertRaisesRegex(causeway.InvalidArgument, message):
                    with cw.join(run.address, model, optimizer, id="s", scaler=scaler) as site:
                        takes_steps(model, optimizer, site)
                self.assertLessEqual(site.current_step, 1)

    def test_a_step_that_calls_that_of_its_base_counts_once(self):
        class Twice(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                with torch.no_grad():
                    for parameter in self.param_groups[0]["params"]:
                        parameter.clamp_(-0.5, 0.5)

        start = small_model()
        torch.optim.SGD(start.parameters(), lr=0.1)  # From now on torch calls the hooks for the base's step, too.
        make = lambda parameters: Twice(parameters, lr=0.1, momentum=0.9)  # noqa: E731
        halves = lambda model: [make(list(model.parameters())[:2]), make(list(model.parameters())[2:])]  # noqa: E731
        for name, scaler, several in (("one", None, False), ("two", None, True),
                                      ("scaled", torch.amp.GradScaler("cpu", init_scale=2.0 ** 8), False)):
            with self.subTest(name):
                run = self.run_of(PLAIN, start, steps=6)
                model, plain = small_model(seed=3), copy.deepcopy(start)
                optimizers = [halves(one) if several else [make(one.parameters())] for one in (model, plain)]
                with cw.join(run.address, model, optimizers[0], id="s", scaler=scaler) as site:
                    for step in range(6):
                        for one, own in zip((model, plain), optimizers):
                            loss = loss_of(one, step)
                            (loss if one is plain or scaler is None else scaler.scale(loss)).backward()
                            for optimizer in own:
                                optimizer.step() if one is plain or scaler is None else scaler.step(optimizer)
                            if one is model and scaler is not None:
                                scaler.update()
                            for optimizer in own:
                                optimizer.zero_grad()
                        self.assertEqual(site.current_step, step + 1)
                    self.assertTrue(site.finished)
                run.finish()
                self.assertTrue(equal(model, plain))

    def test_another_optimizer_whose_step_calls_that_of_its_base_steps_once(self):
        class Twice(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        run, model, optimizer, site = self.joins(steps=4)
        other = Twice(model.parameters(), lr=0.01)
        with site:
            while not site.should_stop:
                loss_of(model, site.current_step).backward()
                other.step()
                optimizer.step()
                optimizer.zero_grad()
        self.assertTrue(site.finished)
        run.finish()

    def test_one_that_has_not_joined_says_so_at_the_optimizers_first_step(self):
        model = small_model()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        site = cw.join("127.0.0.1:9", model, optimizer, id="paris")
        with self.assertLogs("causeway", logging.WARNING) as logs:
            for step in range(3):
                step_once(model, optimizer, step)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("site paris has not joined its run, and its optimizer steps", logs.output[0])
        site = cw.join("127.0.0.1:9", model, optimizer, id="berlin")
        with self.assertLogs("causeway", logging.WARNING) as logs:
            del site
            gc.collect()
        self.assertIn("site berlin never joined its run", logs.output[0])
        with self.assertNoLogs("causeway", logging.WARNING):
            step_once(model, optimizer, 3)

    def test_steps_before_it_joins_leave_those_after_followed(self):
        run, model, optimizer, site = self.joins(steps=6)
        step_once(model, optimizer, 0)
        taken = 0
        with site:
            while not site.should_stop and taken < 20:
                step_once(model, optimizer, taken)
                taken += 1
        self.assertEqual((taken, site.current_step, site.finished), (6, 6, True))
        run.finish()

    def test_a_site_that_nobody_keeps_goes_on_once_it_has_joined(self):
        run, model, optimizer, site = self.joins(steps=6)
        site.open()
        kept = weakref.ref(site)
        del site
        gc.collect()
        for step in range(6):
            step_once(model, optimizer, step)
        self.assertTrue(kept().finished)
        kept().close()
        run.finish()

    def test_arguments_of_pytorch_are_checked_and_named(self):
        model = nn.Linear(2, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        wrong = {
            "model": (5, [model], {"w": 1}, {1: model.weight}),
            "optimizer": ("adam", 5, [object()], [], {}, [sgd, sgd]),
            "scaler": (1, "cpu"),
            "group": (1,),
            "buffers": ("running_mean", 5, [5], torch.tensor(1.0)),
            "rename": ("x", lambda name: 3, lambda name: ""),
            "masters": (5, b"x", [1], "", object(), torch.ones(3)),
            "state": (5, {"state": object()}),
            "values": (5, "gpu", None, torch.ones(2)),
            "metrics": (9100, ""),
            "team": (1,),
        }
        for name, cases in wrong.items():
            for value in cases:
                with self.subTest(name=name, value=value):
                    given = {"model": model, "optimizer": None, name: value}
                    with self.assertRaisesRegex(causeway.InvalidArgument, name):
                        cw.join("h:1", given.pop("model"), given.pop("optimizer"), id="s", **given)
        with self.assertRaisesRegex(causeway.InvalidArgument, ": optimizer must be a torch.optim.Optimizer, a list of "
                                    r"them, or None; it is 5 \(int\)$"):
            cw.join("h:1", model, 5, id="s")
        for name, call in {
                "optimizer": lambda: cw.join("h:1", model, id="s").look_at(5),
                "model": lambda: cw.trained_tensors(5),
                "buffers": lambda: cw.trained_tensors({"w": model.weight}, buffers=["b"]),
                "masters": lambda: cw.trained_tensors(model, masters={1: model.weight, "b": 2}),
        }.items():
            with self.subTest(name=name):
                with self.assertRaisesRegex(causeway.InvalidArgument, name):
                    call()

    def test_a_nan_is_named(self):
        _, model, optimizer, site = self.joins()
        with self.assertRaisesRegex(causeway.NotFinite, "is not finite"):
            with site:
                while not site.should_stop:
                    with torch.no_grad():
                        model.norm.bias[1] = float("nan")
                    step_once(model, optimizer, site.current_step)
        self.assertFalse(optimizer._optimizer_step_post_hooks)

    def test_a_stateful_of_distributed_checkpoint(self):
        model, make = small_model(), OPTIMIZERS["AdamW"]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "saved"
            sent = []
            for resume in (False, True):
                run = self.run_of(STREAMING, model)
                mine = copy.deepcopy(model)
                optimizer = make(mine.parameters())
                with cw.join(run.address, mine, optimizer, id="s") as site:
                    while not site.should_stop:
                        if site.current_step == 9 and resume:
                            dcp.save({"causeway": site}, checkpoint_id=path)
                            saved = copy.deepcopy((mine.state_dict(), optimizer.state_dict()))
                            site.saved()
                            site.drain()
                            break
                        step_once(mine, optimizer, site.current_step)
                if resume:
                    again = make(mine.parameters())
                    site = cw.join(run.address, mine, again, id="s")
                    dcp.load({"causeway": site}, checkpoint_id=path)
                    mine.load_state_dict(saved[0])
                    again.load_state_dict(saved[1])
                    with site:
                        self.assertTrue(site.info.restored)
                        while not site.should_stop:
                            step_once(mine, again, site.current_step)
                run.finish()
                sent.append(run.published_hashes())
            self.assertEqual(sent[1], sent[0])

    def test_torchs_own_defaults_of_type_and_device_change_nothing(self):
        model, make = small_model(torch.bfloat16), OPTIMIZERS["SGD"]
        plain = expected(model, make, 12)
        self.addCleanup(torch.set_default_device, None)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        optimizer = make(model.parameters())
        with Run().serving(PLAIN, steps=12) as run:
            state = None
            torch.set_default_dtype(torch.bfloat16)
            for end in (8, 12):
                torch.set_default_device("meta")  # As "cuda": none of the host's.
                site = cw.join(run.address, model, optimizer, id="s", state=state)
                torch.set_default_device(None)
                with site:
                    self.assertEqual(site.info.restored, end == 12)
                    while site.current_step < end:
                        step_once(model, optimizer, site.current_step)
                    state = site.state_dict()
                    site.saved()
            run.finish()
        self.assertTrue(equal(model, plain))

    def test_state_must_come_before_joining(self):
        model = small_model()
        run = self.run_of(PLAIN, model)
        with cw.join(run.address, model, None, id="s") as site:
            stream = io.BytesIO()
            torch.save(site.state_dict(), stream)
            stream.seek(0)
            with self.assertRaisesRegex(causeway.InvalidArgument, "before the site joins"):
                site.load_state_dict(torch.load(stream, weights_only=True))
