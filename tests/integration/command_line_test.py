"""A flag is said once: what the programs define is what their help pages explain and shells complete."""

import pathlib
import re
import subprocess
import unittest

from cluster import COORDINATOR, CTL, WORKER, refusal_of, run_tool

ROOT = pathlib.Path(__file__).parents[2]
BOARDING = "common/client/boarding_flags.cc"
SOURCES = {COORDINATOR: ["server/*.cc", BOARDING], WORKER: ["worker/**/*.cc", BOARDING],
           CTL: ["server/ctl/*.cc", BOARDING]}


def completed(program, *words):
    """What bash offers for the last of these words, typed after the program."""
    typed = " ".join(f"'{word}'" for word in (program, *words))
    script = run_tool(program, "completion", "bash")[1]
    function = "_" + program.name.replace("-", "_")
    done = subprocess.run(
        ["bash", "-c", f"{script}\nCOMP_WORDS=({typed}) COMP_CWORD={len(words)}\n"
         f"{function}; echo ${{COMPREPLY[@]}}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def defined(program):
    """The flags of the sources that this program is made of."""
    return {name for source in (*SOURCES[program], "common/rpc/security_flags.cc") for path in ROOT.glob(source)
            for name in re.findall(r"^ABSL_FLAG\(\s*[^,]+,\s*(\w+)", path.read_text(), re.M)}


def explained(page):
    """The flags that have a line of their own, in order; a switch that is on is --noNAME."""
    return [name.removeprefix("no") if name == "noexit_when_drained" else name
            for name in re.findall(r"^ {8}--(\w+)", page, re.M)]


class CommandLineTest(unittest.TestCase):
    def test_what_is_defined_is_explained_once_and_completed(self):
        for program in SOURCES:
            with self.subTest(program=program.name):
                flags = defined(program)
                self.assertGreater(len(flags), 20)
                page = run_tool(program, "--help")[1]
                self.assertEqual(sorted(explained(page)), sorted(flags))
                self.assertLessEqual(max(map(len, page.splitlines())), 100)
                mentioned = set(re.findall(r"--(\w+)", page))
                self.assertLessEqual(mentioned - {"help", "version", "flagfile", "noexit_when_drained"}, flags)
                commands = set(re.findall(rf"^  {program.name} ([a-z-]+)", page, re.M))
                offered = completed(program, "")
                self.assertEqual(set(offered), commands | {"completion", "--help", "--version"})
                taken = set()
                for command in commands:
                    of_command = set(explained(run_tool(program, command, "--help")[1]))
                    offers = {word.strip("-").split("=")[0] for word in completed(program, command, "--")}
                    offers = {"exit_when_drained" if name == "noexit_when_drained" else name for name in offers}
                    self.assertEqual(offers - {"help"}, of_command, command)
                    taken |= of_command
                self.assertEqual(taken, flags)

    def test_what_moved_to_the_python_package_is_named(self):
        for command, place in (([WORKER, "import", "--from=x"], "huggingface"),
                               ([WORKER, "tokenize", "--tokenizer=x"], "tokenize"),
                               ([WORKER, "tokenize", "--input=x", "--jsonl_field", "text"], "tokenize"),
                               ([WORKER, "generate", "--tokenizer", "x"], "generate"),
                               ([WORKER, "eval", "--tasks=x"], "score"), ([CTL, "plan", "--params=1e9"], "plan"),
                               ([CTL, "export", "--tokenizer=x"], "huggingface export")):
            self.assertRegex(refusal_of(*command), rf"has moved: python3 -m causeway.*\b{place}\b")

    def test_commands_and_flags_are_completed(self):
        self.assertEqual(completed(CTL, "st"), ["status", "stop"])
        self.assertEqual(completed(CTL, "stop", "--at"), ["--at_step=", "--at_tokens="])
        self.assertEqual(completed(CTL, "config", "d"), ["diff"])
        self.assertEqual(completed(CTL, "config", "check", "c"), [])  # A file's name.
        self.assertEqual(completed(CTL, "config", "check", ""), [])
        self.assertEqual(completed(CTL, "config", "show", "--js"), ["--json"])
        self.assertEqual(completed(CTL, "export", "--js", "--to"), ["--token_file="])
        self.assertEqual(completed(WORKER, "generate", "--to"), ["--tokens=", "--top_k=", "--top_p="])

    def test_values_are_completed(self):
        # As bash splits --durability=r, and where no choice is known it offers files.
        self.assertEqual(completed(COORDINATOR, "serve", "--durability", "=", "r"), ["replicated"])
        self.assertEqual(completed(COORDINATOR, "serve", "--durability", "="), ["full", "none", "replicated"])
        self.assertEqual(completed(COORDINATOR, "serve", "--run_dir", "=", ""), [])
        self.assertEqual(completed(WORKER, "train", "--data", "="), [])
        self.assertEqual(completed(WORKER, "eval", "--shard_format", "=", "ui"), ["uint16", "uint32"])
        self.assertEqual(completed(CTL, "completion", ""), ["bash", "zsh"])


if __name__ == "__main__":
    unittest.main()
