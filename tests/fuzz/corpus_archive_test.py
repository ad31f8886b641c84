#!/usr/bin/env python3
"""The archives of stored inputs: what is stored, who writes and who replays them.

Usage: corpus_archive_test.py FUZZ_CHUNK, the program that replays the target chunk.
"""
import contextlib
import io
import os
import runpy
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import corpus_archive

CORPUS = corpus_archive.FOLDER
INPUTS = {"cut": b"\x00" * 19, "empty": b"", "finding_long": bytes(range(256)) * 4, "whole": b"x" * 512}


class CorpusArchiveTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.archive = os.path.join(folder.name, "chunk.tar")
        corpus_archive.FOLDER = folder.name
        self.addCleanup(setattr, corpus_archive, "FOLDER", CORPUS)

    def write(self, content):
        with open(self.archive, "wb") as file:
            file.write(content)

    def replay(self):
        """Exit status and the lines of the replaying program."""
        run = subprocess.run([self.program, f"--corpus={self.folder}"], stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=60)
        return run.returncode, run.stderr.splitlines()

    def add(self, *arguments):
        """Exit status and output of tests/fuzz/add."""
        with contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()) as error:
            status = runpy.run_path(os.path.join(os.path.dirname(__file__), "add"))["main"](list(arguments))
        return status, out.getvalue() + error.getvalue()

    def test_what_is_stored_is_whole_and_nothing_lies_beside_it(self):
        names = sorted(os.listdir(CORPUS))
        self.assertGreaterEqual(len(names), 18)
        for name in names:
            self.assertTrue(name.endswith(".tar"), f"{name}: store inputs with tests/fuzz/add")
            self.assertTrue(corpus_archive.read(os.path.join(CORPUS, name)), f"{name} is empty")

    def test_every_input_is_replayed_by_its_name(self):
        self.write(corpus_archive.pack(INPUTS))
        self.assertEqual(self.replay(), (0, [f"{self.archive}: {name}" for name in INPUTS]))

    def test_an_archive_that_is_cut_anywhere_is_refused(self):
        whole = corpus_archive.pack(INPUTS)
        used = whole.rstrip(b"\0")
        for size in range(0, len(used) + 1, 256):
            self.write(whole[:size])
            with self.subTest(size=size), self.assertRaises(corpus_archive.ArchiveError) as raised:
                corpus_archive.read(self.archive)
            self.assertIn(self.archive, str(raised.exception))
            status, lines = self.replay()
            self.assertEqual((status, len(lines)), (1, 1))
            self.assertIn(f"{self.archive}: it is cut short", lines[0])

    def test_a_damaged_header_is_refused(self):
        for offset in (0, 124, 148, 156, 257):
            damaged = bytearray(corpus_archive.pack(INPUTS))
            damaged[1024 + offset] ^= 1  # In the second file's header.
            self.write(damaged)
            with self.subTest(offset=offset), self.assertRaisesRegex(corpus_archive.ArchiveError,
                                                                     self.archive):
                corpus_archive.read(self.archive)
            status, lines = self.replay()
            self.assertEqual(status, 1)
            self.assertIn(f"{self.archive}: byte 1024 should begin a file", lines[-1])

    def test_a_target_without_inputs_fails(self):
        missing = f"{self.archive} has no inputs: make them with `tests/fuzz/run --seconds 60 chunk`"
        for content in (None, corpus_archive.pack({})):
            if content is not None:
                self.write(content)
            status, lines = self.replay()
            self.assertEqual((status, len(lines)), (1, 1))
            self.assertIn(missing, lines[0])

    def test_inputs_are_added_as_files_folders_and_archives(self):
        loose = os.path.join(self.folder, "loose")
        corpus_archive.write_folder({"a": b"1", "b": b"2"}, loose)
        status, said = self.add("chunk", os.path.join(loose, "a"), "--name=finding_one")
        self.assertEqual((status, said), (0, f"{self.archive}: 1 added, 1 inputs\n"))
        self.assertEqual(self.add("chunk", loose)[1], f"{self.archive}: 2 added, 3 inputs\n")
        other = os.path.join(self.folder, "other.tar")
        with open(other, "wb") as file:
            file.write(corpus_archive.pack({"b": b"2", "c": b"3"}))
        self.assertEqual(self.add("chunk", other)[1], f"{self.archive}: 1 added, 4 inputs\n")
        self.assertEqual(corpus_archive.read(self.archive),
                         {"finding_one": b"1", "a": b"1", "b": b"2", "c": b"3"})

    def test_what_is_stored_is_not_overwritten(self):
        self.write(corpus_archive.pack({"a": b"1"}))
        corpus_archive.write_folder({"a": b"2", "b c": b"3"}, os.path.join(self.folder, "loose"))
        for name, part in (("a", "has another input named a"), ("b c", "'b c' cannot be stored"),
                           ("none", "none")):
            status, said = self.add("chunk", os.path.join(self.folder, "loose", name))
            self.assertEqual(status, 2)
            self.assertIn(part, said)
        self.assertEqual(corpus_archive.read(self.archive), {"a": b"1"})


if __name__ == "__main__":
    CorpusArchiveTest.program = sys.argv.pop()
    unittest.main()
