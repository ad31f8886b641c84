#!/usr/bin/env python3
"""A site of numpy arrays as a program, for tests that kill, interrupt and resume it.

usage: numpy_trainer.py ADDRESS ID CHECKPOINT [--every N] [--hold STEP] [--ignore_ctrl_c] [--default_signals]

Writes a checkpoint every N steps, continues from it if it is there, and prints a line for every
step. At step STEP it waits for its end.
"""
import argparse
import os
import pickle
import signal
import sys
import time

import causeway
from runs import arrays, update


def main():
    parser = argparse.ArgumentParser()
    for name in ("address", "id", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--hold", type=int, default=-1)
    parser.add_argument("--ignore_ctrl_c", action="store_true")
    parser.add_argument("--default_signals", action="store_true")
    options = parser.parse_args()
    # Tests may have been started where it is ignored, and children inherit that.
    signal.signal(signal.SIGINT,
                  signal.SIG_IGN if options.ignore_ctrl_c else signal.default_int_handler)
    if options.default_signals:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
    values = arrays()
    state = None
    if os.path.exists(options.checkpoint):
        with open(options.checkpoint, "rb") as file:
            saved = pickle.load(file)
        for name, array in saved["values"].items():
            values[name][...] = array
        state = saved["causeway"]
    site = causeway.Site(options.address, values, id=options.id, state=state)
    print("opens", flush=True)
    with site:
        print(f"restored {site.info.restored}", flush=True)
        while not site.should_stop:
            step = site.current_step
            if options.every and step % options.every == 0:
                with open(options.checkpoint + ".new", "wb") as file:
                    pickle.dump({"values": values, "causeway": site.state_dict()}, file)
                os.replace(options.checkpoint + ".new", options.checkpoint)
                site.saved()
            print(f"step {step}", flush=True)
            if step == options.hold:
                while True:
                    time.sleep(60)
            update(values, step)
            site.step(100)
    print(f"done {site.finished}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted")
