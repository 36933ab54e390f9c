"""Print how many nodes the Ray cluster of RAY_ADDRESS has."""

import ray

ray.init(log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
