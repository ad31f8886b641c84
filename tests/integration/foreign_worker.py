"""A worker that shares no code with the project: written from proto/ and docs/ alone, with the
messages that protoc makes of proto/, and the codecs and the replica of tests/reference. It has no
model: an inner step adds noise."""

import importlib
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading

import grpc
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
from causeway_oracle import codecs, hashes, layout, streaming  # noqa: E402

PATIENCE_S = 120
CHUNK = 1 << 20


def make_messages():
    with tempfile.TemporaryDirectory(prefix="causeway_messages_") as folder:
        names = ["config", "session", "exchange"]
        subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}",
                        *(f"causeway/v1/{name}.proto" for name in names)], check=True)
        sys.path.insert(0, folder)
        return [importlib.import_module(f"causeway.v1.{name}_pb2") for name in names]


CONFIG, SESSION, EXCHANGE = make_messages()
WIRE_VERSION = int(re.search(r"The wire version is (\d+)\.",
                             (ROOT / "proto/causeway/v1/session.proto").read_text())[1])


class Refused(Exception):
    """Of a transfer: google.rpc.Code and message."""


class Stream:
    """What this side says over a call: a queue, so that any thread may say something."""

    def __init__(self, kind):
        self.kind = kind
        self._queue = queue.SimpleQueue()

    def __iter__(self):
        return iter(self._queue.get, None)

    def say(self, **message):
        self._queue.put(self.kind(**message))

    def half_close(self):
        self._queue.put(None)


def call(channel, streams, method, said, heard):
    return getattr(channel, streams)(
        f"/causeway.v1.{method}", request_serializer=said.SerializeToString,
        response_deserializer=heard.FromString)


def describe(channel, wire_version=WIRE_VERSION):
    return call(channel, "unary_unary", "Session/Describe", SESSION.DescribeRequest,
                SESSION.DescribeResponse)(
        SESSION.DescribeRequest(wire_version=wire_version), timeout=PATIENCE_S)


def bring_model(channel, worker_id, tensors, values):
    """`tensors`: [(name, shape)]; `values`: all of theirs, fp32."""
    run = describe(channel)
    assert run.awaits_model
    table = CONFIG.TensorTable(tensor=[
        CONFIG.TensorTable.Tensor(name=name, shape=shape) for name, shape in tensors])
    content = values.astype("<f4").tobytes()
    stream = Stream(SESSION.BringModelRequest)
    stream.say(header=SESSION.ModelHeader(
        run_id=run.run_id, wire_version=WIRE_VERSION, worker_id=worker_id, tensors=table,
        total_bytes=len(content), tree_hash=hashes.tree_hash(content)))
    answer = call(channel, "stream_unary", "Session/BringModel", SESSION.BringModelRequest,
                  SESSION.BringModelResponse).future(iter(stream), timeout=PATIENCE_S)
    held = dict(answer.initial_metadata()).get("causeway-held-bytes", len(content))  # Without: it is refused.
    for offset in range(int(held), len(content), CHUNK):
        stream.say(chunk=SESSION.ModelChunk(offset=offset, data=content[offset:offset + CHUNK]))
    stream.half_close()
    answer.result()


class Lanes:
    """The lanes of one process; what the coordinator says over any of them is in `heard`."""

    def __init__(self, channel, count, **greeting):
        self.heard = queue.SimpleQueue()
        self.lanes = []
        self.ends = []
        for number in range(count):
            lane = Stream(EXCHANGE.LaneMessage)
            lane.say(control=EXCHANGE.LaneControl(greeting=EXCHANGE.Greeting(
                wire_version=WIRE_VERSION, lane=number, **greeting)))
            answers = call(channel, "stream_stream", "Exchange/Carry", EXCHANGE.LaneMessage,
                           EXCHANGE.LaneMessage)(iter(lane), timeout=PATIENCE_S)
            self.lanes.append(lane)
            self.ends.append(answers)
            threading.Thread(target=self._hear, args=[lane, answers], daemon=True).start()

    def _hear(self, lane, answers):
        came = 0
        try:
            for message in answers:
                self.heard.put(message)
                if message.HasField("chunk"):
                    came += 1
                    lane.say(control=EXCHANGE.LaneControl(
                        acknowledgement=EXCHANGE.Acknowledgement(chunks=came)))
        except grpc.RpcError:
            pass
        self.heard.put(None)

    def control(self, number, **message):
        self.lanes[number].say(control=EXCHANGE.LaneControl(**message))

    def messages(self, transfer):
        """Those of a transfer, and acknowledgements; Refused if it has that outcome."""
        while True:
            message = self.heard.get(timeout=PATIENCE_S)
            assert message is not None, "a lane ended"
            if message.HasField("chunk"):
                if message.chunk.transfer == transfer:
                    yield message.chunk
                continue
            said = getattr(message.control, message.control.WhichOneof("message"))
            if isinstance(said, EXCHANGE.Outcome) and said.transfer == transfer and said.code:
                raise Refused(said.code, said.message)
            if getattr(said, "transfer", transfer) == transfer:
                yield said

    def half_close(self):
        """Returns the status codes."""
        for lane in self.lanes:
            lane.half_close()
        return [end.code() for end in self.ends]


class Worker:
    def __init__(self, address, worker_id, process):
        self.channel = grpc.insecure_channel(address)
        self.id = worker_id
        self.process = process
        self.run = describe(self.channel)
        self.config = self.run.config
        self.plan = hashes.Plan(self.config)
        self.lanes = Lanes(self.channel, 2, run_id=self.run.run_id, worker_id=worker_id,
                           process=process)
        self.transfers = 0
        self.started = threading.Event()
        self.left = threading.Event()
        self.step = self.tokens = 0
        self.sent = {}   # (fragment, round): (object, tokens).
        self.heard = {}  # (fragment, round): PullHeader.

    def join(self, **changes):
        self.session = Stream(SESSION.WorkerMessage)
        self.session.say(join=SESSION.Join(**{
            "worker_id": self.id, "run_id": self.run.run_id, "wire_version": WIRE_VERSION,
            "config_hash": hashes.config_hash(self.config), "plan_hash": self.plan.hash(),
            "process_nonce": self.process, "own_data": True, **changes}))
        self.orders = call(self.channel, "stream_stream", "Session/Attach", SESSION.WorkerMessage,
                           SESSION.CoordinatorMessage)(iter(self.session), timeout=PATIENCE_S)
        self.welcome = next(self.orders).welcome
        for task in (self._obey, self._beat):
            threading.Thread(target=task, daemon=True).start()

    def _obey(self):
        try:
            for message in self.orders:
                if message.directive.action == SESSION.Directive.START:
                    self.started.set()
        except grpc.RpcError:
            pass  # code() says why.

    def _beat(self):
        while not self.left.wait(self.welcome.lease_ms / 3000):
            self.session.say(heartbeat=SESSION.Heartbeat(
                step=self.step, tokens=self.tokens, checkpoint_step=-1))

    def ready(self):
        self.session.say(ready=SESSION.Ready(step=self.welcome.run_step, anew=True))
        assert self.started.wait(PATIENCE_S)

    def leave(self):
        """Returns the status code of the session."""
        self.left.set()
        self.session.say(leave=SESSION.Leave(reason=SESSION.Leave.FINISHED))
        self.session.half_close()
        return self.orders.code()

    def want(self, **want):
        """Returns (the header announced, the object)."""
        self.transfers += 1
        number = self.transfers
        self.lanes.control(1, want=EXCHANGE.Want(transfer=number, **want))
        header, chunks = None, {}
        for said in self.lanes.messages(number):
            if isinstance(said, EXCHANGE.Announcement):
                header = said.header
                self.lanes.control(1, holding=EXCHANGE.Holding(transfer=number))
            elif isinstance(said, EXCHANGE.Chunk):
                assert hashes.xxh3(said.data) == said.checksum
                chunks[said.offset] = said.data
                if sum(map(len, chunks.values())) == header.total_bytes:
                    content = b"".join(data for _, data in sorted(chunks.items()))
                    assert hashes.tree_hash(content) == header.object_hash
                    return header, content

    def state(self, fragment, **want):
        return self.want(object=EXCHANGE.Want.STATE, fragment=fragment, **want)

    def answer(self, fragment, round_):
        return self.want(object=EXCHANGE.Want.ANSWER, fragment=fragment, round=round_)

    def offer(self, content, **header):
        """Over both lanes in turn, the last chunk first, which comes damaged once."""
        self.transfers += 1
        number = self.transfers
        offer = EXCHANGE.Offer(transfer=number, header=EXCHANGE.PushHeader(
            incarnation=self.welcome.incarnation, epoch=self.welcome.epoch,
            total_bytes=len(content), object_hash=hashes.tree_hash(content), **header))
        for lane in range(2):
            self.lanes.control(lane, offer=offer)

        def send(chunk, lane, damage=0):
            data = content[chunk * CHUNK:(chunk + 1) * CHUNK]
            self.lanes.lanes[lane].say(chunk=EXCHANGE.Chunk(
                offset=chunk * CHUNK, checksum=hashes.xxh3(data) ^ damage, data=data,
                transfer=number))

        last = (len(content) - 1) // CHUNK
        for chunk in range(last, -1, -1):
            send(chunk, chunk % 2, damage=int(chunk == last))
        for said in self.lanes.messages(number):
            if isinstance(said, EXCHANGE.Damage):
                assert said.chunk == last
                send(last, (last + 1) % 2)
            if isinstance(said, EXCHANGE.Outcome):
                assert said.accepted.durable_bytes == len(content)
                return said.accepted

    def codec(self, direction):
        return codecs.CODECS[CONFIG.Codec.Name(getattr(self.config.sync, f"codec_{direction}"))]

    def fetch(self):
        """The published state, as a replica to train."""
        states = [self.state(fragment) for fragment in range(len(self.plan.ranges))]
        self.published = [header.published_hash for header, _ in states]
        self.initial = np.frombuffer(b"".join(content for _, content in states), "<f4")
        gaps = layout.gaps([(offset, self.plan.values(shape))
                            for _, shape, offset in self.plan.tensors])
        return streaming.Replica(
            self.initial, self.plan.ranges, gaps, self.codec("up"), self.codec("down"),
            {name: getattr(self.config.sync, name) for name in
             ("mixing", "keep_in_flight", "error_feedback_decay", "error_feedback")}, None)

    def send(self, replica, fragment, round_):
        content, tokens = replica.send(fragment)
        self.sent[fragment, round_] = content, tokens
        return self.offer(
            content, fragment=fragment, round=round_, codec=self.config.sync.codec_up,
            tokens=tokens, send_step=self.step, base_hash=self.published[fragment])

    def merge(self, replica, fragment, round_):
        header, answer = self.answer(fragment, round_)
        self.heard[fragment, round_] = header
        replica.merge(fragment, answer)
        self.published[fragment] = hashes.tree_hash(
            replica.published[self.plan.ranges[fragment]].astype("<f4").tobytes())
        assert self.published[fragment] == header.published_hash
        self.session.say(applied=SESSION.Applied(
            fragment=fragment, round=round_, published_hash=self.published[fragment]))

    def train(self, seed):
        """Joins and takes part until the budget is spent."""
        self.join()
        replica = self.fetch()
        self.ready()
        sync, last = self.config.sync, self.config.train.steps
        schedule = streaming.Schedule(len(self.plan.ranges), sync.steps_between_syncs,
                                      sync.overlap_steps)
        noise = np.random.default_rng(seed)
        values = np.zeros(self.plan.size, np.float32)  # Gaps stay as they are.
        for _, shape, offset in self.plan.tensors:
            values[offset:offset + self.plan.values(shape)] = 1
        for step in range(1, last + sync.overlap_steps + 1):
            if step <= last:
                self.step = step
                replica.local += values * noise.normal(0, 0.01, values.size).astype(np.float32)
                replica.count_tokens(100 * seed)
                self.tokens += 100 * seed
                for fragment, round_ in schedule.sends(step):
                    self.send(replica, fragment, round_)
            for fragment, round_ in schedule.merges(step):
                self.merge(replica, fragment, round_)
