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

    def test_what_is_stored_is_replayed_and_nothing_and_what_is_damaged_are_refused(self):
        whole = corpus_archive.pack(INPUTS)
        for content, refused in ((whole, None), (whole[:-1024], self.archive), (whole[:700], self.archive),
                                 (whole[:1024] + b"\1" + whole[1025:], self.archive),
                                 (corpus_archive.pack({}), "has no inputs: make them with"), (None, "has no inputs")):
            if content is None:
                os.unlink(self.archive)
            else:
                with open(self.archive, "wb") as file:
                    file.write(content)
            if refused is None:
                self.assertEqual(corpus_archive.replay(self.program), 0)
                continue
            with self.assertRaisesRegex(corpus_archive.ArchiveError, refused):
                corpus_archive.replay(self.program)

    def test_inputs_are_added_as_files_folders_and_archives_and_none_is_overwritten(self):
        loose, other = (os.path.join(self.folder, name) for name in ("loose", "other.tar"))
        corpus_archive.write_folder({"a": b"1", "b": b"2"}, loose)
        with open(other, "wb") as file:
            file.write(corpus_archive.pack({"b": b"2", "c": b"3"}))
        for arguments, added, stored in (((os.path.join(loose, "a"), "--name=finding_one"), 1, 1),
                                         ((loose,), 2, 3), ((other,), 1, 4)):
            self.assertEqual(self.add("chunk", *arguments),
                             (0, f"{self.archive}: {added} added, {stored} inputs\n"))
        stored = {"finding_one": b"1", "a": b"1", "b": b"2", "c": b"3"}
        self.assertEqual(corpus_archive.read(self.archive), stored)
        corpus_archive.write_folder({"a": b"2", "b c": b"3"}, loose)
        for name, part in (("a", "has another input named a"), ("b c", "'b c' cannot be stored"), ("none", "none")):
            status, said = self.add("chunk", os.path.join(loose, name))
            self.assertEqual(status, 2)
            self.assertIn(part, said)
        self.assertEqual(corpus_archive.read(self.archive), stored)


if __name__ == "__main__":
    CorpusArchiveTest.program = sys.argv.pop()
    unittest.main()
