#!/usr/bin/env python3
"""Whoever has proto/ and docs/ can write a worker: foreign_worker.py is one, and agrees bit for bit
with the coordinator and with the oracle of tests/reference."""

import json
import re
import sys
import threading
import unittest

import cluster

try:
    import grpc
    import numpy as np
    import foreign_worker
    from foreign_worker import CONFIG, ROOT, hashes, streaming
except ModuleNotFoundError as missing:
    print(f"skipped: Debian's python3-grpcio, python3-protobuf or python3-xxhash: {missing}")
    sys.exit(77)
from google.protobuf import text_format
from run_record import records

# Blocks out of order, a name of two bytes a letter, a matrix of more than one chunk, a convolution,
# a scalar, gaps.
TENSORS = [("h.10.w", [700, 500]), ("h.2.\"'é\\", [8, 3, 3]), ("ln_f", [100]), ("t", []),
           ("h.2.b", [65, 1]), ("wte", [130, 64])]
SYNC = "steps_between_syncs: 4 overlap_steps: 1"
TOGETHER = "membership { start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 60000 }"
ALONE = "membership { start_workers: 1 max_workers: 1 lease_ms: 60000 }"


def values_of(tensors, seed):
    size = sum(hashes.Plan.values(shape) for _, shape in tensors)
    return np.random.default_rng(seed).normal(0, 1, size).astype(np.float32)


class ForeignWorkerTest(unittest.TestCase):
    def serve(self, config, *flags):
        """Returns the address."""
        run = cluster.Cluster()
        self.addCleanup(run.__exit__)
        self.coordinator = run.start_coordinator(config, "--http=off", *flags, model="")
        self.run_dir = run.folder / "coordinator"
        return run.address

    def serve_model(self, config, seed=1):
        address = self.serve(config, "--initial=first-site")
        foreign_worker.bring_model(grpc.insecure_channel(address), "a", TENSORS,
                                   values_of(TENSORS, seed))
        return address

    def expect_hashes(self, address):
        run = foreign_worker.describe(grpc.insecure_channel(address))
        self.assertEqual(hashes.config_text(run.config),
                         (self.run_dir / "config.textproto").read_text())
        self.assertEqual(hashes.config_hash(run.config), run.config_hash)
        self.assertEqual(hashes.Plan(run.config).hash(), run.plan_hash,
                         hashes.Plan(run.config).text())
        self.assertEqual(run.wire_version, foreign_worker.WIRE_VERSION)
        return run

    def test_examples_of_the_page(self):
        page = (ROOT / "docs/formats.md").read_text()
        section = page[page.index("## Hashes of a run"):page.index("## Measured matrix")]
        texts = ["".join(line[4:] + "\n" for line in block.rstrip("\n").split("\n"))
                 for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)]
        values = [int(value, 16) for value in re.findall(r"`([0-9a-f]{16})`", section)]
        config = text_format.Parse(texts[0], CONFIG.RunConfig())
        self.assertEqual(hashes.config_text(config), texts[0])
        self.assertEqual(hashes.Plan(config).text(), texts[1])
        self.assertEqual([hashes.config_hash(config), hashes.Plan(config).hash()], values)
        self.assertIn("With S = 3 and N = 1,000,000, perm(4, 123456) is 823531.", page)
        self.assertEqual(hashes.window_of(3, 10**6, 1, 0, 4 * 10**6 + 123456), 823531)

    def test_hashes_of_models_and_of_any_tensors(self):
        for config in (
                'model { preset: "tiny-1m" } sync { fragments: 4 pattern: SEQUENTIAL }',
                'model { layers: 3 width: 96 heads: 4 kv_heads: 2 mlp_width: 160 untied_head: true '
                'vocabulary_size: 300 qk_norm: true } sync { fragments: 7 pattern: BALANCED } '
                'train { learning_rate: 0.00003 epsilon: 1e-12 weight_decay: 0 beta2: 0.999 }',
                'model { layers: 5 width: 64 heads: 2 mlp_width: 128 mlp: GELU layer_norm: true '
                'qkv_bias: true output_bias: true mlp_bias: true learned_positions: 256 } '
                'sync { fragments: 2 mixing: 0.3333333333333333 }'):
            with self.subTest(config):
                self.expect_hashes(self.serve(config))
        for pattern in ("fragments: 1", "fragments: 2", "fragments: 2 pattern: SEQUENTIAL",
                        *(f"fragments: {count} pattern: BALANCED" for count in (2, 3, 11))):
            with self.subTest(pattern):
                self.expect_hashes(self.serve_model(f"sync {{ {pattern} }}"))

    def test_fingerprint_of_the_training_tokens(self):
        with cluster.Cluster() as run:
            run.start_coordinator("train { steps: 2 } sync { steps_between_syncs: 2 } "
                                  "membership { start_workers: 1 }")
            self.assertEqual(run.start_worker("a").wait(), 0)
            self.assertEqual(run.coordinator.wait(), 0)
            told, = (state.data_fingerprint for state in
                     records(run.folder / "coordinator", "state"))
            shards = json.loads((run.data / "data.json").read_text())["train_shards"]
            tokens = [token for shard in shards
                      for token in np.fromfile(run.data / shard, "<u2")[512:].tolist()]
        self.assertEqual(told, hashes.data_fingerprint(tokens))

    def test_what_differs_is_refused(self):
        address = self.serve_model(ALONE)
        with self.assertRaises(grpc.RpcError) as refused:
            foreign_worker.describe(grpc.insecure_channel(address), wire_version=3)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        for field, value in (("wire_version", 3), ("config_hash", 1), ("plan_hash", 1)):
            with self.assertRaises(grpc.RpcError) as refused:
                foreign_worker.Worker(address, "a", 1).join(**{field: value})
            self.assertEqual(refused.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            self.assertIn(f"{field} differs", refused.exception.details())

    def test_chunks_of_version_0_are_not_completed_by_later_ones(self):
        worker = foreign_worker.Worker(self.serve_model(ALONE), "a", 1)
        worker.join()
        replica = worker.fetch()
        worker.ready()
        header, first = worker.state(0)
        self.assertEqual(header.round, 0)
        worker.step = worker.config.sync.steps_between_syncs
        replica.local += np.float32(0.5)
        replica.count_tokens(100)
        worker.send(replica, 0, 1)
        worker.merge(replica, 0, 1)
        with self.assertRaises(foreign_worker.Refused) as refused:
            worker.state(0, round=0, held_chunks=b"\x01")
        self.assertEqual(refused.exception.args[0], grpc.StatusCode.NOT_FOUND.value[0])
        header, second = worker.state(0, round=0)
        self.assertEqual(header.round, 1)
        self.assertNotEqual(first, second)
        self.assertEqual(second, replica.published.tobytes())

    def test_lanes_say_what_the_protocol_says(self):
        worker = foreign_worker.Worker(self.serve_model(
            f"sync {{ {SYNC} fragments: 1 codec_up: FP32 }} membership {{ start_workers: 1 max_workers: 2 quorum: 2 }}"),
            "a", 1)
        worker.join()
        replica = worker.fetch()
        worker.ready()
        worker.step = worker.config.sync.steps_between_syncs
        replica.local += np.float32(0.5)
        replica.count_tokens(100)
        content, tokens = replica.send(0)
        self.assertEqual(len(content) // foreign_worker.CHUNK, 1)
        header = {"incarnation": worker.welcome.incarnation, "epoch": worker.welcome.epoch, "fragment": 0, "round": 1,
                  "codec": worker.config.sync.codec_up, "tokens": tokens, "send_step": worker.step,
                  "base_hash": worker.published[0], "total_bytes": len(content),
                  "object_hash": hashes.tree_hash(content)}
        # Two processes of one worker, of a lane each.
        first, second = (foreign_worker.Lanes(worker.channel, 1, run_id=worker.run.run_id, worker_id="a",
                                              process=process) for process in (7, 8))

        def offer(lanes, transfer, **changes):
            lanes.control(0, offer={"transfer": transfer, "header": {**header, **changes}})

        def chunk(lanes, transfer, place, damage=0):
            data = content[place * foreign_worker.CHUNK:(place + 1) * foreign_worker.CHUNK]
            lanes.lanes[0].say(chunk={"offset": place * foreign_worker.CHUNK, "checksum": hashes.xxh3(data) ^ damage,
                                      "data": data, "transfer": transfer})

        def heard(lanes):
            message = lanes.heard.get(timeout=foreign_worker.PATIENCE_S)
            self.assertIsNotNone(message, "the lane ended")
            kind = message.control.WhichOneof("message") if message.HasField("control") else "chunk"
            return kind, message.chunk if kind == "chunk" else getattr(message.control, kind)

        # A refusal is the Offer's and leaves the lane. Chunks of what was refused, or never introduced, are counted.
        offer(first, 1, tokens=-1)
        kind, said = heard(first)
        self.assertEqual((kind, said.transfer, said.code), ("outcome", 1, grpc.StatusCode.INVALID_ARGUMENT.value[0]))
        for transfer, count in ((1, 1), (99, 2)):
            chunk(first, transfer, 0)
            kind, said = heard(first)
            self.assertEqual((kind, said.chunks), ("acknowledgement", count))
        # Chunks that one process brought count for the other; damaged chunks are counted, too.
        offer(first, 2)
        kind, said = heard(first)
        self.assertEqual((kind, said.transfer, said.held_chunks), ("holding", 2, b""))
        holder = said.holder
        chunk(first, 2, 0)
        kind, said = heard(first)
        self.assertEqual((kind, said.chunks), ("acknowledgement", 3))
        offer(second, 1)
        kind, said = heard(second)
        self.assertEqual((kind, said.held_chunks, said.holder), ("holding", b"\x01", holder))
        chunk(second, 1, 1, damage=1)
        kind, said = heard(second)
        self.assertEqual((kind, said.transfer, said.chunk), ("damage", 1, 1))
        kind, said = heard(second)
        self.assertEqual((kind, said.chunks), ("acknowledgement", 1))
        chunk(second, 1, 1)
        last = dict(heard(second) for _ in range(2))  # In any order.
        self.assertEqual(last["acknowledgement"].chunks, 2)
        self.assertFalse(last["outcome"].accepted.duplicate)
        # Both offered it.
        kind, said = heard(first)
        self.assertEqual((kind, said.transfer, said.accepted.durable_bytes), ("outcome", 2, len(content)))
        # Accepted before: an Outcome for every introduction, and no Holding.
        for _ in range(2):
            offer(first, 3)
            kind, said = heard(first)
            self.assertEqual((kind, said.transfer, said.accepted.duplicate), ("outcome", 3, True))
        # A Want that succeeds gets no Outcome, also if all of it is held.
        for transfer, held in ((4, b""), (5, b"\x03")):
            first.control(0, want={"transfer": transfer, "object": "STATE", "held_chunks": held})
            kind, said = heard(first)
            self.assertEqual((kind, said.transfer, said.header.round), ("announcement", transfer, 0))
            first.control(0, holding={"transfer": transfer, "held_chunks": held})
            for _ in range(0 if held else 2):
                kind, said = heard(first)
                self.assertEqual((kind, said.transfer), ("chunk", transfer))
        first.control(0, want={"transfer": 6})  # Of no object.
        kind, said = heard(first)
        self.assertEqual((kind, said.transfer, said.code), ("outcome", 6, grpc.StatusCode.INVALID_ARGUMENT.value[0]))
        for lanes in (first, second, worker.lanes):
            self.assertEqual(set(lanes.half_close()), {grpc.StatusCode.OK})

    def expect_agreement(self, sync, outer):
        address = self.serve_model(
            f"train {{ steps: 12 }} sync {{ {SYNC} {sync} }} outer {{ {outer} }} {TOGETHER}")
        config = self.expect_hashes(address).config
        workers = [foreign_worker.Worker(address, name, seed)
                   for seed, name in enumerate("ab", start=1)]
        threads = [threading.Thread(target=worker.train, args=[worker.process])
                   for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, second = workers
        plan, brought = first.plan, values_of(TENSORS, 1)
        initial = np.zeros(plan.size, np.float32)
        at = {name: offset for name, _, offset in plan.tensors}
        for name, shape in TENSORS:
            size = plan.values(shape)
            initial[at[name]:at[name] + size], brought = brought[:size], brought[size:]
        self.assertEqual(first.initial.tobytes(), initial.tobytes())
        settings = {name: getattr(config.outer, name) for name in
                    ("learning_rate", "momentum", "clip_factor", "trim")}
        settings["optimizer"] = config.outer.Optimizer.Name(config.outer.optimizer)
        settings["merge"] = config.outer.Merge.Name(config.outer.merge)
        merger = streaming.Merger(initial.copy(), plan.ranges, first.codec("up"),
                                  first.codec("down"), settings, None)
        self.assertEqual(len(first.sent), 3 * len(plan.ranges))
        for fragment, round_ in sorted(first.sent, key=lambda key: key[::-1]):
            key = fragment, round_
            answer = merger.merge(fragment, {"a": first.sent[key], "b": second.sent[key]})
            values = merger.published[plan.ranges[fragment]].astype("<f4").tobytes()
            for worker in workers:
                self.assertEqual(worker.heard[key].object_hash, hashes.tree_hash(answer), key)
                self.assertEqual(worker.heard[key].published_hash, hashes.tree_hash(values), key)
        for worker in workers:
            self.assertEqual(worker.leave(), grpc.StatusCode.OK)
            self.assertEqual(worker.lanes.half_close(), [grpc.StatusCode.OK] * 2)
        self.assertEqual(self.coordinator.wait(), 0, self.coordinator.log())

    def test_a_run_in_int4_with_feedback_agrees_with_the_oracle(self):
        self.expect_agreement(
            "fragments: 2 mixing: 0.5 codec_up: INT4 codec_down: INT4 error_feedback: true",
            "learning_rate: 0.7 momentum: 0.6")

    def test_a_run_in_lm2_with_feedback_agrees_with_the_oracle(self):
        self.expect_agreement(
            "fragments: 3 pattern: BALANCED mixing: 0.3 codec_up: LM2 codec_down: LM2 error_feedback: true",
            "merge: NORM_AND_DIRECTION")

    def test_a_run_in_fp32_that_keeps_what_was_in_flight_agrees_with_the_oracle(self):
        self.expect_agreement("fragments: 1 keep_in_flight: 0.5", "optimizer: SGD")


if __name__ == "__main__":
    unittest.main()
