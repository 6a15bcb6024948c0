"""Whose turn it is between the flows of one strict queue: virtual time in integers (model.md §6, §11).

A flow is a partition, or all unpartitioned tasks of the queue together (weight 1). Among flows whose heads have the
same priority the smallest ``tag`` goes next; a turn costs ``U / weight``, so a flow of weight 3 comes three times as
often. This is start-time fair queueing with unit cost, and two of its usual weak points are closed:

* *Who joins starts now, not at zero.* A flow that gains a head gets ``tag = max(tag, J)`` with the join counter
  ``J = max(J + 1, V)``: never before the queue's virtual time V, so a late or idle flow cannot burst while it
  "catches up", and never after those that join later, so equal claims are settled by who came first. (Ties by name
  would starve late names for ever: with a steady supply of new partitions ``aa…`` the old ``zz`` would never run.)
* *Who waited at a lower priority does not burst.* Its tag may lie far behind V when its priority's turn comes;
  ``V = max(V, tag)`` and the new tag counts from V, not from the old tag.

``U = 2**24`` makes ``round(U / weight)`` an integer that still tells weights up to a million apart; integers make the
order the same in Python, Lua and SQL. V and tags grow one U a round over all flows: 2**63 is out of reach.
While a queue knows no partition none of this is touched, so plain queues pay nothing.
"""

from __future__ import annotations

from typing import Protocol

U = 2**24


class VirtualTime(Protocol):
    """What a queue keeps: virtual time and join counter, both 0 at first."""

    v: int
    j: int


class Tagged(Protocol):
    """What a flow keeps."""

    tag: int
    weight: int


def join(queue: VirtualTime, flow: Tagged) -> None:
    """The flow gains an eligible head: it stands behind those who joined before it, and not in the past."""
    queue.j = max(queue.j + 1, queue.v)
    flow.tag = max(flow.tag, queue.j)


def after_turn(v: int, tag: int, weight: int) -> tuple[int, int]:
    """The queue's virtual time and the flow's tag once the flow has taken a turn."""
    v = max(v, tag)
    return v, v + round(U / weight)
