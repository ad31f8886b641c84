"""hivemind: Optimizer with local updates, whose state is averaged in the background once an epoch.

fp16, as its guide says; epochs and matchmaking as short as they go well with each other. The server is
the first peer of its hash table, by which the others find each other.
"""

import time
from pathlib import Path

PERIOD = 32


def server(cell):
    return cell.task("server")


def serve(specification):
    import hivemind

    folder = Path(specification["folder"])
    dht = hivemind.DHT(start=True, host_maddrs=[f"/ip4/{specification['hub']}/tcp/{specification['port']}"],
                       use_relay=False, use_auto_relay=False, identity_path=str(folder / "identity"))
    (folder / "first-peer").write_text(str(dht.get_visible_maddrs()[0]))
    while True:
        time.sleep(60)


def train(task):
    import hivemind

    first = (task.folder / "first-peer").read_text()
    dht = hivemind.DHT(start=True, host_maddrs=[f"/ip4/{task.address}/tcp/{task.port}"], initial_peers=[first],
                       use_relay=False, use_auto_relay=False)
    half = hivemind.compression.Float16Compression()
    optimizer = hivemind.Optimizer(
        dht=dht, run_id="peers", batch_size_per_step=task.batch, target_batch_size=PERIOD * task.batch * task.sites,
        optimizer=task.optimizer, use_local_updates=True, matchmaking_time=2.0, averaging_timeout=20.0,
        state_averaging_compression=half, load_state_compression=half, verbose=True,
        averager_opts={"request_timeout": 1.0},  # Less than matchmaking takes, else it may block itself.
        tracker_opts={"min_refresh_period": 0.5, "max_refresh_period": 2.0, "default_refresh_period": 1.0})
    task.ready()
    begun = task.folder / f"begun-{task.site}"
    late = task.site >= task.sites or begun.exists()
    begun.touch()
    if late:
        optimizer.load_state_from_peers()
    for step in range(optimizer.local_epoch * PERIOD if late else 0, task.steps):
        task.step(step, optimizer=optimizer)
    # What is still being averaged belongs to the result.
    optimizer.state_averager.step(wait_for_delayed_updates=True, apply_delayed_updates=True)
    return task.values()
