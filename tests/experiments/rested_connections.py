#!/usr/bin/env python3
"""How long an object takes over a long link on a plain TCP connection that rests in between.

    tests/experiments/rested_connections.py [--rate_mbit 20] [--rtt_ms 600] [--bytes 27000 51000 1000000]

Sends each object several times over the emulated link (tests/wan), two seconds apart, and prints when the
last of it has arrived, without the way itself: at first, and once nothing changes any more. What
server/planner/rested_connections.h counts on. Takes half a minute per size and needs root and
/dev/net/tun. --after_bytes: the connection carries so much beforehand, as those that fetched the state.
"""

import argparse
import json
import socket
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "wan"))

import network  # noqa: E402

PORT = 9000
PAUSE_S = 2
TIMES = 8


def receive(connection, size, done):
    left = size
    while left > 0:
        left -= len(connection.recv(min(left, 1 << 20)))
    done.append(time.monotonic())


def crossings(joined, size, after_bytes, rtt_s):
    """Seconds of each of TIMES objects, and the congestion control that they crossed by."""
    with joined.coordinator.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((network.ADDRESS, PORT))
        listener.listen()
        with joined.workers[0].socket() as sender:
            sender.connect((network.ADDRESS, PORT))
            receiver = listener.accept()[0]
            control = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            seconds = []
            with receiver:
                for one in [after_bytes] * (after_bytes > 0) + [size] * TIMES:
                    done = []
                    thread = threading.Thread(target=receive, args=(receiver, one, done))
                    thread.start()
                    start = time.monotonic()
                    sender.sendall(bytes(one))
                    thread.join()
                    seconds.append(done[0] - start - rtt_s / 2)
                    time.sleep(PAUSE_S)
    return seconds[-TIMES:], control.rstrip(b"\0").decode()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--rate_mbit", type=float, default=20)
    parser.add_argument("--rtt_ms", type=float, default=600)
    parser.add_argument("--bytes", type=int, nargs="+", default=[27000, 51000, 1000000])
    parser.add_argument("--after_bytes", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    network.skip_if_impossible()
    rows = []
    link = network.LinkSettings(rate_mbit=options.rate_mbit, rtt_ms=options.rtt_ms)
    with network.Network(options.bin.resolve() / "causeway-wan-link", [link]) as joined:
        for size in options.bytes:
            seconds, control = crossings(joined, size, options.after_bytes, options.rtt_ms / 1e3)
            rows.append({"bytes": size, "by_rate_s": 8e-6 * size / options.rate_mbit, "first_s": seconds[0],
                         "at_length_s": seconds[-1], "congestion_control": control})
            if not options.json:
                print(f"{size} bytes by {control}: {seconds[0]:.3f} s at first, {seconds[-1]:.3f} s at length; "
                      f"the rate alone: {rows[-1]['by_rate_s']:.3f} s", flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
