#!/usr/bin/env python3
"""Plants violations into a small tree and expects each to be found, and nothing else."""
import os
import tempfile
import unittest

import check_tree


def header(*includes):
    return "#pragma once\n" + source(*includes)


def source(*includes):
    return "".join(f"#include {name}\n" for name in includes)


def library(name, sources, *deps):
    return f"causeway_library({name} SOURCES {sources}\n  DEPS {' '.join(f'causeway::{dep}' for dep in deps)})\n"


CLOCK, ROUND, LOG = '"common/base/clock.h"', '"server/round/round.h"', '"common/telemetry/log.h"'
BASE, ROUNDS, SYNC = "common/base/CMakeLists.txt", "server/round/CMakeLists.txt", "worker/sync/CMakeLists.txt"
# A tree without a fault: two folders of common, one of server, one of worker, a test.
SOUND = {
    "common/base/clock.h": header("<cstdint>"),
    "common/base/clock.cc": source(CLOCK),
    BASE: "causeway_library(base SOURCES clock.cc)\n",
    "common/params/plan.h": header(CLOCK, '"causeway/v1/config.pb.h"'),
    "common/params/plan.cc": source('"common/params/plan.h"'),
    "common/params/CMakeLists.txt": library("params", "plan.cc", "base"),
    "server/round/round.h": header('"common/params/plan.h"'),
    "server/round/round.cc": source(ROUND, CLOCK),
    ROUNDS: library("round", "round.cc  # pure", "params"),
    "server/service/service.cc": source("<grpcpp/server.h>", ROUND),
    "server/service/CMakeLists.txt": library("service", "service.cc", "round"),
    "worker/link/grpc_exchange.cc": source('"causeway/v1/exchange.grpc.pb.h"'),
    "worker/link/CMakeLists.txt": "causeway_library(link SOURCES grpc_exchange.cc)\n",
    "tests/unit/round_test.cc": source('"gtest/gtest.h"', ROUND),
    "tests/unit/CMakeLists.txt": "causeway_test(round_test SOURCES round_test.cc DEPS causeway::round)\n",
}
# Each violation that is planted, and what the one line that finds it says.
FAULTS = (
    # Layers.
    ({"common/base/clock.cc": source(CLOCK, ROUND), BASE: library("base", "clock.cc", "round")},
     "common/base/clock.cc:2", "common must not include server"),
    ({"worker/sync/sync.cc": source(ROUND), SYNC: library("sync", "sync.cc", "round")},
     "worker/sync/sync.cc:1", "worker must not include server"),
    ({"worker/sync/sync.h": header(), "server/round/round.cc": source(ROUND, '"worker/sync/sync.h"'),
      ROUNDS: library("round", "round.cc", "params", "sync")},
     "server/round/round.cc:2", "server must not include worker"),
    ({"tests/unit/fake.h": header(), "server/round/round.cc": source(ROUND, '"tests/unit/fake.h"')},
     "server/round/round.cc:2", "must not include tests"),
    ({"common/base/clock.h": header('"common/params/plan.h"'), BASE: library("base", "clock.cc", "params")},
     "common/base/clock.h:2", "must not include common/params"),
    ({"common/telemetry/log.h": header('"common/params/plan.h"'), "server/round/round.cc": source(ROUND, LOG)},
     "common/telemetry/log.h:2", "must not include common/params"),
    ({"common/telemetry/log.h": header(), "common/params/plan.cc": source('"common/params/plan.h"', LOG)},
     "common/params/plan.cc:2", "must not include common/telemetry"),
    ({"common/extra/thing.cc": "", "common/extra/CMakeLists.txt": library("extra", "thing.cc")},
     "common/extra", "has no layer"),
    ({"common/base/clock.cc": source(CLOCK, '"causeway/v1/config.pb.h"')},
     "common/base/clock.cc:2", "protocol's messages"),
    # The core reaches neither gRPC nor CUDA, not even through a header.
    *(({"server/round/round.cc": source(ROUND, include)}, "server/round/round.cc:2", f"reach {what}")
      for what, includes in (("gRPC", ("<grpcpp/grpcpp.h>", "<grpc/status.h>", '"causeway/v1/admin.grpc.pb.h"')),
                             ("CUDA", ("<cuda_runtime.h>", "<cublasLt.h>", "<nccl.h>", "<cub/cub.cuh>")))
      for include in includes),
    ({"common/rpc/channel.h": header("<grpcpp/channel.h>"),
      "server/round/round.cc": source(ROUND, '"common/rpc/channel.h"')},
     "server/round/round.cc:1", "common/rpc/channel.h -> grpcpp/channel.h"),
    ({"worker/train/step.cu": "", "worker/train/CMakeLists.txt": library("train", "step.cu")},
     "worker/train/step.cu", "device code"),
    ({"worker/sync/engine.cc": source("<grpcpp/grpcpp.h>"), SYNC: library("sync", "engine.cc")},
     "worker/sync/engine.cc:1", "reach gRPC"),
    # Includes, orphans, headers, lengths.
    ({"common/base/clock.cc": source('"clock.h"', CLOCK)}, "common/base/clock.cc:1", "from the root"),
    ({"common/base/clock.cc": source(CLOCK, '"common/base/gone.h"')},
     "common/base/clock.cc:2", "there is no common/base/gone.h"),
    ({"common/base/clock.cc": source("<common/base/clock.h>")}, "common/base/clock.cc:1", "with quotes"),
    ({"server/round/old.cc": ""}, "server/round/old.cc", "lists this file"),
    ({"server/round/old.cc": "", ROUNDS: SOUND[ROUNDS] + "# old.cc\n"}, "server/round/old.cc", "lists this file"),
    ({"server/round/old.h": header('"server/round/old.h"')}, "server/round/old.h", "nothing includes"),
    *(({"common/base/clock.h": text}, "common/base/clock.h", "#pragma once")
      for text in ("", "#include <cstdint>\n", "#ifndef CLOCK_H_\n#define CLOCK_H_\n#endif\n")),
    ({"deploy/tool.py": "x\n" * (check_tree.MAX_LINES + 1)}, "deploy/tool.py", "601 lines"),
    # Libraries and what they name.
    ({ROUNDS: SOUND[ROUNDS] + "add_library(plugin MODULE)\n"}, ROUNDS, "not plugin, round"),
    ({ROUNDS: SOUND[ROUNDS] + "causeway_library(round_rpc)\n"}, ROUNDS, "not round, round_rpc"),
    ({ROUNDS: "causeway_library(round SOURCES round.cc)\n", "server/round/round.cc": source(ROUND),
      "tests/unit/CMakeLists.txt":
          "causeway_test(round_test SOURCES round_test.cc DEPS causeway::round causeway::params)\n",
      "server/service/CMakeLists.txt": library("service", "service.cc", "round", "params")},
     "server/round/round.h:2", "without causeway::params"),
)


class CheckTreeTest(unittest.TestCase):
    def violations(self, changes):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**SOUND, **changes}.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return check_tree.check(root)

    def test_sound_trees_pass(self):
        either = f"if(X)\n{SOUND[ROUNDS]}else()\ncauseway_library(round)\nendif()\n"
        for changes in ({}, {"deploy/tool.py": "x\n" * check_tree.MAX_LINES}, {ROUNDS: either},
                        {ROUNDS: SOUND[ROUNDS] + "add_library(round_c SHARED round.cc)\n"}):
            self.assertEqual(self.violations(changes), [])

    def test_each_fault_is_found_and_nothing_else(self):
        for changes, *parts in FAULTS:
            with self.subTest(parts=parts):
                found = self.violations(changes)
                self.assertEqual(len(found), 1, found)
                for part in parts:
                    self.assertIn(part, found[0])


if __name__ == "__main__":
    unittest.main()
