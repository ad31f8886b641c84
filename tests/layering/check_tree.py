#!/usr/bin/env python3
"""Keeps the shape of the tree: who may include whom, and how files are kept.

usage: check_tree.py [ROOT]

Prints one line per violation, "path:line: what is wrong and what to do", and exits 1 if there is
any. The rules are those of CONTRIBUTING.md:

  includes   Written from the root of the tree, and the file exists. common includes neither server
             nor worker; server and worker never include each other; nothing includes tests but
             tests.
  layers     Within common: base < params < codec < transfer < identity < rpc, each including only what is
             below it. Beside them cli and telemetry include base alone, and no layer includes them;
             files includes what is below transfer. client, a member's side of a run, is above all
             layers and telemetry. Only params, codec, transfer, rpc, files and client know the
             protocol's messages.
  core       What decides and computes reaches neither gRPC nor CUDA, directly or through a header.
  files      Every source is listed in a CMakeLists.txt, every header is included by another file,
             headers begin with #pragma once, no file is longer than MAX_LINES.
  rooms      A folder of common, server or worker has one library, which may be there as a shared one, too.
  deps       A target that includes a header with code behind it has the target of that code
             among its DEPS, directly or through others.
"""
import os
import re
import sys

SOURCE_FOLDERS = ("common", "server", "worker", "tests")
PRODUCT_FOLDERS = ("common/", "server/", "worker/")
SOURCE_SUFFIXES = (".cc", ".c", ".cu")
HEADER_SUFFIXES = (".h", ".cuh")
LENGTH_SUFFIXES = SOURCE_SUFFIXES + HEADER_SUFFIXES + (".py", ".proto", ".sh")
MAX_LINES = 600

COMMON_LAYERS = ("base", "params", "codec", "transfer", "identity", "rpc")
COMMON_SIDES = ("cli", "telemetry")
FILES = "files"
CLIENT = "client"
WITHOUT_PROTO = ("base",) + COMMON_SIDES
CORE_FOLDERS = (
    "common/base", "common/params", "common/codec", "common/transfer", "common/files", "common/identity",
    "common/telemetry",
    "server/round", "server/outer", "server/store", "server/core", "server/views",
    "server/standby",
    "worker/backend/cpu", "worker/sync", "worker/train", "worker/data", "worker/model")

GRPC = re.compile(r"^(grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h$")
CUDA = re.compile(
    r"^(cuda|cublas|cudnn|curand|cusparse|cusolver|nccl|nvml|nvrtc)[^/]*\.(h|hpp|cuh)$"
    r"|^(cuda|cub|thrust|cooperative_groups|nvtx3|cudnn_frontend)/|^mma\.h$")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBRARY = re.compile(
    r"\b(?:causeway_(?:cuda_)?library|add_library)\s*\(\s*(\w+)\b(?!\s+SHARED\b)")
TARGET = re.compile(r"\bcauseway_(library|program|test)\s*\(([^()]*)\)")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def below(path, folder):
    return path.startswith(folder + "/")


class Tree:
    """All files of interest, with their includes, relative to the root and with '/'."""

    def __init__(self, root):
        self.root = root
        self.files = []       # Sources and headers.
        self.measured = []    # Whatever has a length limit.
        self.cmake_lists = []
        for top in SOURCE_FOLDERS + ("proto", "deploy"):
            for folder, folders, names in os.walk(os.path.join(root, top)):
                folders[:] = sorted(f for f in folders if f not in ("__pycache__", "build"))
                for name in sorted(names):
                    path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
                    if name == "CMakeLists.txt":
                        self.cmake_lists.append(path)
                    if name.endswith(LENGTH_SUFFIXES):
                        self.measured.append(path)
                    if top in SOURCE_FOLDERS and name.endswith(SOURCE_SUFFIXES + HEADER_SUFFIXES):
                        self.files.append(path)
        if os.path.exists(os.path.join(root, "CMakeLists.txt")):
            self.cmake_lists.append("CMakeLists.txt")
        self.text = {path: read(os.path.join(root, path)) for path in self.files}
        self.includes = {path: self._includes(path) for path in self.files}
        self.known = set(self.files)

    def _includes(self, path):
        found = []
        for number, line in enumerate(self.text[path].splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                found.append((number, match.group(1) == '"', match.group(2)))
        return found


def check_includes(tree):
    for path in tree.files:
        top = path.split("/")[0]
        for line, quoted, included in tree.includes[path]:
            where = f"{path}:{line}"
            target = included.split("/")[0]
            if target in SOURCE_FOLDERS and "/" in included:
                if not quoted:
                    yield f"{where}: {included} is ours: include it with quotes"
                if included not in tree.known:
                    yield f"{where}: there is no {included}"
            elif quoted and os.path.exists(
                    os.path.join(tree.root, os.path.dirname(path), included)):
                yield f"{where}: write {included} from the root of the tree"
            if top == "common" and target in ("server", "worker"):
                yield f"{where}: common must not include {target}: move what is shared down"
            if {top, target} == {"server", "worker"}:
                yield f"{where}: {top} must not include {target}: share through common or proto"
            if target == "tests" and top != "tests":
                yield f"{where}: {top} must not include tests"


def check_layers(tree):
    for path in tree.files:
        if not below(path, "common"):
            continue
        own = path.split("/")[1]
        if own not in COMMON_LAYERS + COMMON_SIDES + (FILES, CLIENT):
            yield f"{path}:1: common/{own} has no layer: give it one in tests/layering"
            continue
        for line, _, included in tree.includes[path]:
            where = f"{path}:{line}"
            if included.startswith("causeway/v1/") and own in WITHOUT_PROTO:
                yield f"{where}: common/{own} must do without the protocol's messages"
            if not below(included, "common"):
                continue
            other = included.split("/")[1]
            if other == own or other not in COMMON_LAYERS + COMMON_SIDES + (FILES, CLIENT):
                continue
            if own in COMMON_SIDES:
                allowed = ("base",)
            elif own == CLIENT:
                allowed = COMMON_LAYERS + ("telemetry",)
            elif own == FILES:
                allowed = COMMON_LAYERS[:COMMON_LAYERS.index("transfer")]
            else:
                allowed = COMMON_LAYERS[:COMMON_LAYERS.index(own)]
            if other not in allowed:
                yield (f"{where}: common/{own} must not include common/{other}; below it: "
                       f"{', '.join(allowed) or 'nothing'}")


def route_to(tree, start, forbidden):
    """The shortest chain of includes from `start` to a header that matches, or None."""
    seen = {start}
    routes = [[start]]
    for route in routes:
        for line, _, included in tree.includes[route[-1]]:
            if forbidden.search(included):
                return route + [included], line if len(route) == 1 else None
            if included in tree.known and included not in seen:
                seen.add(included)
                routes.append(route + [included])
    return None


def check_core(tree):
    for path in tree.files:
        if not any(below(path, f) for f in CORE_FOLDERS):
            continue
        if path.endswith((".cu", ".cuh")):
            yield f"{path}:1: device code does not belong to the core: put it in worker/backend"
        for name, forbidden in (("gRPC", GRPC), ("CUDA", CUDA)):
            found = route_to(tree, path, forbidden)
            if found:
                route, line = found
                yield (f"{path}:{line or 1}: the core must not reach {name}: "
                       f"{' -> '.join(route[1:])}")


def strip_comments(text):
    return "\n".join(line.split("#", 1)[0] for line in text.splitlines())


def listed_sources(tree):
    """Paths of all sources that some CMakeLists.txt names, relative to the root."""
    listed = set()
    for lists in tree.cmake_lists:
        folder = os.path.dirname(lists)
        for token in re.split(r"[\s()\"]+", strip_comments(read(os.path.join(tree.root, lists)))):
            if not token.endswith(SOURCE_SUFFIXES + HEADER_SUFFIXES):
                continue
            token = re.sub(r"^\$\{CMAKE_CURRENT_SOURCE_DIR\}/", "", token)
            from_root = re.sub(r"^\$\{(PROJECT|CMAKE)_SOURCE_DIR\}/", "", token)
            if from_root != token:
                listed.add(os.path.normpath(from_root))
            else:
                listed.add(os.path.normpath(os.path.join(folder, token)))
    return listed


def check_orphans(tree):
    listed = listed_sources(tree)
    included = {}
    for path in tree.files:
        for _, _, name in tree.includes[path]:
            included.setdefault(name, set()).add(path)
    for path in tree.files:
        if path.endswith(SOURCE_SUFFIXES):
            if path not in listed and path not in included:
                yield f"{path}:1: no CMakeLists.txt lists this file: list it or remove it"
        elif path not in listed and not included.get(path, set()) - {path}:
            yield f"{path}:1: nothing includes this header: use it or remove it"


def check_guards(tree):
    for path in tree.files:
        if not path.endswith(HEADER_SUFFIXES):
            continue
        text = tree.text[path]
        # Highway's headers are read once per instruction set: their guard is toggled.
        first = next((line for line in text.splitlines() if line.lstrip().startswith("#")), "")
        if "HWY_TARGET_TOGGLE" not in text and first != "#pragma once":
            yield f"{path}:1: a header begins with '#pragma once'"


def check_lengths(tree):
    for path in tree.measured:
        lines = read(os.path.join(tree.root, path)).count("\n")
        if lines > MAX_LINES:
            yield f"{path}:{MAX_LINES}: {lines} lines, more than {MAX_LINES}: split it by concept"


def check_rooms(tree):
    for lists in tree.cmake_lists:
        if not lists.startswith(PRODUCT_FOLDERS):
            continue
        names = sorted(set(LIBRARY.findall(strip_comments(read(os.path.join(tree.root, lists))))))
        if len(names) > 1:
            yield f"{lists}:1: one folder, one library, not {', '.join(names)}: give each a folder"


def parse_targets(tree):
    """(name, kind, folder, sources, deps) of every causeway_* call."""
    targets = []
    for lists in tree.cmake_lists:
        if lists == "CMakeLists.txt":
            continue
        folder = os.path.dirname(lists)
        for kind, body in TARGET.findall(strip_comments(read(os.path.join(tree.root, lists)))):
            words = body.split()
            parts = {"SOURCES": [], "DEPS": []}
            part = None
            for word in words[1:]:
                if word in parts:
                    part = word
                elif part:
                    parts[part].append(word)
            sources = {os.path.normpath(os.path.join(folder, s)) for s in parts["SOURCES"]}
            targets.append((words[0], kind, folder, sources, parts["DEPS"]))
    return targets


def source_of(header):
    return os.path.splitext(header)[0] + ".cc"


def check_deps(tree):
    targets = parse_targets(tree)
    deps_of = {f"causeway::{name}": set(deps) for name, kind, _, _, deps in targets
               if kind == "library"}
    libraries_in = {}  # By folder.
    libraries_with = {}  # By source file.
    for name, kind, folder, sources, _ in targets:
        if kind == "library":
            libraries_in.setdefault(folder, set()).add(f"causeway::{name}")
            for source in sources:
                libraries_with.setdefault(source, set()).add(f"causeway::{name}")

    def reachable(deps):
        seen, work = set(), list(deps)
        while work:
            dep = work.pop()
            if dep not in seen:
                seen.add(dep)
                work.extend(deps_of.get(dep, ()))
        return seen

    for name, kind, folder, sources, deps in targets:
        reached = reachable(deps)
        own = {f"causeway::{name}"} if kind == "library" else set()
        # A header beside a source of another target is that target's.
        headers = {p for p in tree.files if os.path.dirname(p) == folder
                   and p.endswith(HEADER_SUFFIXES)
                   and (source_of(p) in sources or source_of(p) not in tree.known)} \
            if len(libraries_in.get(folder, ())) == 1 and kind == "library" else set()
        complained = set()
        for path in sorted((sources | headers) & tree.known):
            for line, _, included in tree.includes[path]:
                source = source_of(included)
                needed = libraries_with.get(source, set())
                if source in sources or not needed:
                    continue
                if not needed & (reached | own) and included not in complained:
                    complained.add(included)
                    yield (f"{path}:{line}: target {name} includes {included} without "
                           f"{' or '.join(sorted(needed))} among its DEPS")


CHECKS = (check_includes, check_layers, check_core, check_orphans, check_guards, check_lengths,
          check_rooms, check_deps)


def check(root):
    tree = Tree(root)
    return [violation for rule in CHECKS for violation in rule(tree)]


def main(arguments):
    root = arguments[0] if arguments else os.path.join(os.path.dirname(__file__), "..", "..")
    tree = Tree(root)
    if not tree.files:
        print(f"check_tree: no sources under {root}: give the root of the tree", file=sys.stderr)
        return 2
    violations = check(root)
    for violation in violations:
        print(violation)
    print(f"{len(tree.files)} sources and headers, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
