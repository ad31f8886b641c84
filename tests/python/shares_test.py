"""Sites of several processes: who owns which values, how they get to their owners and back, and how what the
libraries say is carried."""

import ctypes
import gc
import itertools
import queue
import random
import threading
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import torch

from causeway import _links, _session, errors
from causeway._links import Links, Share
from causeway._session import Follower, Owned, Range
from causeway._site import BaseSite
from causeway.torch._group import Solo
from causeway.torch._parameters import Part, Trained
from causeway.torch._shares import cut, owned, shares
from causeway.torch._values import TorchValues, pages

SHAPES = [(7, 6), (), (5,), (4, 3, 5), (1, 9)]
TOTAL = [42, 1, 5, 60, 9]


def replicated(whole, ranks):
    return [Part(rank, (0,) * len(whole), whole, rank == 0) for rank in range(ranks)]


def chunks(length, count):
    """Of torch.chunk: begin and length."""
    size = -(-length // count)
    return [(min(at * size, length), max(0, min(size, length - at * size))) for at in range(count)]


def sharded(whole, ranks, dim=0, replicas=1):
    """By a dimension, in each of some groups of replicas; what has no such dimension is replicated."""
    if len(whole) <= dim:
        return replicated(whole, ranks)
    cuts = chunks(whole[dim], ranks // replicas)
    parts = []
    for rank in range(ranks):
        begin, length = cuts[rank % len(cuts)]
        offset, shape = [0] * len(whole), list(whole)
        offset[dim], shape[dim] = begin, length
        parts.append(Part(rank, tuple(offset), tuple(shape), rank < len(cuts)))
    return parts


LAYOUTS = {
    "replicas": lambda whole: replicated(whole, 3),
    "rows": lambda whole: sharded(whole, 3),
    "rows of more processes than rows": lambda whole: sharded(whole, 8),
    "rows in two groups": lambda whole: sharded(whole, 4, replicas=2),
    "columns": lambda whole: sharded(whole, 3, dim=1),
    "columns in two groups": lambda whole: sharded(whole, 4, dim=1, replicas=2),
    "the third dimension": lambda whole: sharded(whole, 2, dim=2),
}


def inside(part):
    return tuple(slice(at, at + size) for at, size in zip(part.offset, part.shape))


class SharesTest(unittest.TestCase):
    def test_every_value_has_one_owner_that_holds_it_if_parts_are_rows(self):
        for name, layout in LAYOUTS.items():
            parts = [layout(whole) for whole in SHAPES]
            found = shares(SHAPES, parts)
            for tensor, (whole, total) in enumerate(zip(SHAPES, TOTAL)):
                with self.subTest(name, whole=whole):
                    values = np.full(total, -1)
                    for share in found:
                        if share.tensor != tensor:
                            continue
                        self.assertTrue((values[share.begin:share.end] == -1).all())
                        values[share.begin:share.end] = share.rank
                        part = parts[tensor][share.rank]
                        if part.offset[1:] == (0,) * (len(whole) - 1) and part.shape[1:] == whole[1:]:
                            held = np.zeros(whole, bool)
                            held[inside(part)] = True
                            self.assertTrue(held.reshape(-1)[share.begin:share.end].all())
                    self.assertTrue((values >= 0).all())

    def test_those_that_hold_the_same_own_as_much_as_each_other_in_their_order(self):
        self.assertEqual(shares([(7, 6)], [replicated((7, 6), 4)]),
                         [Share(0, 0, 10, 0), Share(0, 10, 21, 1), Share(0, 21, 31, 2), Share(0, 31, 42, 3)])
        # Rows 0 to 3 are in 0 and 2, rows 4 to 6 in 1 and 3.
        self.assertEqual(shares([(7, 6)], [sharded((7, 6), 4, replicas=2)]),
                         [Share(0, 0, 12, 0), Share(0, 12, 24, 2), Share(0, 24, 33, 1), Share(0, 33, 42, 3)])
        self.assertEqual(shares([(7, 6)], [sharded((7, 6), 3, dim=1)]),
                         [Share(0, 0, 14, 0), Share(0, 14, 28, 1), Share(0, 28, 42, 2)])
        self.assertEqual(shares([()], [replicated((), 2)]), [Share(0, 0, 1, 1)])

    def test_what_lies_in_pieces_of_ranges(self):
        spans = [Range(0, 10, 100, 20), Range(1, 0, 120, 5)]
        self.assertEqual(owned(spans, [Owned(90, 104, 0), Owned(110, 122, 0), Owned(124, 200, 0)]),
                         [Range(0, 10, 100, 4), Range(0, 20, 110, 10), Range(1, 0, 120, 2), Range(1, 4, 124, 1)])
        self.assertEqual(owned(spans, [Owned(0, 100, 0), Owned(125, 126, 0)]), [])

    def test_boxes_are_the_values_in_order_contiguous_or_not(self):
        random_of = random.Random(1)
        for name, layout in LAYOUTS.items():
            for whole, total in zip(SHAPES, TOTAL):
                places = np.arange(total).reshape(whole)
                stretches = list(itertools.combinations(range(total + 1), 2))
                for part, (begin, end) in itertools.product(
                        layout(whole), random_of.sample(stretches, min(40, len(stretches)))):
                    held = places[inside(part)]
                    expected = held[(held >= begin) & (held < end)]
                    for contiguous in (True, False) if whole else (True,):
                        boxes = cut(Range(3, begin, 1000 + begin, end - begin), whole, part, contiguous)
                        mine = [(held.reshape(box.shape) if len(box.shape) == 1 else held)[box.inside].reshape(-1)
                                for box in boxes]
                        there = [np.lib.stride_tricks.as_strided(
                            np.arange(1000, 1000 + total)[box.at - 1000:], box.size,
                            [8 * step for step in box.strides]).reshape(-1) - 1000 for box in boxes]
                        for found in (mine, there):
                            self.assertEqual([value for values in found for value in values.tolist()],
                                             expected.tolist(), f"{name} {whole} {begin} {end}")

    def test_pages_are_of_one_stretch_each(self):
        base = 1 << 20
        self.assertEqual(pages(base, 40000, [(0, 1024), (1024, 2048), (4000, 4100), (9000, 10000)]),
                         [(base, 8192), (base + 12288, 8192), (base + 32768, 40000 - 32768)])
        self.assertEqual(pages(base + 64, 4000, [(0, 1000)]), [(base + 64, 4000)])


class ThreadTeam(Solo):
    """A process that is a thread."""

    def __init__(self, rank, size, barrier, queues):
        self.rank, self.size, self.leads = rank, size, rank == 0
        self._barrier, self._queues = barrier, queues

    def agree(self, function):
        function()
        self._barrier.wait(60)

    def exchange(self, outgoing, incoming):
        for rank, buffer in outgoing.items():
            self._queues[self.rank, rank].put(buffer.clone())
        for rank, buffer in incoming.items():
            buffer.copy_(self._queues[rank, self.rank].get(timeout=60))


class FakeHandle:
    """The library in one process: an arena, of which what it does not own is not a number."""

    def __init__(self, rank, values, pieces_of):
        self.values = np.full(values, np.nan, np.float32)
        self.before = np.full(values, np.nan, np.float32)
        self.own = np.zeros(values, bool)
        for piece in pieces_of[rank]:
            self.own[piece.begin:piece.end] = True
        self._pieces_of = pieces_of
        self.all = [self]
        self.calls = 0  # Of set_local.

    def pieces(self, rank):
        return self._pieces_of[rank]

    @staticmethod
    def exported(values):
        return (ctypes.c_float * values.size).from_buffer(values)

    def arena(self):
        return self.exported(self.values)

    def published(self):
        return self.exported(self.before)

    def set_own(self, values, published=False):
        (self.before if published else self.values)[self.own] = values[self.own]

    def local(self, span):
        """Of the process that leads."""
        out = np.full(span.count, np.nan, np.float32)
        here = slice(span.arena_offset, span.arena_offset + span.count)
        for one in self.all:
            out[one.own[here]] = one.values[here][one.own[here]]
        return out

    def set_local(self, span, values):
        self.calls += 1
        here = slice(span.arena_offset, span.arena_offset + span.count)
        for one in self.all:
            one.values[here][one.own[here]] = values[one.own[here]]


class Processes:
    """Values of a site of several processes, each a thread, or of one process.

    Tensors follow each other in the arena from the last one on. Fragments end inside rows, and what a process
    owns begins and ends anywhere.
    """

    def __init__(self, layout, dtypes, wholes, seed=0):
        self.parts = [layout(whole) for whole in SHAPES]
        self.size = len(self.parts[0])
        at, spans = 0, []
        for tensor in reversed(range(len(SHAPES))):
            spans.append(Range(tensor, 0, at, TOTAL[tensor]))
            at += TOTAL[tensor]
        self.total = at
        cuts = [0, at // 3, at - 11, at]
        self.fragments = [owned(spans, [Owned(begin, end, 0)]) for begin, end in zip(cuts, cuts[1:])]
        pieces_of = [[] for _ in range(self.size)]
        random_of = random.Random(seed)
        for fragment, (begin, end) in enumerate(zip(cuts, cuts[1:])):
            while begin < end:
                until = min(end, begin + random_of.randrange(1, 14))
                pieces_of[random_of.randrange(self.size)].append(Owned(begin, until, fragment))
                begin = until
        self.handles = [FakeHandle(rank, at, pieces_of) for rank in range(self.size)]
        self.handles[0].all = self.handles
        barrier = threading.Barrier(self.size)
        queues = {pair: queue.SimpleQueue() for pair in itertools.product(range(self.size), repeat=2)}
        self.tensors = []
        self.values = []
        for rank, handle in enumerate(self.handles):
            self.tensors.append([whole[inside(parts[rank])].to(dtype, copy=True)
                                 for whole, dtype, parts in zip(wholes, dtypes, self.parts)])
            if rank % 2 == 0:  # One is not contiguous, in some processes.
                self.tensors[-1][0] = self.tensors[-1][0].t().contiguous().t()
            trained = [Trained(f"t{at}", tensor, whole)
                       for at, (tensor, whole) in enumerate(zip(self.tensors[-1], SHAPES))]
            watch = mock.MagicMock()
            watch.check.return_value = False
            watch.values.return_value = np.zeros(0, np.float32)
            team = ThreadTeam(rank, self.size, barrier, queues) if self.size > 1 else Solo()
            self.values.append(TorchValues(trained, team, self.parts, watch))

    def attach(self):
        for values, handle in zip(self.values, self.handles):
            values.attach(handle, self.fragments)

    def all(self, work):
        """In all processes; what it gives in each."""
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, range(self.size)))

    def arena(self):
        """Of all of them; nobody has touched what another one owns."""
        for handle in self.handles:
            assert np.isnan(handle.values[~handle.own]).all()
        return self.handles[0].local(Range(0, 0, 0, self.total))

    def train(self, seed):
        """Changes the tensors, replicas alike."""
        for tensor, whole in enumerate(SHAPES):
            change = torch.randn(whole, generator=torch.Generator().manual_seed(100 * seed + tensor)) * 0.01
            for rank, tensors in enumerate(self.tensors):
                tensors[tensor] += change[inside(self.parts[tensor][rank])].to(tensors[tensor].dtype)

    def wholes(self):
        """The tensors, of which all replicas are the same."""
        found = []
        for tensor, whole in enumerate(SHAPES):
            values = torch.full(whole, float("nan"))
            for rank, tensors in enumerate(self.tensors):
                here = values[inside(self.parts[tensor][rank])]
                new = tensors[tensor].float()
                assert torch.equal(torch.where(here.isnan(), new, here), new)
                here.copy_(new)
            found.append(values)
        return found


class RedistributionTest(unittest.TestCase):
    def test_values_are_those_of_one_process(self):
        dtypes = {"float32": [torch.float32] * 5, "bfloat16": [torch.bfloat16] * 5,
                  "both": [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, torch.float16]}
        for (name, layout), (dtype, types) in itertools.product(LAYOUTS.items(), dtypes.items()):
            with self.subTest(name, dtype=dtype):
                self.check(layout, types)

    def check(self, layout, types):
        generator = torch.Generator().manual_seed(1)
        wholes = [torch.randn(whole, generator=generator) for whole in SHAPES]
        alone = Processes(lambda whole: replicated(whole, 1), types, wholes)
        several = Processes(layout, types, wholes)
        random_of = np.random.default_rng(2)
        # While it joins, in parts.
        for tensor, total in enumerate(TOTAL):
            for begin, count in ((0, total // 2), (total // 2, total - total // 2)):
                out = np.zeros(count, np.float32)
                several.all(lambda rank: several.values[rank].initial(
                    tensor, begin, out if rank == 0 else None, count))
                exact = wholes[tensor].to(types[tensor]).float().reshape(-1)[begin:begin + count]
                np.testing.assert_array_equal(out, exact.numpy())
        masters = [random_of.normal(size=alone.total).astype(np.float32) for _ in range(3)]
        published = random_of.normal(size=alone.total).astype(np.float32)
        for one in (alone, several):
            one.attach()
            for handle in one.handles:
                handle.set_own(masters[0])
                handle.set_own(published, published=True)
            one.all(lambda rank: one.values[rank].write([0, 1, 2]))
        for step in range(1, 4):
            touched = [[0, 2], [1], [0, 1, 2]][step - 1]
            for one in (alone, several):
                one.train(step)
                one.all(lambda rank: one.values[rank].read(touched))
            np.testing.assert_array_equal(several.arena(), alone.arena())
            for mine, theirs in zip(several.wholes(), alone.wholes()):
                self.assertTrue(torch.equal(mine, theirs))
            for one in (alone, several):  # A merge.
                changed = one.arena() * np.float32(0.5) + masters[1] * np.float32(0.5)
                for handle in one.handles:
                    handle.set_own(changed)
                one.all(lambda rank: one.values[rank].write([0, 1, 2] if step < 3 else [1]))
            for mine, theirs in zip(several.wholes(), alone.wholes()):
                self.assertTrue(torch.equal(mine, theirs))
        inner = threading.Barrier(several.size)

        def look(one, rank, found):
            with one.values[rank].replaced(one.handles[rank].published()):
                if one is several:
                    inner.wait(60)
                if rank == 0:
                    found.extend(one.wholes())
                if one is several:
                    inner.wait(60)

        before = several.wholes()
        shown, others = [], []
        several.all(lambda rank: look(several, rank, shown))
        look(alone, 0, others)
        for mine, theirs in zip(shown + several.wholes(), others + before):
            self.assertTrue(torch.equal(mine, theirs))
        # The process that leads alone keeps values, and takes them over again.
        kept = several.values[0].kept()
        np.testing.assert_array_equal(kept, alone.values[0].kept())
        for one in (alone, several):
            for handle in one.handles:
                handle.set_own(masters[2])
            one.values[0].restore(kept, [1])
        rounded = several.values[0]._rounded()  # Each fragment that has some was set at once.
        self.assertEqual(several.handles[0].calls, sum(bool(rounded[fragment]) for fragment in (0, 2)))
        np.testing.assert_array_equal(several.arena(), alone.arena())
        for one in (alone, several):
            self.assertIsNone(one.values[0].not_finite([0, 1, 2]))
            for handle in one.handles:
                handle.set_own(np.full(one.total, np.inf, np.float32))
            self.assertEqual(one.values[0].not_finite([2]), "t0")


class FakeLibrary:
    """The library's links: what is put into `outgoing` of an end is carried, and comes to `heard`."""

    ShareStruct = _links.lib.ShareStruct

    def __init__(self):
        self.ends = []
        self.kept = {}  # Of each end the message that it said last.
        self.freed = []

    def load(self):
        return self

    def causeway_links_close(self, links):
        self.ends[links.value - 1][0].put((-1, b""))

    def causeway_links_free(self, links):
        self.freed.append(links.value)

    def call(self, name, *arguments):
        getattr(self, name)(*arguments)

    def causeway_links_open(self, rank, ranks, links):
        self.ends.append((queue.Queue(), [queue.Queue() for _ in range(ranks)]))
        links._obj.value = len(self.ends)

    def causeway_links_outgoing(self, links, rank, message, size):
        outgoing, _ = self.ends[links.value - 1]
        rank._obj.value, sent = outgoing.get(timeout=60)
        message._obj.value, size._obj.value = 0, len(sent)
        if sent:
            kept = self.kept[links.value] = ctypes.create_string_buffer(sent, len(sent))
            message._obj.value = ctypes.addressof(kept)

    def causeway_links_incoming(self, links, rank, message, size):
        self.ends[links.value - 1][1][rank].put(ctypes.string_at(message, size) if size else b"")


class FakeCarrier:
    def __init__(self, rank, size, queues):
        self.rank, self.size, self.queues = rank, size, queues
        self.broken = set()

    def send(self, rank, message):
        if rank in self.broken:
            raise RuntimeError("connection reset")
        self.queues[self.rank, rank].put(None if message is None else np.frombuffer(message, np.uint8).copy())

    def receive(self, rank):
        message = self.queues[rank, self.rank].get(timeout=60)
        if isinstance(message, str):
            raise RuntimeError(message)
        return message


class LinksTest(unittest.TestCase):
    def setUp(self):
        self.library = FakeLibrary()
        patched = mock.patch.object(_links, "lib", self.library)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(gc.collect)  # Each test frees its own.
        self.queues = {pair: queue.SimpleQueue() for pair in itertools.product(range(3), repeat=2)}
        self.carriers = [FakeCarrier(rank, 3, self.queues) for rank in range(3)]
        self.links = [Links(carrier, [Share(0, 0, 1, 0)]) for carrier in self.carriers]
        self.addCleanup(self.links.clear)

    def say(self, rank, to, message):
        self.library.ends[rank][0].put((to, message))

    def heard(self, rank, of, *messages):
        """They are what comes next of that one."""
        for message in messages:
            self.assertEqual(self.library.ends[rank][1][of].get(timeout=60), message)

    def heard_all(self):
        for end in self.library.ends:
            for heard in end[1]:
                self.assertTrue(heard.empty())

    def ended(self, rank):
        for thread in self.links[rank]._threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())

    def test_messages_come_in_order_until_both_say_that_there_are_no_more(self):
        for rank in range(3):
            self.links[rank].run()
        said = [bytes([at]) * (at + 1) for at in range(50)]
        for message in said:
            for peer in (1, 2):
                self.say(0, peer, message)
                self.say(peer, 0, message[::-1] + b"!")
        for peer in (1, 2):
            self.heard(peer, 0, *said)
            self.heard(0, peer, *(message[::-1] + b"!" for message in said))
        for end in (1, 0, 2):  # Some by themselves, some in answer.
            for peer in (1, 2) if end == 0 else (0,):
                self.say(end, peer, b"")
            self.say(end, -1, b"")
        for rank in range(3):
            self.ended(rank)
            self.heard(rank, 0, *([b""] if rank else []))
        for peer in (1, 2):
            self.heard(0, peer, b"")
        self.heard_all()
        self.assertEqual(self.library.freed, [])
        self.links.clear()
        gc.collect()
        self.assertEqual(sorted(self.library.freed), [1, 2, 3])

    def test_one_that_is_gone_has_said_no_more_to_its_own_reader_alone(self):
        self.links[0].run()
        self.carriers[0].broken.add(1)
        self.queues[1, 0].put("connection closed")
        self.say(0, 1, b"lost")
        self.say(0, 2, b"carried")
        self.assertEqual(bytes(self.queues[0, 2].get(timeout=60)), b"carried")
        self.queues[2, 0].put(np.frombuffer(b"there", np.uint8))
        self.queues[2, 0].put(None)
        self.say(0, -1, b"")
        self.ended(0)
        self.heard(0, 1, b"")
        self.heard(0, 2, b"there", b"")
        self.heard_all()

    def test_a_process_that_ends_frees_its_site_first_and_waits_for_the_others(self):
        self.links[2].run()
        self.links[2].kept = kept = mock.Mock()

        def free():
            self.say(2, 0, b"")
            self.say(2, -1, b"")
            self.assertIs(self.queues[2, 0].get(timeout=60), None)
            self.queues[0, 2].put(None)  # In answer.

        self.links[2].free_site = mock.Mock(side_effect=free)
        self.links[2].end()
        self.ended(2)
        self.links[2].free_site.assert_called_once_with()
        self.assertIsNot(self.links[2].kept, kept)

    def test_one_that_follows_lasts_as_long_as_the_first_one_may_ask(self):
        self.links[1].run()
        self.links[1].lasts = True
        order = []

        def free():
            order.append("freed")
            self.say(1, -1, b"")

        self.links[1].free_site = free
        ending = threading.Thread(target=self.links[1].end)
        ending.start()
        self.queues[0, 1].put(np.frombuffer(b"save", np.uint8))
        order.append("asked")
        self.queues[0, 1].put(None)
        ending.join(60)
        self.assertFalse(ending.is_alive())
        self.assertEqual(order, ["asked", "freed"])
        self.heard(1, 0, b"save", b"")


class EndTest(unittest.TestCase):
    def test_one_that_follows_lasts_unless_it_has_failed(self):
        cancelled = errors.Cancelled("drained", "CANCELLED")
        for error, lasts in ((None, True), (KeyboardInterrupt(), True), (GeneratorExit(), True), (cancelled, True),
                             (SystemExit(0), True), (SystemExit(1), False), (ValueError("bad"), False)):
            with self.subTest(error=error):
                site = BaseSite("h:1", mock.MagicMock(), id="s")
                site._here = mock.Mock(spec=Follower)
                site.close(error)
                self.assertEqual(site._here.has_left.called, lasts)

    def test_links_of_a_follower_that_cannot_be_are_closed(self):
        links = mock.Mock()
        with self.assertRaises(TypeError):
            Follower({}, [("w", None)], links, b"")
        links.close.assert_called_once_with()

    def test_links_last_as_long_as_a_call_that_was_interrupted(self):
        class Thing:
            pass

        links = Thing()
        there = weakref.ref(links)
        with mock.patch.object(_session, "_in_use", []), mock.patch.object(_session, "lib") as library:
            _session._free(None, mock.Mock(busy=True), links)
            del links
            self.assertIsNotNone(there())
        library.load().causeway_site_free.assert_not_called()


if __name__ == "__main__":
    unittest.main()
