"""What a site trains: its names, changes of it that are refused, FSDP2 in one process."""

import copy
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
import causeway
import causeway.torch as cw
from causeway.torch._group import Solo
from models import loss_of, small_model, step_once, values_of
from runs import ALONE, PLAIN, Run, RunTest, needs

torch.set_num_threads(1)
NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


class InOneProcess(unittest.TestCase):
    """With torch.distributed, in a group of one."""

    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()


class ReplicasTest(InOneProcess):
    def test_replicas_in_other_processes_than_the_sites_are_refused(self):
        model = nn.parallel.DistributedDataParallel(two_layers())
        cw.join("h:1", model, id="s").drain()
        other = dist.new_group([0])
        cw.join("h:1", model, id="s", group=other).drain()  # The same processes.
        ranks = {id(other): [0], id(model.process_group): [0, 1]}
        with mock.patch.object(dist, "get_process_group_ranks", lambda group: ranks[id(group)]):
            with self.assertRaisesRegex(causeway.InvalidArgument,
                                        r"processes \[0, 1\], and the site's group is \[0\]"):
                cw.join("h:1", model, id="s", group=other)


class MadeTest(unittest.TestCase):
    def test_a_site_that_cannot_be_made_leaves_its_processes(self):
        for name in ("devices_for", "TorchValues"):
            team = Solo()
            team.leave = mock.Mock()
            with mock.patch.object(cw, "_team", return_value=team), \
                    mock.patch.object(cw, name, side_effect=RuntimeError("no more")):
                with self.assertRaisesRegex(RuntimeError, "no more"):
                    cw.join("h:1", two_layers(), id="s")
            team.leave.assert_called_once_with()


class NamesTest(InOneProcess):
    def names(self, model):
        return [entry.name for entry in cw.trained_tensors(model)]

    def test_names_are_those_of_the_plain_model(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.fsdp import fully_shard
        wrap = nn.parallel.DistributedDataParallel

        def part(wrapper):
            model = two_layers()
            model[1] = wrapper(model[1])
            return model

        ways = {
            "plain": two_layers(),
            "DDP(compile)": wrap(torch.compile(two_layers())),
            "compile(DDP)": torch.compile(wrap(two_layers())),
            "DataParallel": nn.DataParallel(two_layers()),
            "compile(DataParallel(compile))":
                torch.compile(nn.DataParallel(torch.compile(two_layers()))),
            "DDP of a part": part(wrap),
            "compile of a part": part(torch.compile),
            "compile(DDP) of a part": part(lambda module: torch.compile(wrap(module))),
            "checkpointed part": part(checkpoint_wrapper),
            "DDP(checkpointed part)": wrap(part(checkpoint_wrapper)),
            "compile(fully_shard)": torch.compile(fully_shard(two_layers())),
        }
        for way, model in ways.items():
            with self.subTest(way):
                self.assertEqual(self.names(model), NAMES)

    @needs("lightning", "accelerate")
    def test_names_behind_fabric_and_accelerate(self):
        from accelerate import Accelerator
        from lightning import Fabric
        fabric = Fabric(accelerator="cpu", devices=1)
        model = two_layers()
        wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.assertEqual(self.names(wrapped), NAMES)
        self.assertEqual(self.names(torch.compile(wrapped)), NAMES)
        cw.join("h:1", wrapped, optimizer, id="s")  # The optimizer is the model's.
        self.assertEqual(self.names(Accelerator(cpu=True).prepare(two_layers())), NAMES)

    def test_names_that_are_handed_over(self):
        model = torch.compile(two_layers())
        self.assertEqual(self.names(dict(model.named_parameters())), NAMES)

    def test_a_module_of_that_name_is_no_wrapper(self):
        self.assertEqual(self.names(nn.ModuleDict({"module": nn.Linear(2, 2)})),
                         ["module.weight", "module.bias"])

    def test_buffers_have_plain_names(self):
        model = nn.DataParallel(nn.Sequential(nn.BatchNorm1d(4)))
        trained = cw.trained_tensors(model, buffers=["0.running_var"])
        self.assertEqual([entry.name for entry in trained],
                         ["0.weight", "0.bias", "0.running_var"])


def unfreeze(model, optimizer):
    model.norm.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.norm.parameters())})


def replace(model, optimizer):
    model.blocks[1] = copy.deepcopy(model.blocks[1])


def assign(model, optimizer):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def untie(model, optimizer):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


class ChangedTest(RunTest):
    def site(self, model, optimizer):
        run = self.run_of(PLAIN, initial=values_of(model))
        return run, cw.join(run.address, model, optimizer, id="s")

    def joins(self):
        """A model, its optimizer, a run of its values, and the site that is to join by them."""
        model = self.model()
        optimizer = self.sgd(model)
        return model, optimizer, *self.site(model, optimizer)

    def model(self):
        model = small_model()
        model.norm.requires_grad_(False)
        return model

    def sgd(self, model):
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)

    def test_another_tensor_is_named_before_anything_of_the_step_is_sent(self):
        changes = {
            "norm.weight trains now": unfreeze,
            "blocks.0.0.weight does not require gradients any more":
                lambda model, _: model.blocks[0][0].requires_grad_(False),
            "embed.weight does not require gradients any more":
                lambda model, _: model.requires_grad_(False),
            "blocks.1.0.weight is another tensor": replace,
            "embed.weight is another tensor": assign,
            "head.weight trains now": untie,
            "embed.weight is of torch.bfloat16 now, and was of torch.float32":
                lambda model, _: model.bfloat16(),
            "blocks.0.0.weight is in no optimizer any more":
                lambda _, optimizer: optimizer.param_groups[0]["params"].pop(1),
            "embed.weight is in no optimizer any more": lambda _, optimizer: optimizer.param_groups.clear(),
            "extra trains now":
                lambda model, _: model.register_parameter("extra", nn.Parameter(torch.ones(2))),
            r"SGD.param_groups\[1\]\['params'\]\[0\], torch.float32 of \(3,\), is no tensor of":
                lambda _, optimizer: optimizer.add_param_group(
                    {"params": [nn.Parameter(torch.ones(3))]}),
        }
        for message, change in changes.items():
            with self.subTest(message):
                model, optimizer, run, site = self.joins()
                with self.assertRaisesRegex(causeway.Refused, message) as caught:
                    with site:
                        for step in range(20):
                            if step == 6:
                                change(model, optimizer)
                                sent = len(run.pushed())
                            loss = loss_of(model, step)
                            if loss.requires_grad:
                                loss.backward()
                            optimizer.step()
                            optimizer.zero_grad()
                self.assertGreater(sent, 0)
                self.assertEqual(len(run.pushed()), sent)
                self.assertLessEqual(step, 8)
                self.assertIn(caught.exception.message[:20], str(run.left("s")))

    def test_a_change_before_the_block_is_found(self):
        model, _, run, site = self.joins()
        model.norm.requires_grad_(True)
        with self.assertRaisesRegex(causeway.Refused, "norm.weight trains now"):
            site.open()
        self.assertEqual(run.pushed(), [])

    def test_an_optimizer_made_anew_is_found(self):
        for message, change in {"embed.weight is another tensor": assign,
                                "SGD trains tensors of this site's optimizer": None}.items():
            with self.subTest(message):
                model, optimizer, _, site = self.joins()
                with self.assertRaisesRegex(causeway.Refused, message):
                    with site:
                        for step in range(20):
                            if step == 6:
                                if change is not None:
                                    change(model, optimizer)
                                optimizer = self.sgd(model)
                            step_once(model, optimizer, step)
                self.assertEqual(site.current_step, 6)
                self.assertLessEqual(step, 7)

    def test_an_optimizer_made_anew_for_every_step_is_found(self):
        model, _, _, site = self.joins()
        with self.assertRaisesRegex(causeway.Refused, "made anew for each"):
            with site:
                for step in range(20):
                    optimizer = self.sgd(model)
                    step_once(model, optimizer, step)
        self.assertEqual((site.current_step, step), (0, 4))

    def test_published_values_reach_the_model_or_nothing_does(self):
        model, optimizer, _, site = self.joins()
        with site:
            loss_of(model, 0).backward()
            optimizer.step()
            model.requires_grad_(False)  # It does not matter to an evaluation.
            with site.published():
                pass
            assign(model, optimizer)
            with self.assertRaisesRegex(causeway.Refused, "embed.weight is another tensor"):
                with site.published():
                    self.fail("the model has other tensors")

    def test_an_optimizer_of_another_model_is_refused(self):
        model = self.model()
        with self.assertRaisesRegex(causeway.InvalidArgument,
                                    "the model's embed.weight is not in the optimizer"):
            cw.join("h:1", model, self.sgd(copy.deepcopy(model)), id="s")
        # One with all of the model's parameters, also frozen ones, is not.
        cw.join("h:1", model, torch.optim.SGD(model.parameters(), lr=0.1), id="s")
        tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
        cw.join("h:1", tensors, torch.optim.SGD(model.parameters(), lr=0.1), id="s")

    def test_a_model_that_nobody_trains_is_mentioned(self):
        for trained in (False, True):
            model = self.model()
            trains = model if trained else copy.deepcopy(model)
            optimizer = self.sgd(trains)
            _, site = self.site(model, None)
            with self.says("nothing has changed", times=int(not trained)), site:
                while not site.should_stop:
                    step_once(trains, optimizer, site.current_step)
                    site.step()

    def test_what_the_last_step_shows_is_mentioned_at_the_end(self):
        model = self.model()
        run = self.run_of(PLAIN.replace("fragments: 3 pattern: BALANCED", "fragments: 1"), steps=4, initial=values_of(model))
        with self.says("nothing has changed"), cw.join(run.address, model, id="s") as site:
            while site.step():
                pass

    def test_a_program_that_trains_without_steps_of_its_site_is_told_so_once(self):
        def by_hand(model, changes):
            with torch.no_grad():
                for parameter in filter(lambda one: one.requires_grad, model.parameters()):
                    (parameter if changes else parameter.data).sub_(parameter.grad, alpha=0.05)

        # A step method put in the optimizer's place; one whose writes nobody sees, as a CUDA graph's; no site.step().
        for changes, hooked, rounds in ((True, True, 20), (False, True, 600), (True, False, 20)):
            model = self.model()
            optimizer = self.sgd(model)
            optimizer.step = lambda model=model, changes=changes: by_hand(model, changes)
            _, site = self.site(model, optimizer if hooked else None)
            with self.says("has followed no step yet, and its program goes on") as logs, site:
                loss_of(model, 0).backward()
                for _ in range(rounds):
                    optimizer.step()
                    site.report(loss=1.0)
                    self.assertFalse(site.should_stop)
            self.assertIn("the optimizer's step hook, which" if hooked else "Call site.step() after", str(logs.output))
            self.assertEqual(site.current_step, 0)

    def test_a_long_step_and_writes_between_steps_are_no_training_without_the_site(self):
        model, optimizer, _, site = self.joins()
        with self.assertNoLogs("causeway", "WARNING"), site:
            while not site.should_stop:
                for _ in range(200):
                    site.add(1)
                loss_of(model, site.current_step).backward()
                optimizer.step()
                for _ in range(3):
                    with site.published():
                        pass
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter.clamp_(-9, 9)
        self.assertTrue(site.finished)

    def test_values_that_are_loaded_in_the_block_are_mentioned_once(self):
        model = self.model()
        optimizer = self.sgd(model)
        saved = copy.deepcopy(model.state_dict())
        for load in (True, False):
            _, site = self.site(model, optimizer)
            with self.says("between two steps of this site", times=int(load)) as logs, site:
                while not site.should_stop:
                    loss_of(model, site.current_step).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    average = copy.deepcopy(model.state_dict())
                    model.load_state_dict(saved)  # An average that is swapped in, and out again.
                    model.load_state_dict(saved if load else average)
            self.assertEqual("blocks.1.2.bias was written" in str(logs.output), load)

    def test_a_state_without_its_model_is_mentioned(self):
        model, optimizer, run, site = self.joins()
        with site:
            loss_of(model, 0).backward()
            optimizer.step()
            state = site.state_dict()
            site.saved()
        for restored in (True, False):
            if not restored:
                model = self.model()
                optimizer = self.sgd(model)
            with self.says("other values than when the state was taken", times=int(not restored)):
                with cw.join(run.address, model, optimizer, id="s", state=state) as site:
                    self.assertTrue(site.info.restored)

    def test_a_step_that_a_cuda_graph_captures_is_refused(self):
        model, optimizer, _, site = self.joins()
        with self.assertRaisesRegex(causeway.InvalidArgument, "captured in a CUDA graph.*site.step.. after each replay"):
            with site, mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
                site._seen = mock.Mock(is_cuda=True)
                loss_of(model, 0).backward()
                optimizer.step()

    def test_what_no_optimizer_has_is_mentioned_once(self):
        model = self.model()
        optimizer = torch.optim.SGD(model.blocks.parameters(), lr=0.05)
        _, site = self.site(model, optimizer)
        with self.says("in no optimizer") as logs, site:
            for step in range(20):
                loss_of(model, step).backward()
                optimizer.step()
        self.assertRegex(str(logs.output), "embed.weight( and 1 more are| is) in no optimizer that this site")

    def test_new_memory_is_no_change(self):
        start = self.model()
        plain, model = copy.deepcopy(start), copy.deepcopy(start)
        optimizers = [self.sgd(plain), self.sgd(model)]
        _, site = self.site(model, optimizers[1])
        with site:
            for step in range(20):
                if step % 5 == 3:
                    for parameter in model.parameters():
                        parameter.data = parameter.data.t().contiguous().t() \
                            if parameter.dim() == 2 else parameter.data.clone()
                for one, optimizer in zip((plain, model), optimizers):
                    step_once(one, optimizer, step)
        self.assertTrue(site.finished)
        for one, other in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(one, other)


class ShardedInOneProcessTest(InOneProcess):
    def losses(self, shards, before=None, evaluates=False, fails=False):
        """The losses of a run, with forward passes "before" or "after" the site is made, and
        evaluations of published values, which are all there is of them or fail midway."""
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
                              nn.Linear(8, 4))
        with Run().serving("""
                sync { steps_between_syncs: 4 overlap_steps: 1 mixing: 0.5 }
                outer { learning_rate: 0.7 momentum: 0.6 } membership { start_workers: 1 }""",
                           steps=9, initial=values_of(model)) as run:
            if shards:
                fully_shard(model[1])
                fully_shard(model)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.fill_(9)  # Replaced by the run's.
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

            def fail(*_):
                raise ValueError("evaluation failed")

            def evaluate():
                with torch.no_grad():
                    return model(torch.ones(2, 4)).sum().item()

            if before == "before":
                evaluate()
            site = cw.join(run.address, model, optimizer, id="s")
            if before == "after":
                evaluate()
            found, published = [], []
            with site:
                while not site.should_stop:
                    data = torch.randn(
                        6, 4, generator=torch.Generator().manual_seed(site.current_step))
                    if evaluates and site.current_step % 3 == 2:
                        evaluate()  # Of the local values, which the root then keeps whole.
                        with site.published():
                            published.append(evaluate())
                    if fails and site.current_step % 3 == 2:
                        hook = model[1].register_forward_pre_hook(fail)
                        with self.assertRaisesRegex(ValueError, "evaluation failed"):
                            with site.published():
                                evaluate()
                        hook.remove()
                    loss = (model(data) - 1).square().mean()
                    found.append(loss.item())
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            run.finish()
            return found, published

    def test_evaluating_published_values_changes_nothing(self):
        plain, published = self.losses(False, evaluates=True)
        self.assertEqual(plain, self.losses(False)[0])
        self.assertNotEqual(published[0], published[1])
        self.assertEqual(self.losses(True), (plain, []))
        self.assertEqual(self.losses(True, evaluates=True), (plain, published))
        self.assertEqual(self.losses(True, fails=True)[0], plain)

    def test_names_and_tensors_of_a_sharded_model(self):
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(two_layers())
        shards = dict(model.named_parameters())
        local = model(torch.ones(1, 4)).sum()  # The root stays whole.
        whole = dict(model.named_parameters())
        with Run().serving(ALONE, initial={name: value + 1 for name, value in
                                           values_of(two_layers()).items()}) as run:
            with self.assertRaisesRegex(causeway.InvalidArgument, "0.weight has lost its memory"):
                site = cw.join(run.address, whole, None, id="s")
                model.reshard()
                site.open()
            with cw.join(run.address, shards, None, id="s"):
                self.assertGreater(model(torch.ones(1, 4)).sum() - local, 4)

    def test_a_forward_pass_before_joining_changes_nothing(self):
        plain, _ = self.losses(False)
        for before in ("before", "after"):
            self.assertEqual(self.losses(True, before)[0], plain)
