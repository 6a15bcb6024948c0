"""A Redis cluster without scripts on it keeps every promise of the conformance suite but those it declares."""

from taskmq.testing.conformance import conformance
from taskmq.transport.redis.cluster import RedisClusterTransport
from tests.stores import STORES

globals().update(conformance(STORES["redis-cluster-nolua"], limited=RedisClusterTransport.limitations))
