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


# A tree without a fault: two folders of common, one of server, one of worker, a test.
SOUND = {
    "common/base/clock.h": header("<cstdint>"),
    "common/base/clock.cc": source('"common/base/clock.h"'),
    "common/base/CMakeLists.txt": "causeway_library(base SOURCES clock.cc)\n",
    "common/params/plan.h": header('"common/base/clock.h"',
                                   '"causeway/v1/config.pb.h"'),
    "common/params/plan.cc": source('"common/params/plan.h"'),
    "common/params/CMakeLists.txt": "causeway_library(params SOURCES plan.cc\n"
                                    "  DEPS causeway::base)\n",
    "server/round/round.h": header('"common/params/plan.h"'),
    "server/round/round.cc": source('"server/round/round.h"', '"common/base/clock.h"'),
    "server/round/CMakeLists.txt": "causeway_library(round SOURCES round.cc  # pure\n"
                                   "  DEPS causeway::params)\n",
    "server/service/service.cc": source("<grpcpp/server.h>", '"server/round/round.h"'),
    "server/service/CMakeLists.txt":
        "causeway_library(service SOURCES service.cc DEPS causeway::round)\n",
    "worker/link/grpc_exchange.cc": source('"causeway/v1/exchange.grpc.pb.h"'),
    "worker/link/CMakeLists.txt": "causeway_library(link SOURCES grpc_exchange.cc)\n",
    "tests/unit/round_test.cc": source('"gtest/gtest.h"', '"server/round/round.h"'),
    "tests/unit/CMakeLists.txt":
        "causeway_test(round_test SOURCES round_test.cc DEPS causeway::round)\n",
}


class CheckTreeTest(unittest.TestCase):
    def violations(self, changes):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**SOUND, **changes}.items():
                if text is None:
                    continue
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return check_tree.check(root)

    def expect_one(self, changes, *parts):
        found = self.violations(changes)
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def test_a_sound_tree_passes(self):
        self.assertEqual(self.violations({}), [])

    def test_common_must_not_include_server_or_worker(self):
        self.expect_one(
            {"common/base/clock.cc": source('"common/base/clock.h"', '"server/round/round.h"'),
             "common/base/CMakeLists.txt":
                 "causeway_library(base SOURCES clock.cc DEPS causeway::round)\n"},
            "common/base/clock.cc:2", "common must not include server")

    def test_server_and_worker_must_not_include_each_other(self):
        self.expect_one(
            {"worker/sync/sync.cc": source('"server/round/round.h"'),
             "worker/sync/CMakeLists.txt": "causeway_library(sync SOURCES sync.cc "
                                           "DEPS causeway::round)\n"},
            "worker/sync/sync.cc:1", "worker must not include server")
        self.expect_one(
            {"worker/sync/sync.h": header(),
             "server/round/round.cc": source('"server/round/round.h"', '"worker/sync/sync.h"'),
             "server/round/CMakeLists.txt": "causeway_library(round SOURCES round.cc DEPS "
                                            "causeway::params causeway::sync)\n"},
            "server/round/round.cc:2", "server must not include worker")

    def test_only_tests_include_tests(self):
        self.expect_one(
            {"tests/unit/fake.h": header(),
             "server/round/round.cc": source('"server/round/round.h"', '"tests/unit/fake.h"')},
            "server/round/round.cc:2", "must not include tests")

    def test_layers_of_common_point_down(self):
        self.expect_one(
            {"common/base/clock.h": header('"common/params/plan.h"'),
             "common/base/CMakeLists.txt":
                 "causeway_library(base SOURCES clock.cc DEPS causeway::params)\n"},
            "common/base/clock.h:2", "must not include common/params")

    def test_side_folders_stand_on_base_alone_and_below_nothing(self):
        log = header('"common/params/plan.h"')
        use = source('"server/round/round.h"', '"common/telemetry/log.h"')
        self.expect_one({"common/telemetry/log.h": log, "server/round/round.cc": use},
                        "common/telemetry/log.h:2", "must not include common/params")
        self.expect_one(
            {"common/telemetry/log.h": header(),
             "common/params/plan.cc": source('"common/params/plan.h"',
                                             '"common/telemetry/log.h"')},
            "common/params/plan.cc:2", "must not include common/telemetry")

    def test_a_new_folder_of_common_needs_a_layer(self):
        self.expect_one(
            {"common/extra/thing.cc": "", "common/extra/CMakeLists.txt":
                "causeway_library(extra SOURCES thing.cc)\n"},
            "common/extra", "has no layer")

    def test_base_knows_no_messages(self):
        self.expect_one(
            {"common/base/clock.cc": source('"common/base/clock.h"',
                                            '"causeway/v1/config.pb.h"')},
            "common/base/clock.cc:2", "protocol's messages")

    def test_the_core_includes_neither_grpc_nor_cuda(self):
        for include in ("<grpcpp/grpcpp.h>", "<grpc/status.h>", '"causeway/v1/admin.grpc.pb.h"'):
            self.expect_one(
                {"server/round/round.cc": source('"server/round/round.h"', include)},
                "server/round/round.cc:2", "reach gRPC")
        for include in ("<cuda_runtime.h>", "<cublasLt.h>", "<nccl.h>", "<cub/cub.cuh>"):
            self.expect_one(
                {"server/round/round.cc": source('"server/round/round.h"', include)},
                "server/round/round.cc:2", "reach CUDA")

    def test_the_core_does_not_reach_grpc_through_a_header(self):
        self.expect_one(
            {"common/rpc/channel.h": header("<grpcpp/channel.h>"),
             "server/round/round.cc": source('"server/round/round.h"',
                                             '"common/rpc/channel.h"')},
            "server/round/round.cc:1", "common/rpc/channel.h -> grpcpp/channel.h")

    def test_device_code_is_not_core(self):
        self.expect_one(
            {"worker/train/step.cu": "", "worker/train/CMakeLists.txt":
                "causeway_library(train SOURCES step.cu)\n"},
            "worker/train/step.cu", "device code")

    def test_the_core_must_not_use_grpc(self):
        self.expect_one(
            {"worker/sync/engine.cc": source("<grpcpp/grpcpp.h>"),
             "worker/sync/CMakeLists.txt":
                 "causeway_library(sync SOURCES engine.cc)\n"},
            "worker/sync/engine.cc:1", "reach gRPC")

    def test_includes_are_written_from_the_root_and_exist(self):
        self.expect_one({"common/base/clock.cc": source('"clock.h"', '"common/base/clock.h"')},
                        "common/base/clock.cc:1", "from the root")
        self.expect_one({"common/base/clock.cc": source('"common/base/clock.h"',
                                                        '"common/base/gone.h"')},
                        "common/base/clock.cc:2", "there is no common/base/gone.h")
        self.expect_one({"common/base/clock.cc": source('<common/base/clock.h>')},
                        "common/base/clock.cc:1", "with quotes")

    def test_orphans_are_found(self):
        self.expect_one({"server/round/old.cc": ""}, "server/round/old.cc", "lists this file")
        self.expect_one({"server/round/old.h": header('"server/round/old.h"')},
                        "server/round/old.h", "nothing includes")
        self.expect_one({"server/round/old.cc": "", "server/round/CMakeLists.txt":
                         SOUND["server/round/CMakeLists.txt"] + "# old.cc\n"},
                        "server/round/old.cc", "lists this file")

    def test_headers_begin_with_pragma_once(self):
        for text in ("", "#include <cstdint>\n", "#ifndef CLOCK_H_\n#define CLOCK_H_\n#endif\n"):
            self.expect_one({"common/base/clock.h": text}, "common/base/clock.h", "#pragma once")

    def test_files_have_a_largest_length(self):
        self.assertEqual(self.violations({"deploy/tool.py": "x\n" * check_tree.MAX_LINES}), [])
        self.expect_one({"deploy/tool.py": "x\n" * (check_tree.MAX_LINES + 1)},
                        "deploy/tool.py", "601 lines")

    def test_a_folder_has_one_library(self):
        two = SOUND["server/round/CMakeLists.txt"]
        self.expect_one({"server/round/CMakeLists.txt": two + "add_library(plugin MODULE)\n"},
                        "server/round/CMakeLists.txt", "not plugin, round")
        self.expect_one({"server/round/CMakeLists.txt": two + "causeway_library(round_rpc)\n"},
                        "server/round/CMakeLists.txt", "not round, round_rpc")
        shared = two + "add_library(round_c SHARED round.cc)\n"
        self.assertEqual(self.violations({"server/round/CMakeLists.txt": shared}), [])
        either = "if(X)\n" + two + "else()\ncauseway_library(round)\nendif()\n"
        self.assertEqual(self.violations({"server/round/CMakeLists.txt": either}), [])

    def test_includes_and_deps_agree(self):
        self.expect_one(
            {"server/round/CMakeLists.txt": "causeway_library(round SOURCES round.cc)\n",
             "tests/unit/CMakeLists.txt": "causeway_test(round_test SOURCES round_test.cc DEPS "
                                          "causeway::round causeway::params)\n",
             "server/round/round.cc": source('"server/round/round.h"'),
             "server/service/CMakeLists.txt": "causeway_library(service SOURCES service.cc DEPS "
                                              "causeway::round causeway::params)\n"},
            "server/round/round.h:2", "without causeway::params")


if __name__ == "__main__":
    unittest.main()
