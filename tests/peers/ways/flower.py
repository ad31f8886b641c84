"""Flower: FedAvg, one round every 64 steps, since each message starts a process that imports PyTorch.

Clients keep their optimizer in a file. The server's app saves each round's model, and goes on from it.
The app that Flower packs is a shim: everything is in this file.
"""

import json
import os
from pathlib import Path

PERIOD = 64
FINALS = ["server"]  # Whose result is the run's.
COUNT_FROM_START = True  # The weights of the first round are sent before the first step.
_PROJECT = """
[project]
name = "peers"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "peers"
[tool.flwr.app.components]
serverapp = "app:server_app"
clientapp = "app:client_app"

"""
_SHIM = """
import os, sys
sys.path.insert(0, os.environ["PEERS_FOLDER"])
from ways.flower import make_client_app, make_server_app
client_app = make_client_app()
server_app = make_server_app()
"""


def _program(cell, name):
    return os.path.join(os.path.dirname(cell.python), name)


def server(cell):
    return [_program(cell, "flower-superlink"), "--insecure", "--disable-runtime-dependency-installation",
            "--host", cell.hub, "--port", cell.port, "--database", cell.folder / "superlink.db"]


def after_sites(cell):
    """What starts the training once the sites are there."""
    app, home = cell.folder / "app", cell.folder / "flwr"
    for folder in (app, home):
        folder.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(_PROJECT)
    (app / "app.py").write_text(_SHIM)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "lo"\n[superlink.lo]\naddress = "{cell.hub}:{cell.port}"\ninsecure = true\n')
    return [_program(cell, "flwr"), "run", app, "lo", "--stream"]


def command(cell, site):
    return [_program(cell, "flower-supernode"), "--insecure", "--superlink", f"{cell.hub}:{cell.port}",
            "--port", 9094, "--node-config", f"partition-id={site}"]


def _specification():
    return json.loads(Path(os.environ["PEERS_SPECIFICATION"]).read_text())


def make_client_app():
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        import torch
        from task import Task

        task = Task(_specification(), context.node_config["partition-id"])
        task.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        kept = task.folder / f"optimizer-{task.site}.pt"
        if kept.exists():
            task.optimizer.load_state_dict(torch.load(kept))
        begin = (message.content["config"]["server-round"] - 1) * PERIOD
        for step in range(begin, min(begin + PERIOD, task.steps)):
            task.step(step)
        torch.save(task.optimizer.state_dict(), kept)
        return Message(content=RecordDict({"arrays": ArrayRecord(task.model.state_dict()),
                                           "metrics": MetricRecord({"num-examples": PERIOD})}),
                       reply_to=message)

    return app


def make_server_app():
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()

    @app.main()
    def main(grid, context):
        import torch
        from task import Task

        task = Task(_specification(), "server")
        kept = task.folder / "server.pt"
        state = torch.load(kept) if kept.exists() else {"round": 0, "model": task.model.state_dict()}

        class Resumed(FedAvg):
            def configure_train(self, server_round, arrays, config, grid):
                return super().configure_train(state["round"] + server_round, arrays, config, grid)

        def keep(server_round, arrays):
            torch.save({"round": state["round"] + server_round, "model": arrays.to_torch_state_dict()},
                       kept.with_suffix(".new"))
            kept.with_suffix(".new").rename(kept)

        begin = state["round"]
        result = Resumed(fraction_evaluate=0.0).start(
            grid=grid, initial_arrays=ArrayRecord(state["model"]), num_rounds=-(-task.steps // PERIOD) - begin,
            evaluate_fn=keep)
        task.finish(result.arrays.to_torch_state_dict())

    return app
