#!/usr/bin/env python3
"""Runs of any model with real processes: a model from safetensors, and what the coordinator and the
tools make of a run that causeway-worker has no code for."""

import json
import struct
import unittest

import cluster
from cluster import COORDINATOR, CTL, WORKER, output_of, refusal_of, write_safetensors
from foreign_worker_test import foreign_worker, grpc, np

CONFIG = """
run_name: "any"
sync { fragments: 2 steps_between_syncs: 10 codec_up: INT4 codec_down: INT4 }
membership { start_workers: 1 max_workers: 2 }
"""


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def numbers(count, start):
    return f32(*((start + 7 * i) % 101 / 64 - 0.75 for i in range(count)))


# Names, dtypes, shapes and bytes; two blocks, a convolution, a scalar.
TENSORS = {
    "h.10.mlp.weight": ("F32", [8, 16], numbers(128, 1)),
    "h.2.conv.weight": ("F32", [4, 2, 3, 3], numbers(72, 2)),
    "ln_f.weight": ("BF16", [3], struct.pack("<3H", 0x3F80, 0xC000, 0x0001)),
    "temperature": ("F16", [], struct.pack("<H", 0x3555)),
    "wte.weight": ("F32", [10, 16], numbers(160, 3)),
}
# The same in fp32.
EXACT = {**{name: data for name, (dtype, _, data) in TENSORS.items() if dtype == "F32"},
         "ln_f.weight": struct.pack("<3I", 0x3F800000, 0xC0000000, 0x00010000),
         "temperature": f32(struct.unpack("<e", struct.pack("<H", 0x3555))[0])}


def read_safetensors(path):
    content = path.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   content[8 + length + entry["data_offsets"][0]:
                           8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


class AnyModelTest(unittest.TestCase):
    def setUp(self):
        self.cluster = cluster.Cluster()
        self.addCleanup(self.cluster.__exit__)
        self.folder = self.cluster.folder
        self.config = self.folder / "run.textproto"
        self.config.write_text(CONFIG)
        self.model = self.folder / "any.safetensors"
        write_safetensors(self.model, TENSORS)
        self.run_dir = self.folder / "coordinator"

    def refused(self, *flags):
        return refusal_of(COORDINATOR, "serve", f"--run_dir={self.folder / 'refused'}", "--listen=127.0.0.1:0", *flags)

    def export(self, folder, *flags):
        return output_of(CTL, "export", f"--coordinator={self.cluster.address}", f"--out={folder}", *flags)

    def expect_exact(self, folder):
        exported = read_safetensors(folder / "model.safetensors")
        self.assertEqual(exported, {name: ("F32", shape, EXACT[name])
                                    for name, (_, shape, _) in TENSORS.items()})
        self.assertEqual([path.name for path in folder.iterdir()], ["model.safetensors"])

    def expect_exact_again(self, flags):
        # The same command line, the configuration alone, and neither.
        for restart in (flags, flags[:1], []):
            coordinator = self.cluster.start_serving(*restart)
            out = self.folder / f"again{len(restart)}"
            output = self.export(out, "--json")
            self.assertEqual(json.loads(output)["parameters"], 128 + 72 + 3 + 1 + 160)
            self.expect_exact(out)
            coordinator.kill()

    def test_a_file_begins_a_run_that_survives_kill_9_and_is_exported_bit_for_bit(self):
        flags = [f"--config={self.config}", f"--initial={self.model}"]
        coordinator = self.cluster.start_serving(*flags)
        self.export(self.folder / "first")
        self.expect_exact(self.folder / "first")
        coordinator.kill()
        self.expect_exact_again(flags)
        # The table is in the natural order of the names.
        config = (self.run_dir / "config.textproto").read_text()
        self.assertLess(config.index("h.2.conv"), config.index("h.10.mlp"))
        self.assertNotIn("model {", config)
        output = output_of(COORDINATOR, "inspect", f"--run_dir={self.run_dir}",
                           "--json")
        self.assertEqual(len(json.loads(output)["fragments"]), 3)

    def test_a_run_of_tensors_is_what_its_kept_parameters_say(self):
        self.cluster.start_serving(f"--config={self.config}", f"--initial={self.model}")
        kept = self.folder / "kept"
        self.export(kept)
        second = self.folder / "second"
        self.cluster.start_serving(f"--run_dir={second}", f"--config={self.config}", f"--initial={kept}")
        self.export(self.folder / "second_export")
        self.expect_exact(self.folder / "second_export")
        self.assertIn("is a folder without model.textproto", refusal_of(
            WORKER, "eval", f"--checkpoint={kept}", f"--data={self.cluster.data}"))
        self.assertIn("this is a run of tensors", refusal_of(
            WORKER, "eval", f"--checkpoint={second / 'initial.parameters'}", f"--data={self.cluster.data}"))

    def test_an_index_of_several_files_is_one_model(self):
        folder = self.folder / "sharded"
        folder.mkdir()
        names = list(TENSORS)
        for part in (0, 1):
            write_safetensors(folder / f"part{part}.safetensors",
                              {name: TENSORS[name] for name in names[part::2]})
        (folder / "model.safetensors.index.json").write_text(json.dumps(
            {"weight_map": {name: f"part{i % 2}.safetensors" for i, name in enumerate(names)}}))
        self.cluster.start_serving(f"--config={self.config}", f"--initial={folder / 'model.safetensors.index.json'}")
        self.export(self.folder / "whole")
        self.expect_exact(self.folder / "whole")

    def test_what_cannot_be_is_refused_before_anything_is_written(self):
        bad = self.folder / "bad.safetensors"
        matrix = {"w": ("F32", [2, 64], numbers(128, 1))}
        for tensors, config, says in (
                ({**TENSORS, "steps": ("I64", [1], bytes(8))}, CONFIG,
                 'the tensor "steps" is I64; F32, BF16 and F16 are read'),
                ({"h.0.w": ("F32", [2], f32(1, float("nan")))}, "", "the tensor h.0.w has the value nan at index 1"),
                (matrix, "sync { fragments: 2 }", "choose pattern BALANCED"),
                (matrix, "tensors { tensor { name: 'w' shape: [64, 2] } }",
                 "the tensor w is [64, 2] in the run's model, but [2, 64] in the given"),
                (matrix, "tensors { tensor { name: 'v' shape: 4 } }",
                 "the run's model has a tensor v [4], the given parameters have none")):
            write_safetensors(bad, tensors)
            self.config.write_text(config)
            self.assertIn(says, self.refused(f"--config={self.config}", f"--initial={bad}"))
        self.config.write_text("run_name: 'nothing'")
        self.assertIn("model, or tensors, must be given", self.refused(f"--config={self.config}"))
        self.assertFalse((self.folder / "refused").exists())
        # Only the folder could have said so.
        self.config.write_text("tensors { tensor { name: 'v' shape: 4 } }")
        self.assertIn("give --initial=FILE.safetensors, or --initial=first-site",
                      self.refused(f"--config={self.config}"))

    def bring(self, worker, tensors):
        """What the coordinator says to a model of these shapes and bytes; empty: it has taken it."""
        names = sorted(tensors)
        try:
            foreign_worker.bring_model(
                grpc.insecure_channel(self.cluster.address), worker, [(name, tensors[name][0]) for name in names],
                np.frombuffer(b"".join(tensors[name][1] for name in names), "<f4"))
        except grpc.RpcError as error:
            return error.details()
        return ""

    def test_the_first_site_brings_the_model_and_kill_9_before_that_waits_again(self):
        flags = [f"--config={self.config}", "--initial=first-site"]
        for _ in range(2):
            coordinator = self.cluster.start_serving(*flags)
            output = output_of(CTL, "status", f"--coordinator={self.cluster.address}")
            self.assertIn("step 0 of 1000", output)
            # A model that this configuration cannot have leaves the run waiting.
            self.assertIn("choose pattern BALANCED", self.bring("lyon", {"w": ([64], numbers(64, 0))}))
            coordinator.kill()
        coordinator = self.cluster.start_serving(*flags)
        self.assertEqual(self.bring("paris", {name: (shape, EXACT[name])
                                              for name, (_, shape, _) in TENSORS.items()}), "")
        self.cluster.wait_for_event("model_brought", worker="paris", parameters=364)
        self.assertFalse(foreign_worker.describe(grpc.insecure_channel(self.cluster.address)).awaits_model)
        self.export(self.folder / "first")
        self.expect_exact(self.folder / "first")
        coordinator.kill()
        self.expect_exact_again(flags)

    def test_causeway_worker_is_told_who_can_join(self):
        self.cluster.start_serving(f"--config={self.config}", f"--initial={self.model}")
        error = self.cluster.start_worker("w").refusal()
        self.assertIn("this is a run of tensors (5 of them, first \"h.2.conv.weight\")", error)
        self.assertIn("docs/pytorch.md", error)
        self.cluster.start_serving(f"--run_dir={self.folder / 'waiting'}", f"--config={self.config}",
                                   "--initial=first-site")
        self.assertIn("this run waits for the first site to bring its model",
                      self.cluster.start_worker("w").refusal())


if __name__ == "__main__":
    unittest.main()
