"""Called as a script: bytes and seconds of a round on a cluster of this machine, for the standard CNN.

Prints the megabytes that a worker receives and returns in a round, the milliseconds of a call of a worker
without work, the milliseconds per MB to store and read an object, and the milliseconds in which the driver
adds the sums of one worker and updates the server.
"""

import pickle
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from kedge.bench.workloads import standard
from kedge.core.server import broadcast, initial_server, server_update
from kedge.core.tree import tree_to
from kedge.engines.choice.choose import Choice
from kedge.engines.engine import Order
from kedge.engines.ray.arrays import order_with, sums_to_arrays, sums_to_tensors, to_arrays
from kedge.engines.ray.cluster import connected
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.shares import Share
from kedge.engines.ray.worker import WorkerSettings
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums

REPEATS = 50


def main() -> None:
    torch.set_num_threads(1)
    task = standard(1).task("cpu")
    stage, model, data = task.stages[0], task.model, task.federation
    params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
    server = initial_server(stage.algorithm, model, params, buffers)
    order = Order(0, 0, 0, server.shared, server.buffers, broadcast(stage.algorithm, server))
    engine = Sequential(model, data)
    engine.begin(stage, params)
    returned = sums_to_arrays(engine.train(order, [0]))
    megabytes = [len(pickle.dumps(sent, 5)) / 1e6 for sent in (order_with(order, to_arrays), returned)]

    def add_and_update() -> None:
        reply = (Sums() + sums_to_tensors(returned, "cpu")).reply()
        server_update(stage.algorithm, server, reply, len(data.clients), 0)

    with connected() as cluster:
        ray = cluster.ray
        workers = RayEngine(cluster, model, data, WorkerSettings(2, Share(1, 0), "cpu", "fp32", 1))
        workers.build(Choice("sequential", False, 0, ""))
        handle = workers.workers.processes[0].handle
        call = milliseconds(lambda: ray.get(handle.memories.remote([])))
        array = np.ones(25_000_000, dtype=np.float32)
        store = milliseconds(lambda: ray.put(array), 5) / (array.nbytes / 1e6)

        def read() -> Any:
            return np.array(ray.get(stored))

        stored = ray.put(array)
        load = milliseconds(read, 5) / (array.nbytes / 1e6)
        workers.close()
    update = milliseconds(add_and_update)
    print(f"to a worker            {megabytes[0]:8.2f} MB a round")
    print(f"from a worker          {megabytes[1]:8.2f} MB a round")
    print(f"a call without work    {call:8.2f} ms")
    print(f"store                  {store:8.2f} ms per MB")
    print(f"read and copy          {load:8.2f} ms per MB")
    print(f"add and update         {update:8.2f} ms a worker")


def milliseconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median time of `work`."""
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * median(times[3:])


if __name__ == "__main__":
    main()
