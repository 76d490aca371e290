"""Called as a script: train on a cluster of three machines; one machine is lost, and another joins.

Prints the number of lost workers, and the distance of the end from that of the sequential engine.
"""

import os
from collections.abc import Sequence

from ray.cluster_utils import Cluster as Machines
from tests.contract.problem import distance, federation, network

from kedge.algorithms import scaffold
from kedge.audit.training import run_state, train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.optimizers import SGD
from kedge.engines.choice.choose import Choice
from kedge.engines.engine import Order
from kedge.engines.ray.cluster import connected
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.shares import Share
from kedge.engines.ray.worker import WorkerSettings
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums

LOCAL = LocalTraining(1, 4, SGD(0.1), clip=1.0)
COHORTS = [[0, 1, 2, 3], [1, 3], [0, 1, 2], [3, 0]]


def main() -> None:
    os.environ.pop("RAY_OVERRIDE_RESOURCES", None)  # of the tests that started this script
    # 127.0.0.1 would be replaced by the machine's address in its network.
    local = {"node_ip_address": "127.0.0.2", "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **local})
    lost = machines.add_node(num_cpus=1, **local)
    machines.add_node(num_cpus=1, **local)

    class Disturbed(RayEngine):
        def train(self, order: Order, clients: Sequence[int]) -> Sums:
            if order.round == 2:
                machines.remove_node(lost, allow_graceful=False)
                machines.add_node(num_cpus=1, **local)
            return super().train(order, clients)

    algorithm, data = scaffold(), federation()
    model = network("batch", of=algorithm)
    sequential = Sequential(model, data)
    expected = run_state(train_rounds(algorithm, LOCAL, sequential, model, data, COHORTS), sequential)
    messages: list[str] = []
    with connected(machines.address) as cluster:
        settings = WorkerSettings(2, Share(1, 0), "cpu", "fp64", 1)
        engine = Disturbed(cluster, model, data, settings, messages.append)
        engine.build(Choice("sequential", False, 0, ""))
        found = run_state(train_rounds(algorithm, LOCAL, engine, model, data, COHORTS), engine)
        engine.close()
    machines.shutdown()
    print(len(messages), distance(expected, found))


if __name__ == "__main__":
    main()
