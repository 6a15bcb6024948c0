"""What a cluster without min_replicas may lose when a master dies under load: kill -9, promotion, count, again.

python -m tests.integration.failover [KILLS] [MIN_REPLICAS]
"""

from __future__ import annotations

import sys
import time

from redis.crc import key_slot

from taskmq.testing.redis_cluster import RedisCluster, wait_until
from tests.integration.cluster_crew import PATIENCE, QUEUES, Crew, is_master, rejoin, replica_of


def main() -> None:
    """Print for every kill how much was lost, and how long nothing went on."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    cluster = RedisCluster("redis", 3, 1)
    try:
        for number in range(kills):
            crew = Crew(cluster.url(f"run{number}:", min_replicas=int(sys.argv[2]) if len(sys.argv) > 2 else 0))
            crew.goes_on()
            victim = cluster.node_of(key_slot(QUEUES[number % len(QUEUES)].encode()))
            replica = replica_of(cluster, victim)
            killed = time.monotonic()
            victim.kill()
            wait_until(lambda: is_master(replica), "the replica is not promoted", PATIENCE)  # noqa: B023
            promoted = time.monotonic() - killed
            rejoin(cluster, victim)
            crew.goes_on()
            log = crew.end()
            done = {task_id for queue in QUEUES for task_id in log.starts[queue]}
            lost = [task_id for task_id in log.published if task_id not in done]
            again = sum(1 for times in log.acked.values() if times > 1)
            print(
                f"kill {number}: promoted after {promoted:.1f} s; of {len(log.published)} acknowledged publishes "
                f"{len(lost)} lost, {again} settled twice",
                flush=True,
            )
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
