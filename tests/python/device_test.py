"""Sites whose tensors are on CUDA devices, here emulated ones: the bytes of the host's way, and no
step that waits for a device."""

import copy
import itertools
import logging
import re
import signal
import unittest
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import causeway
import causeway.torch as cw
import emulated
from models import small_model, synthetic_gradients, values_of
from runs import BIN, STREAMING, Run, run_tool

torch.set_num_threads(1)
ONE = "membership { start_workers: 1 }"
SYNC = "sync { fragments: 3 pattern: BALANCED steps_between_syncs: 4 overlap_steps: 2 "
CODECS = {
    "int4": "codec_up: INT4 codec_down: INT4",
    "int4 with feedback": "codec_up: INT4 codec_down: INT8 error_feedback: true",
    "fp32": "codec_up: FP32 codec_down: FP32",
    "bf16": "codec_up: BF16 codec_down: E2M1",
    "lm2": "codec_up: LM2 codec_down: LM2 error_feedback: true",
    "sign1": "codec_up: SIGN1 codec_down: SIGN1 error_feedback: true",
    "in flight": "mixing: 0 codec_up: INT8 codec_down: INT8 keep_in_flight: 0.5",
    "fp32 with feedback": "codec_up: FP32 codec_down: BF16 error_feedback: true",
    "bf16 with feedback": "codec_up: BF16 codec_down: INT4 error_feedback: true",
    "int8 with feedback": "codec_up: INT8 codec_down: FP32 error_feedback: true",
    "e2m1 with feedback": "codec_up: E2M1 codec_down: E3M0 error_feedback: true",
    "e3m0": "codec_up: E3M0 codec_down: INT8",
}
STEPS = 20


class Transposed(nn.Module):
    """A parameter that is not contiguous."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 40, generator=torch.Generator().manual_seed(1)).t())
        self.bias = nn.Parameter(torch.zeros(40))


def train_masters(model, masters, optimizer):
    """A step of the masters of some parameters, or of the model itself."""
    for name, master in masters.items():
        master.grad = model.get_parameter(name).grad.float()
    optimizer.step()
    with torch.no_grad():
        for name, master in masters.items():
            model.get_parameter(name).copy_(master)


@unittest.skipUnless(emulated.chosen, "without an emulated device: run it with --device")
class DeviceTest(unittest.TestCase):
    def setUp(self):
        emulated.use()
        emulated.places.clear()

    def trained(self, settings, model, values, after_step=lambda step, model: None, masters=None, brings=False):
        """Objects, published hashes, the model's values after every step and the published ones of the end, and of
        steps the calls that waited for a device, trained in a thread of its own. `brings`: the run has its model
        from the site."""
        steps, waits = [], []

        def train(address):
            trained = model.parameters() if masters is None else masters.values()
            optimizer = torch.optim.AdamW(trained, lr=1e-2, eps=1e-3)
            with cw.join(address, model, None, id="s", tokens_per_step=12, values=values,
                         masters=masters) as site:
                while not site.should_stop:
                    synthetic_gradients(model, site.current_step)
                    train_masters(model, masters or {}, optimizer)
                    before = emulated.waits()
                    site.step()
                    waits.append(emulated.waits() - before)
                    steps.append([p.detach().clone() for p in model.parameters()])
                    after_step(site.current_step, model)
                with site.published():
                    steps.append([p.detach().clone() for p in model.parameters()])
                for own, after in zip(steps[-2], model.parameters()):
                    self.assertTrue(torch.equal(own, after))

        with Run().serving(settings, steps=STEPS, initial=None if brings else values_of(model)) as run:
            with self.assertLogs("causeway") as logs, ThreadPoolExecutor(1) as trainer:
                logging.getLogger("causeway").info("the site begins")
                trainer.submit(train, run.address).result()
            run.finish()
            self.lines = logs.output
            return *run.sent(), steps, waits

    def same(self, one, other):
        self.assertGreater(len(one[0]), 10)
        self.assertEqual(one[0], other[0])
        self.assertEqual(one[1], other[1])
        for step, (mine, theirs) in enumerate(zip(one[2], other[2])):
            for a, b in zip(mine, theirs):
                self.assertTrue(torch.equal(a, b), f"after step {step + 1}")

    def test_every_type_and_codec_sends_the_bytes_of_the_hosts_way_and_waits_for_nothing(self):
        """A codec sees fp32, whatever the tensors are: tests/site/site_test.py holds the host's way against the oracle."""
        types = itertools.cycle((torch.float32, torch.bfloat16, torch.float16))
        for (name, codecs), dtype in zip(CODECS.items(), types):
            mixing = "" if "mixing" in codecs else "mixing: 0.5"
            settings = f"{SYNC} {mixing} {codecs} }} {ONE}"
            host = self.trained(settings, small_model(dtype), "host")
            for values in ("device", "pinned"):
                with self.subTest(name, dtype=dtype, values=values):
                    kernels = emulated.library().causeway_emulated_kernels()
                    device = self.trained(settings, small_model(dtype), values)
                    self.assertGreater(emulated.library().causeway_emulated_kernels(), kernels)
                    self.same(device, host)
                    self.assertEqual(device[3], [0] * STEPS)

    def test_tensors_on_several_devices_send_the_bytes_of_the_hosts_way_and_wait_for_nothing(self):
        """Of wide tensors each device owns whole chunks, of narrow ones a single device owns the fragment."""
        for name, dtype, width, devices in (("int4 with feedback", torch.float32, 1700, 3), ("lm2", torch.bfloat16, 1700, 2),
                                            ("bf16", torch.float16, 10, 3), ("in flight", torch.float32, 1700, 2)):
            mixing = "" if "mixing" in CODECS[name] else "mixing: 0.5"
            settings = f"{SYNC} {mixing} {CODECS[name]} }} {ONE}"
            host = self.trained(settings, small_model(dtype, width=width), "host")
            for values in ("device", "pinned"):
                with self.subTest(name, dtype=dtype, values=values):
                    model = emulated.spread(small_model(dtype, width=width), devices)
                    several = self.trained(settings, model, values)
                    self.assertFalse([line for line in self.lines if "values cross" in line])
                    self.same(several, host)
                    self.assertEqual(several[3], [0] * STEPS)

    def test_masters_on_several_devices(self):
        found = []
        for values in ("device", "host"):
            model = small_model(torch.bfloat16, width=1700)
            masters = {name: p.detach().float().clone() for name, p in model.named_parameters()}
            emulated.places.clear()
            emulated.places.update({master.data_ptr(): index % 2 for index, master in enumerate(masters.values())})
            found.append(self.trained(STREAMING, model, values, masters=masters))
        self.same(*found)

    def test_a_parameter_that_is_not_contiguous(self):
        host = self.trained(STREAMING, Transposed(), "host")
        for devices in (1, 2):
            self.same(self.trained(STREAMING, emulated.spread(Transposed(), devices), "device"), host)

    def test_a_run_has_the_values_of_a_parameter_that_is_not_contiguous(self):
        self.same(self.trained(STREAMING, Transposed(), "device", brings=True),
                  self.trained(STREAMING, Transposed(), "host", brings=True))

    def test_masters_of_which_one_or_its_copy_is_not_contiguous(self):
        for turned in ("master", "copy"):
            found = []
            for values in ("device", "host"):
                model = Transposed().to(torch.bfloat16)
                masters = {name: p.detach().float().clone() for name, p in model.named_parameters()}
                if turned == "copy":
                    masters = {name: master.contiguous() for name, master in masters.items()}
                else:
                    model.weight.data = model.weight.data.contiguous()
                found.append(self.trained(STREAMING, model, values, masters=masters))
            with self.subTest(turned):
                self.same(*found)

    def test_parameters_with_other_storage_after_the_join(self):
        host = self.trained(STREAMING, small_model(), "host")
        for devices in (1, 2):
            def renew(step, model):
                if step == 5:
                    former = list(model.parameters())  # Their memory is not used again.
                    for parameter in former:
                        parameter.data = parameter.data.clone()
                    emulated.spread(model, devices)

            self.same(self.trained(STREAMING, emulated.spread(small_model(), devices), "device", renew), host)

    def test_a_parameter_that_moves_to_another_device_after_the_join(self):
        host = self.trained(STREAMING, small_model(), "host")
        for devices, there in ((1, None), (2, None), (3, 1)):
            def move(step, model):
                if step == 5:
                    model.norm.weight.data = model.norm.weight.data.clone()
                    emulated.places[model.norm.weight.data_ptr()] = there

            with self.subTest(devices=devices, there=there):
                device = self.trained(STREAMING, emulated.spread(small_model(), devices), "device", move)
                told = [line for line in self.lines if "it is copied to and fro" in line]
                self.assertEqual(len(told), 1)
                self.assertIn("norm.weight is on cpu now", told[0])
                self.same(device, host)

    def test_without_a_usable_driver_or_with_tensors_apart_it_is_the_hosts_way(self):
        host = self.trained(STREAMING, small_model(), "host")
        self.assertFalse([line for line in self.lines if "values cross" in line])
        emulated.use(driver=35)  # cudaErrorInsufficientDriver
        self.same(self.trained(STREAMING, small_model(), "device"), host)
        told = [line for line in self.lines if "values cross in the host's memory" in line]
        self.assertEqual(len(told), 1)
        self.assertIn("this library needs CUDA 13.0", told[0])
        emulated.use()
        model = small_model()
        emulated.places[model.norm.weight.data_ptr()] = None
        self.same(self.trained(STREAMING, model, "device"), host)
        self.assertEqual(len([line for line in self.lines if "norm.weight is on no CUDA device" in line]), 1)

    def resumed(self, dtype, before, after):
        """Objects and published hashes of a site that is saved and begins again, another way. A number: so many devices."""
        with Run().serving(STREAMING, steps=STEPS, initial=values_of(small_model(dtype))) as run:
            saved = None
            for values in (before, after):
                model = emulated.spread(small_model(dtype), values if isinstance(values, int) else 1)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
                if saved:
                    model.load_state_dict(saved[0])
                    optimizer.load_state_dict(saved[1])
                with cw.join(run.address, model, None, id="s", values=values if isinstance(values, str) else "device",
                             state=saved[2] if saved else None) as site:
                    self.assertEqual(site.info.restored, saved is not None)
                    while not site.should_stop:
                        if site.current_step == 9 and saved is None:
                            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                            saved = (*saved, site.state_dict())
                            site.saved()
                            break
                        synthetic_gradients(model, site.current_step)
                        optimizer.step()
                        site.step()
            run.finish()
            return run.sent()

    def test_a_state_continues_on_the_host_and_on_the_device(self):
        for dtype in (torch.float32, torch.bfloat16):
            undisturbed = self.trained(STREAMING, small_model(dtype), "host")[:2]
            for before, after in (("device", "device"), ("device", "host"), ("host", "pinned"), (3, 2), (2, "host"),
                                  ("device", 3)):
                with self.subTest(dtype=dtype, before=before, after=after):
                    self.assertEqual(self.resumed(dtype, before, after), undisturbed)

    def test_a_site_that_was_away_starts_anew(self):
        with Run().serving(f"{SYNC} mixing: 0.5 {CODECS['int4']} }} membership {{ start_workers: 2 max_workers: 2 "
                           "quorum: 1 lease_ms: 1500 }", steps=100_000, initial=values_of(small_model())) as run:
            answers = run.folder / "coordinator" / "answers"

            def gone(at):
                """That no answer is left which a site at step `at` needs next."""
                kept = {}
                for path in answers.iterdir():
                    if found := re.search("-(f[0-9]+)-r([0-9]+)[.]answer$", path.name):
                        kept.setdefault(found[1], []).append(int(found[2]))
                return len(kept) == 3 and all(min(rounds) > at // 4 + 8 for rounds in kept.values())

            away = run.start_program("away", "torch_trainer.py", run.address, "--devices=3")
            model = small_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
            at = goes_on = back = None
            with cw.join(run.address, model, None, id="other", tokens_per_step=12) as site:
                while not site.should_stop:
                    if at is None and site.current_step >= 20:
                        away.signal(signal.SIGSTOP)
                        at = max(map(int, re.findall("^step ([0-9]+)$", away.log(), re.MULTILINE)))
                    elif at is not None and goes_on is None and gone(at):
                        away.signal(signal.SIGCONT)
                        goes_on = site.current_step
                    elif goes_on is not None and back is None and "anew\n" in away.log():
                        back = site.current_step
                        run_tool(BIN / "causewayctl", "stop", f"--coordinator={run.address}",
                                 f"--at_step={back + 60}")
                    synthetic_gradients(model, site.current_step)
                    optimizer.step()
                    site.step()
            self.assertEqual(away.wait(), 0, away.log())
            self.assertIn("the session with the coordinator broke", away.log())
            was, began = map(int, re.search("it was at step ([0-9]+), .* goes on at step ([0-9]+)$",
                                            away.log(), re.MULTILINE).groups())
            self.assertLessEqual(was, at + 8)
            self.assertGreater(began, goes_on - 8)
            run.finish()

    def test_too_little_memory_is_refused_before_training(self):
        emulated.use(memory=210_000)  # Two of three fragments, but not all published values.
        for dtype, choice in ((torch.float32, "values='pinned'"), (torch.bfloat16, "values='host'")):
            with self.assertRaisesRegex(causeway.ResourceExhausted, f"(?=.*GB).*{choice}"):
                self.trained(STREAMING, nn.Linear(256, 256).to(dtype), "device")
        with self.assertRaisesRegex(causeway.ResourceExhausted, "the memory of GPU 1 does not suffice: .*GB"):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(256, 256))
            emulated.places.update({parameter.data_ptr(): 1 for parameter in model[1].parameters()})
            self.trained(STREAMING, model, "device")
