"""Called as a script with a number of machines: a cluster of them, until standard input ends."""

import os
import sys

from ray.cluster_utils import Cluster


def main() -> None:
    os.environ.pop("RAY_OVERRIDE_RESOURCES", None)  # of the tests that started this script
    # 127.0.0.1 would be replaced by the machine's address in its network.
    local = {"node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **local})
    for _ in range(int(sys.argv[1]) - 1):
        cluster.add_node(num_cpus=1, **local)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
