"""A server with Flower's FedAvg, which writes the seconds of each round to a file."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    """FedAvg that notes the time at the end of each round."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        self.times: list[float] = []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies."""
        averaged = super().aggregate_train(server_round, replies)
        self.times.append(time.perf_counter())
        return averaged


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train all rounds, and write the seconds between their ends."""
    config = context.run_config
    strategy = Timed(int(config["clients"]))
    arrays = ArrayRecord([np.zeros(int(config["bytes"]) // 4, dtype=np.float32)])
    strategy.start(grid, arrays, num_rounds=int(config["rounds"]))
    seconds = np.diff(strategy.times).tolist()
    Path(str(config["results"])).write_text(json.dumps(seconds))
