"""What ``taskmq doctor`` says about a server: does it keep what it is given, and does it have room for it?"""

from __future__ import annotations

from taskmq.transport.base import Finding
from taskmq.transport.redis.connection import Server

NEARLY_FULL = 0.9


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
