"""Optimizers that keep masters: refused where nobody knows them, trained and merged by masters=."""

import copy
import types

import torch
from torch import nn
import causeway
import causeway.torch as cw
from models import loss_of, small_model, values_of
from runs import ALONE, PLAIN, TWO_SITES, RunTest, beside, needs

torch.set_num_threads(1)


class Wrapper:
    """Trains fp32 masters by an optimizer of its own, as DeepSpeed and Megatron do."""

    def __init__(self, parameter):
        self.parameter, self.master = parameter, parameter.detach().float().clone()
        self.optimizer = torch.optim.SGD([self.master], lr=0.01)

    def step(self):
        self.master.grad = self.parameter.grad.float()
        self.optimizer.step()
        self.parameter.data.copy_(self.master)


class Own(torch.optim.SGD):
    """Has fp32 masters beside its state, from the beginning or from the first step on."""

    def __init__(self, parameter, lazy=False):
        super().__init__([parameter], lr=0.01)
        self.master = None if lazy else parameter.detach().float().clone()

    def step(self, closure=None):
        parameter = self.param_groups[0]["params"][0]
        if self.master is None:
            self.master = parameter.detach().float().clone()
        self.master -= 0.01 * parameter.grad.float()
        parameter.data.copy_(self.master)


class Swapped(torch.optim.SGD):
    """Puts its masters, which are in nothing that can be searched, in the parameter's place."""

    def __init__(self, parameter):
        super().__init__([parameter], lr=0.01)
        master = parameter.detach().float().clone()
        self.masters = lambda: master

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.masters().sub_(0.01 * parameter.grad)
            parameter.data = self.masters().to(parameter.dtype)
            parameter.grad = None


class Hidden:
    """Has masters where nobody sees them."""

    def __init__(self, parameter):
        master = parameter.detach().float().clone()

        def step():
            master.sub_(parameter.grad.float(), alpha=0.01)
            parameter.data.copy_(master)

        self.step = step


class Behind:
    """Puts masters in the parameter's place for a step of torch's own, as averages over steps do."""

    def __init__(self, parameter):
        master, optimizer = parameter.detach().clone(), torch.optim.SGD([parameter], lr=0.01)

        def step():
            parameter.data.copy_(master)
            optimizer.step()

        self.step = step


def bfloat16(value=1.0):
    model = nn.Linear(4, 4, bias=False).bfloat16()
    nn.init.constant_(model.weight, value)
    return model


class Lookahead(torch.optim.SGD):
    """Would go half-way back to slow copies, which it makes at its first step, every few steps."""


class MastersTest(RunTest):
    def test_an_optimizer_that_goes_back_to_slow_copies_is_refused(self):
        model = torch.nn.Linear(2, 2)
        for masters in (None, {}):
            with self.assertRaisesRegex(causeway.InvalidArgument, "Lookahead goes back to slow copies"):
                cw.join("h:1", model, Lookahead(model.parameters(), lr=0.1), id="s", masters=masters)

    def test_slow_copies_and_averages_are_known_by_their_state(self):
        for name, message in (("slow_buffer", "Other goes back to slow copies"), ("z", "Other averages over its steps")):
            class Other(torch.optim.Optimizer):
                @torch.no_grad()
                def step(self):
                    for parameter in self.param_groups[0]["params"]:
                        parameter -= 0.1 * parameter.grad
                        self.state[parameter].setdefault(name, parameter.clone())

            model = torch.nn.Linear(2, 2)
            optimizer = Other(model.parameters(), {})
            run = self.run_of(ALONE, initial=values_of(model))
            model(torch.ones(1, 2)).sum().backward()
            with self.assertRaisesRegex(causeway.Refused, message):
                with cw.join(run.address, model, optimizer, id="s") as site:
                    optimizer.step()
            self.assertEqual(site.current_step, 0)
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                cw.join("h:1", model, optimizer, id="s", masters={})

    def test_optimizers_with_masters_are_refused_when_the_site_is_made(self):
        model = bfloat16()
        for message, make in {
                "the model's weight is not in the optimizer.*masters=": Wrapper,
                "Own.master is a copy of weight.*masters=": Own}.items():
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                cw.join("h:1", model, make(model.weight), id="s")
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                cw.join("h:1", model.float(), make(model.weight), id="s")
            model.bfloat16()
            with self.assertRaisesRegex(causeway.InvalidArgument, message.split(".*")[0]):
                site = cw.join("h:1", model, None, id="s")
                site.look_at(make(model.weight))  # As the callbacks do.

    @needs("transformers", "accelerate", "lightning")
    def test_callbacks_look_at_the_optimizers(self):
        from causeway import lightning, transformers
        model = bfloat16()
        optimizer = Own(model.weight)
        arguments = types.SimpleNamespace(output_dir="/nowhere")
        state = types.SimpleNamespace(global_step=0, num_input_tokens_seen=0)
        with self.assertRaisesRegex(causeway.InvalidArgument, "Own.master is a copy of weight"):
            transformers.CausewayCallback("h:1", id="s").on_train_begin(
                arguments, state, types.SimpleNamespace(), model=model, optimizer=optimizer)
        trainer = types.SimpleNamespace(optimizers=[optimizer], global_step=0)
        with self.assertRaisesRegex(causeway.InvalidArgument, "Own.master is a copy of weight"):
            lightning.CausewayCallback("h:1", id="s").on_train_start(trainer, model)

    def test_what_libraries_do_to_parameters_is_known(self):
        """The attributes that DeepSpeed and Megatron add, and ScheduleFree's groups."""
        for message, name, value in (
                ("weight is partitioned by DeepSpeed's ZeRO 3", "ds_status", 2),
                ("DeepSpeed trains flat copies", "_hp_mapping", None),
                ("masters=lambda parameter: getattr", "main_param", torch.ones(4, 4)),
                ("distributed optimizer", "main_param_sharded", True)):
            model = bfloat16()
            setattr(model.weight, name, value)
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                cw.join("h:1", model, None, id="s")
        model = bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["weight_lr_power"] = 2
        with self.assertRaisesRegex(causeway.InvalidArgument, "SGD averages over its steps"):
            cw.join("h:1", model, optimizer, id="s")

    def test_masters_that_show_at_the_first_step_are_refused(self):
        undone = "brought weight back to what it was before"
        for name, make, dtypes, is_handed_over, message in (
                ("made by the step", lambda weight: Own(weight, lazy=True), [torch.bfloat16], True,
                 "Own.master is a copy of weight"),
                ("a join that is undone", Hidden, [torch.bfloat16], False, undone),
                ("a join that is undone by new memory", Swapped, [torch.bfloat16, torch.float32], True, undone),
                ("behind an optimizer of torch's", Behind, [torch.float32], False, undone)):
            for dtype in dtypes:
                with self.subTest(name, dtype=dtype):
                    model = bfloat16(3.0).to(dtype)
                    run = self.run_of(ALONE, initial=values_of(bfloat16(2.0)))
                    optimizer = make(model.weight)
                    with self.assertRaisesRegex(causeway.Refused, message):
                        with cw.join(run.address, model, optimizer if is_handed_over else None, id="s") as site:
                            self.assertEqual(model.weight[0, 0].item(), 2.0)
                            model.weight.grad = torch.ones_like(model.weight)
                            optimizer.step()
                            if not is_handed_over:
                                site.step()
                    self.assertEqual(site.current_step, 0)

    def test_training_that_comes_back_by_itself_has_no_masters(self):
        """Steps before the block, which began with the run's values, and then the same once more."""
        class Derived(torch.optim.SGD):
            """With a step that is torch's."""

        cases = {"momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2),
                 "exact": (lambda p: torch.optim.SGD(p, lr=0.1), 1),
                 "derived": (lambda p: Derived(p, lr=0.1), 1),
                 "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.1), 1)}
        for name, (make, steps) in cases.items():
            for handed in (True, False):
                with self.subTest(name, handed=handed):
                    run = self.run_of(ALONE, initial=values_of(bfloat16()))
                    model = bfloat16().float()
                    optimizer = make(model.parameters())

                    def step():
                        model.weight.grad = torch.ones_like(model.weight)
                        optimizer.step()

                    for _ in range(steps):
                        step()
                    before = model.weight[0, 0].item()
                    with cw.join(run.address, model, optimizer if handed else None, id="s") as site:
                        self.assertEqual(model.weight[0, 0].item(), 1)
                        step()
                        self.assertLess(abs(model.weight[0, 0].item() - before), 0.1 * abs(1 - before))
                        if not handed:
                            site.step()
                        self.assertEqual(site.current_step, 1)

    def test_who_knows_better_trains_on(self):
        model = bfloat16(3.0)
        run = self.run_of(ALONE, initial=values_of(bfloat16(2.0)))
        optimizer = Own(model.weight)
        with cw.join(run.address, model, optimizer, id="s", masters={}) as site:
            while not site.should_stop:
                model.weight.grad = torch.ones_like(model.weight)
                optimizer.step()
        self.assertTrue(site.finished)

    def two(self, train):
        """`train(name, direction)` twice, beside each other; what they raised."""
        raised = {}

        def guarded(name, direction):
            try:
                train(name, direction)
            except causeway.Error as error:
                raised[name] = error

        with beside(guarded, "a", 1):
            guarded("b", -1)
        return raised

    def test_merges_that_are_undone_are_refused(self):
        # Both begin with the run's values, so that only merges show it.
        run = self.run_of(TWO_SITES,
                          steps=400, initial=values_of(bfloat16()))
        steps = {}

        def train(name, direction):
            model = bfloat16()
            optimizer = Hidden(model.weight)
            with cw.join(run.address, model, None, id=name) as site:
                while not site.should_stop:
                    steps[name] = site.current_step
                    model.weight.grad = torch.full_like(model.weight, direction)
                    optimizer.step()
                    site.step()

        raised = self.two(train)
        self.assertTrue(raised)
        for name, error in raised.items():
            self.assertIn("brought weight back", error.message)
            self.assertLess(steps[name], 100)

    def test_masters_take_what_the_run_gives(self):
        for make, masters in ((Wrapper, lambda optimizer, weight: {"weight": optimizer.master}),
                              (Own, lambda optimizer, weight: {"weight": optimizer.master}),
                              (Own, lambda optimizer, weight:
                               lambda p: optimizer.master if p is weight else None)):
            run = self.run_of(TWO_SITES, steps=20,
                              initial=values_of(bfloat16(1.0)))
            seen, published = {}, {}

            def train(name, direction):
                model = bfloat16(3.0)
                optimizer = make(model.weight)
                site = cw.join(run.address, model, optimizer, id=name,
                               masters=masters(optimizer, model.weight))
                with site:
                    self.assertEqual(model.weight[0, 0].item(), 1.0)
                    while not site.should_stop:
                        # One goes up and one down by less than bfloat16 can show.
                        model.weight.grad = torch.full_like(model.weight, direction * 0.01)
                        optimizer.step()
                        self.assertTrue(torch.equal(model.weight, optimizer.master.bfloat16()))
                        seen[name, site.current_step] = optimizer.master[0, 0].item()
                mine = optimizer.master.clone(), model.weight.detach().clone()
                with site.published():
                    published[name] = optimizer.master[0, 0].item()
                    self.assertTrue(torch.equal(model.weight, optimizer.master.bfloat16()))
                self.assertTrue(torch.equal(optimizer.master, mine[0]))
                self.assertTrue(torch.equal(model.weight, mine[1]))

            self.assertEqual(self.two(train), {})
            run.finish()
            self.assertAlmostEqual(seen["a", 3], 1 - 3e-4, places=6)
            self.assertAlmostEqual(seen["b", 3], 1 + 3e-4, places=6)
            # Every fifth step brings both to the mean.
            for step in (5, 10, 15, 20):
                self.assertAlmostEqual(seen["a", step], 1, places=6)
                self.assertEqual(seen["a", step], seen["b", step])
            self.assertEqual(published["a"], published["b"])

    def test_masters_train_like_fp32(self):
        start = small_model().bfloat16()
        reference = small_model().bfloat16().float()
        run = self.run_of(PLAIN, steps=12, initial=values_of(start))
        model = copy.deepcopy(start)
        masters = {name: p.detach().float().clone() for name, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(masters.values(), lr=1e-2)
        plain = torch.optim.AdamW(reference.parameters(), lr=1e-2)
        with cw.join(run.address, model, optimizer, id="s", masters=masters) as site:
            while not site.should_stop:
                loss_of(model, site.current_step).backward()
                for (name, p), other in zip(model.named_parameters(), reference.parameters()):
                    masters[name].grad = p.grad.float()
                    other.grad = p.grad.float()
                optimizer.step()
                plain.step()
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        p.copy_(masters[name])
                        p.grad = None
        run.finish()
        for master, other in zip(masters.values(), reference.parameters()):
            self.assertTrue(torch.equal(master, other))

    def test_masters_that_are_none_are_named(self):
        model = bfloat16()
        for message, masters in {
                "masters names 'other'": {"other": torch.ones(4, 4)},
                r"must be torch.float32 of \(4, 4\).*torch.float32 of \(4,\)":
                    {"weight": torch.ones(4)},
                "it is torch.bfloat16": {"weight": torch.ones(4, 4).bfloat16()},
                "it is str": lambda parameter: "weight"}.items():
            with self.assertRaisesRegex(causeway.InvalidArgument, message):
                cw.join("h:1", model, None, id="s", masters=masters)

    def test_a_function_that_raises_is_named_with_the_parameter(self):
        def fail(_):
            raise KeyError("w")

        for argument in ("masters", "rename"):
            with self.assertRaisesRegex(causeway.InvalidArgument,
                                        f"{argument} raised KeyError for the parameter 'weight'") as caught:
                cw.join("h:1", bfloat16(), None, id="s", **{argument: fail})
            self.assertIsInstance(caught.exception.__cause__, KeyError)
