#!/usr/bin/python3
"""Plain TCP connections, the limit that transfers are compared with. In either direction:

    plain_tcp.py listen --address 10.77.0.1            prints its port, serves until its input ends
    plain_tcp.py connect --address 10.77.0.1 --port N --connections 4 --direction up|down|both
                 --warm_up 2 --seconds 5               prints JSON

Rates are those of what the receiving program has read between the ends of the warm-up and of the
measurement.
"""

import argparse
import json
import socket
import struct
import sys
import threading
import time

_BLOCK = 1 << 20
# A client's first bytes: "u" it sends, "d" it receives.
_UP, _DOWN = b"u", b"d"


def _receive_all(connection, total):
    """Adds what comes to total[0]."""
    buffer = bytearray(_BLOCK)
    try:
        while count := connection.recv_into(buffer):
            total[0] += count
    except OSError:
        pass


def _send_all(connection):
    block = bytes(_BLOCK)
    try:
        while True:
            connection.sendall(block)
    except OSError:
        pass


def _serve_one(connection, totals):
    """A report is asked for with "r": the bytes received so far from that client's machine."""
    with connection:
        kind = connection.recv(1)
        client = connection.getpeername()[0]
        if kind == _UP:
            total = [0]
            totals.append((client, total))
            _receive_all(connection, total)
        elif kind == _DOWN:
            _send_all(connection)
        elif kind == b"r":
            while connection.recv(1):
                connection.sendall(struct.pack(
                    "!Qd", sum(total[0] for sender, total in totals if sender == client),
                    time.monotonic()))


def listen(address):
    with socket.create_server((address, 0), backlog=64) as server:
        print(server.getsockname()[1], flush=True)
        totals = []

        def accept():
            while True:
                connection, _ = server.accept()
                threading.Thread(target=_serve_one, args=(connection, totals),
                                 daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


def _report(control):
    control.sendall(b"?")
    return struct.unpack("!Qd", control.recv(16, socket.MSG_WAITALL))


def _tcp_info(connection):
    """Selected fields of struct tcp_info: microseconds and segments."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    fields = struct.unpack_from("=24I", info, 8)
    min_rtt = struct.unpack_from("=I", info, 148)[0]
    return {"rtt_us": fields[15], "min_rtt_us": min_rtt, "retransmits": fields[23]}


def connect(options):
    def open_one(kind):
        connection = socket.create_connection((options.address, options.port))
        connection.sendall(kind)
        return connection

    before = time.monotonic()
    control = open_one(b"r")
    rtt_s = time.monotonic() - before
    _report(control)
    received = []
    senders = []
    for _ in range(options.connections):
        if options.direction in ("up", "both"):
            senders.append(open_one(_UP))
            threading.Thread(target=_send_all, args=(senders[-1],), daemon=True).start()
        if options.direction in ("down", "both"):
            total = [0]
            received.append(total)
            threading.Thread(target=_receive_all, args=(open_one(_DOWN), total),
                             daemon=True).start()
    marks = []
    for pause in (options.warm_up, options.seconds):
        time.sleep(pause)
        down = sum(total[0] for total in received)
        down_time = time.monotonic()
        up, up_time = _report(control)
        marks.append((up, up_time, down, down_time))
    (up_0, up_time_0, down_0, down_time_0), (up_1, up_time_1, down_1, down_time_1) = marks
    result = {"connections": options.connections, "rtt_ms": 1000 * rtt_s}
    if options.direction in ("up", "both"):
        result["up_bytes_per_s"] = (up_1 - up_0) / (up_time_1 - up_time_0)
        result["senders"] = [_tcp_info(sender) for sender in senders]
    if options.direction in ("down", "both"):
        result["down_bytes_per_s"] = (down_1 - down_0) / (down_time_1 - down_time_0)
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("listen", "connect"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--direction", choices=("up", "down", "both"), default="up")
    parser.add_argument("--warm_up", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    if options.role == "listen":
        listen(options.address)
    else:
        connect(options)


if __name__ == "__main__":
    main()
