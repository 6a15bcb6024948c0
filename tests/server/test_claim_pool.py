"""The claim pool's unit cases U1 to U16 of the protocol, with their exact figures."""

from __future__ import annotations

from collections import Counter

import pytest

from taskmq.server.claim_pool import (
    Accepted,
    Answer,
    Cancelled,
    ClaimPool,
    Empty,
    Error,
    Rejected,
    Release,
    Start,
)
from tests.server.pool_simulation import Conn, Node


@pytest.fixture(params=[True, False], ids=["claims, then polls", "polls, then claims"])
def eager(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def many(app: str, connections: int, queues: int = 1, namespaces: int = 1) -> list[Conn]:
    return [Conn(f"{app}{i}", app, (f"{app}-q{i % queues}",), f"{app}-ns{i % namespaces}") for i in range(connections)]


def node(conns: list[Conn], eager: bool, slots: int = 4) -> Node:
    made = Node(ClaimPool(slots=slots), eager=eager)
    for conn in conns:
        made.conns[conn.name] = conn
        answer = made.pool.request(0.0, conn.name, conn.app, conn.ns, conn.queues, conn.caps, conn.rk, 1)
        assert isinstance(answer, Accepted)
        made.asked[answer.id] = conn.name
    made.poll()
    return made


def test_u1_one_connection_beside_a_hundred_has_its_turns_until_its_budget_ends(eager: bool) -> None:
    n = node(many("A", 100, 50) + many("B", 1), eager, slots=1)
    n.run(1.0)
    assert n.apps()[:8] == "ABABABAB"
    assert set(n.apps()[8:]) == {"A"}
    assert Counter(n.apps()) == {"A": 96, "B": 4}


def test_u2_an_application_never_has_two_statements_and_its_queues_take_turns(eager: bool) -> None:
    n = node(many("A", 100, 50) + many("B", 1), eager)
    n.run(1.0)
    assert Counter(n.apps()) == {"A": 100, "B": 4}
    assert n.most["A"] == 1
    queues = Counter(n.conns[name].queues for name in n.starts() if n.conns[name].app == "A")
    assert len(queues) == 50
    assert set(queues.values()) == {2}


def test_u3_more_queues_and_connections_win_no_turns(eager: bool) -> None:
    n = node(many("A", 100, 50) + many("B", 20), eager, slots=1)
    n.run(1.0)
    assert n.apps() == "AB" * 50


def test_u4_more_namespaces_win_no_turns(eager: bool) -> None:
    n = node(many("A", 20, namespaces=20) + many("B", 20), eager, slots=1)
    n.run(0.2)
    assert Counter(n.apps()) == {"A": 10, "B": 10}


def test_u5_six_applications_share_four_slots_in_turn(eager: bool) -> None:
    apps = "ABCDEF"
    n = node([conn for app in apps for conn in many(app, 10)], eager)
    n.run(0.1)
    assert n.apps() == (apps * 7)[:40]
    assert list(Counter(n.apps()).values()) == [7, 7, 7, 7, 6, 6]


def test_u6_queues_take_turns_and_connections_within_them(eager: bool) -> None:
    n = node([Conn(f"c{i}", "A", ("q1",)) for i in (1, 2, 3)] + [Conn("c4", "A", ("q2",))], eager)
    n.run(0.08)
    assert n.starts() == ["c1", "c4", "c2", "c4", "c3", "c4", "c1", "c4"]


def test_u7_a_connection_starts_four_statements_in_each_second_of_the_grid(eager: bool) -> None:
    n = node([Conn("c", "A")], eager)
    n.run(2.0)
    assert n.times("Start", "c") == [0.0, 0.01, 0.02, 0.03, 1.0, 1.01, 1.02, 1.03]


def quiet(pool: ClaimPool | None = None) -> Node:
    """A node whose store has nothing, and whose connections claim once."""
    return Node(pool or ClaimPool(), store=lambda _: 0, again=False)


def test_u8_a_zero_answer_is_shared_for_a_cycle_and_then_asked_again() -> None:
    n = quiet()
    n.at(0.2, lambda: n.claim(Conn("c1", "A")))
    n.at(0.3, lambda: n.claim(Conn("c2", "A")))
    n.run(2.0)
    assert n.log == [
        (0.2, "Start", "c1"),
        (1.2, "Empty", "c1"),
        (1.21, "Start", "c2"),
        (1.3, "Empty", "c2"),
    ]


def test_u9_a_wake_lets_a_parked_claim_look_again() -> None:
    n = quiet()
    n.at(0.2, lambda: n.claim(Conn("c1", "A")))

    def task() -> None:
        n.store = lambda _: 1
        n.pool.wake(n.now, "ns", "q")
        n.poll()

    n.at(0.5, task)
    n.run(1.0)
    assert n.log == [(0.2, "Start", "c1"), (0.5, "Start", "c1"), (0.51, "Answer", "c1")]


def test_u10_a_zero_that_a_wake_overtook_proves_nothing() -> None:
    n = quiet()
    n.at(0.2, lambda: n.claim(Conn("c1", "A")))
    n.at(0.205, lambda: n.pool.wake(n.now, "ns", "q"))
    n.run(0.215)
    assert n.times("Start", "c1") == [0.2, 0.21]
    assert n.pool.cached == 0


@pytest.mark.parametrize("other", [Conn("c2", "A", caps=frozenset({"h2"})), Conn("c2", "A", rk=True)])
def test_u11_a_zero_is_for_exactly_its_capabilities(other: Conn) -> None:
    n = quiet()
    n.claim(Conn("c1", "A"))
    n.at(0.1, lambda: n.claim(other))
    n.run(0.5)
    assert n.starts() == ["c1", "c2"]


def test_u12_one_statement_answers_all_with_its_key() -> None:
    n = quiet()
    n.claim(Conn("c1", "A"))
    n.claim(Conn("c2", "A"))
    n.run(1.5)
    assert n.log == [(0.0, "Start", "c1"), (1.0, "Empty", "c1"), (1.0, "Empty", "c2")]


def pool_with(*conns: str, app: str = "A") -> tuple[ClaimPool, list[int]]:
    pool = ClaimPool()
    ids = []
    for conn in conns:
        answer = pool.request(0.0, conn, app or conn, "ns", ["q"], ["h"], False, 1)
        assert isinstance(answer, Accepted)
        ids.append(answer.id)
    return pool, ids


def test_u13_what_was_claimed_for_a_connection_that_is_gone_goes_back() -> None:
    pool, (claim,) = pool_with("c1")
    assert pool.poll(0.0) == [Start(claim)]
    pool.gone(0.005, "c1")
    assert pool.complete(0.01, claim, 3) == [Release(claim, 3)]
    assert (pool.in_flight, pool.pending) == (0, 0)


def test_u14_a_node_takes_128_claims_and_one_a_connection() -> None:
    pool, _ = pool_with(*(f"c{i}" for i in range(128)))
    assert pool.request(0.0, "c128", "B", "ns", ["q"], ["h"], False, 1) == Rejected("NODE_CLAIMS")
    assert pool.request(0.0, "c0", "A", "ns", ["q"], ["h"], False, 1) == Rejected("CLAIM_PENDING")


def test_u15_a_shutdown_cancels_what_waits_and_finishes_what_flies() -> None:
    pool, ids = pool_with(*"abcdef", app="")
    assert pool.poll(0.0) == [Start(claim) for claim in ids[:4]]
    assert pool.shutdown(0.005) == [Cancelled(claim) for claim in ids[4:]]
    assert pool.complete(0.01, ids[0], 2) == [Answer(ids[0], 2)]
    assert pool.complete(0.01, ids[1], 0) == [Empty(ids[1])]
    assert pool.poll(0.01) == []
    assert pool.request(0.02, "g", "g", "ns", ["q"], ["h"], False, 1) == Rejected("SHUTTING_DOWN")


def test_u16_a_wake_reaches_the_lanes_that_have_its_queue() -> None:
    n = quiet()
    n.claim(Conn("c1", "A", ("a", "b")))
    n.claim(Conn("c2", "A", ("a",)))
    n.run(0.1)
    assert n.starts() == ["c1", "c2"]
    n.pool.wake(n.now, "ns", "b")
    n.poll()
    n.run(0.2)
    assert n.starts() == ["c1", "c2", "c1"]


def test_a_failed_statement_frees_its_slot_and_teaches_nothing() -> None:
    pool, (first, second) = pool_with("c1", "c2")
    pool.poll(0.0)
    assert pool.fail(0.01, first, OSError()) == [Error(first, "UNAVAILABLE")]
    assert pool.poll(0.01) == [Start(second)]
    assert pool.cached == 0


def test_leaving_and_coming_back_wins_no_turns() -> None:
    pool = ClaimPool()
    for i in range(6):
        answer = pool.request(0.0, "c", "A", "ns", ["q"], ["h"], False, 1)
        assert isinstance(answer, Accepted)
        started = pool.poll(0.01 * i)
        assert len(started) == (1 if i < 4 else 0)
        if started:
            pool.complete(0.01 * i, answer.id, 1)
        pool.gone(0.01 * i, "c")
