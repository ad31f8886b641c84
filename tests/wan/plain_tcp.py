#!/usr/bin/python3
"""Plain TCP connections, the limit that transfers are compared with. In both directions at once:

    plain_tcp.py listen --address 10.77.0.1            prints its port, serves until its input ends
    plain_tcp.py connect --address 10.77.0.1 --port N --connections 4 --warm_up 2 --seconds 5
                                                       prints JSON

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
    for _ in range(options.connections):
        threading.Thread(target=_send_all, args=(open_one(_UP),), daemon=True).start()
        received.append([0])
        threading.Thread(target=_receive_all, args=(open_one(_DOWN), received[-1]), daemon=True).start()
    marks = []
    for pause in (options.warm_up, options.seconds):
        time.sleep(pause)
        down = sum(total[0] for total in received)
        down_time = time.monotonic()
        up, up_time = _report(control)
        marks.append((up, up_time, down, down_time))
    (up_0, up_time_0, down_0, down_time_0), (up_1, up_time_1, down_1, down_time_1) = marks
    print(json.dumps({"connections": options.connections, "rtt_ms": 1000 * rtt_s,
                      "up_bytes_per_s": (up_1 - up_0) / (up_time_1 - up_time_0),
                      "down_bytes_per_s": (down_1 - down_0) / (down_time_1 - down_time_0)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("listen", "connect"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--warm_up", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    if options.role == "listen":
        listen(options.address)
    else:
        connect(options)


if __name__ == "__main__":
    main()
