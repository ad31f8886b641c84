#!/usr/bin/env python3
"""The archives of stored inputs: what is stored, who writes and who replays them.

Usage: corpus_archive_test.py FUZZ_CHUNK, the program that replays the target chunk.
"""
import contextlib
import io
import os
import runpy
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

    def test_an_archive_that_is_cut_or_damaged_is_refused(self):
        whole = corpus_archive.pack(INPUTS)
        for content in (whole[:-1024], whole[:700], whole[:1024] + b"\1" + whole[1025:]):
            self.write(content)
            with self.assertRaisesRegex(corpus_archive.ArchiveError, self.archive):
                corpus_archive.read(self.archive)

    def test_all_that_is_stored_is_replayed_and_a_target_without_inputs_fails(self):
        self.write(corpus_archive.pack(INPUTS))
        self.assertEqual(corpus_archive.replay(self.program), 0)
        for content in (corpus_archive.pack({}), None):
            self.write(content) if content else os.unlink(self.archive)
            with self.assertRaisesRegex(corpus_archive.ArchiveError, "has no inputs: make them with"):
                corpus_archive.replay(self.program)

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
