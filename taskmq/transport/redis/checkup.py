"""What ``taskmq doctor`` says about a server: does it keep what it is given, and does it have room for it?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from taskmq.transport.base import Finding
from taskmq.transport.redis.connection import Server

NEARLY_FULL = 0.9
MOST_APART = 1.0
"""Seconds that the clocks of a cluster's nodes may differ."""


def checkup(server: Server) -> list[Finding]:
    """Settings with which tasks are lost, or soon will be refused."""
    info = server.info()
    found: list[Finding] = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            Finding(
                check="eviction",
                level="error",
                text=f"the server drops keys when its memory is full (maxmemory-policy {policy}), and tasks with them",
                fix="CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
            )
        )
    if info.get("aof_enabled") == "0":
        found.append(
            Finding(
                check="durability",
                level="warning",
                text="the server keeps no append-only file: when it dies it forgets what came after its last snapshot",
                fix="CONFIG SET appendonly yes, and the same in its configuration file",
            )
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        found.append(
            Finding(
                check="durability",
                level="error",
                text="the server could not write its append-only file",
                fix="see the server's log; its disk may be full",
            )
        )
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > NEARLY_FULL * most:
        found.append(
            Finding(
                check="memory",
                level="warning",
                text=f"the server uses {used / most:.0%} of its memory (maxmemory); full, it refuses every publish",
                fix="raise maxmemory, or let workers catch up",
            )
        )
    if info.get("role") == "slave":
        found.append(
            Finding(
                check="role",
                level="error",
                text="the server is a read-only replica: nothing can be published or claimed",
                fix="give the URL of its primary",
            )
        )
    return found


def checkup_cluster(
    servers: Mapping[tuple[str, int], Server], table: Sequence[tuple[str, int] | None]
) -> list[Finding]:
    """What is wrong with a cluster, and with each of its masters."""
    found: list[Finding] = []
    uncovered = sum(1 for address in table if address is None)
    if uncovered:
        found.append(
            Finding(
                check="slots",
                level="error",
                text=f"no master has {uncovered} of the {len(table)} slots; queues there cannot be used",
                fix="bring the missing masters back, or redis-cli --cluster fix",
            )
        )
    clocks = {}
    for (host, port), server in servers.items():
        node = f"{host}:{port}"
        before = time.time()
        seconds, micros = server.command("TIME")
        clocks[node] = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
        found += [replace(finding, text=f"{node}: {finding.text}") for finding in checkup(server)]
        if server.info().get("connected_slaves") == "0":
            found.append(
                Finding(
                    check="replicas",
                    level="warning",
                    text=f"{node} has no replica: when it dies, its queues stand still until it is back",
                    fix="add a replica: redis-cli --cluster add-node … --cluster-slave",
                )
            )
    if clocks and (apart := max(clocks.values()) - min(clocks.values())) > MOST_APART:
        ahead = max(clocks, key=lambda node: clocks[node])
        found.append(
            Finding(
                check="clocks",
                level="warning",
                text=f"the clocks of the nodes are {apart:.1f} s apart, {ahead} is ahead; tasks fall due by them",
                fix="synchronise the clocks (NTP)",
            )
        )
    return found
