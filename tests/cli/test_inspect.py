"""``taskmq status``, ``task`` and ``dead``: looking at a store and steering it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskmq.outcome import Ack
from taskmq.transport.base import Reserve, Settle, Settlement, WorkerInfo
from tests.cli.project import URL, Taskmq, kill, opened, tasks

NOBODY = "0" * 32
IN_SHOP = ("--url", URL)


@pytest.fixture
def publish(taskmq: Taskmq, shop: Path) -> Any:
    """Publish a task of shop.note by the command line and return its id."""

    def publish(text: str = "t", *options: str) -> str:
        return taskmq("enqueue", "shop.note", "--app", "shop", "--args", f'["{text}"]', *options).out.strip()

    return publish


def run_one(queue: str = "default") -> str:
    """Claim the next task and leave it running."""
    with opened() as store:
        (delivery,) = store.reserve(Reserve(queues=[queue], limit=1, worker="w1")).deliveries
        return delivery.id


# ── status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_counts_by_state(taskmq: Taskmq, publish: Any) -> None:
    """``status`` shows for each queue how many tasks are ready, scheduled, running, retrying and dead."""
    publish()
    kill()
    for options in ((), (), ("--delay", "1h"), ("--queue", "other")):
        publish("t", *options)
    run_one()
    queues, workers = taskmq("status", *IN_SHOP).out.split("\n\n")
    header, *rows = (line.split("\t") for line in queues.splitlines())
    assert header == [
        "queue",
        "ready",
        "scheduled",
        "running",
        "retrying",
        "dead",
        "oldest",
        "weight",
        "order",
        "state",
    ]
    assert [row[:6] for row in rows] == [["default", "1", "1", "1", "0", "1"], ["other", "1", "0", "0", "0", "0"]]
    assert [row[7:] for row in rows] == [["1", "strict", "open"]] * 2
    assert workers.splitlines() == ["worker\thost\tpid\tpool\tslots\trunning\theld\tseen\tqueues"]


def test_status_by_priority(taskmq: Taskmq, publish: Any) -> None:
    """--by-priority shows the ready tasks of each priority, most urgent first."""
    for priority in ("9", "9", "3"):
        publish("t", "--priority", priority)
    ran = taskmq("status", *IN_SHOP, "--by-priority")
    assert ran.lines[0].split("\t") == ["queue", "ready", *(f"p{n}" for n in range(9, -1, -1))]
    assert ran.lines[1].split("\t") == ["default", "3", "2", "0", "0", "0", "0", "0", "1", "0", "0", "0"]


def test_status_shows_workers(taskmq: Taskmq, shop: Path) -> None:
    """A live worker is listed with where it runs, what it serves and how busy it is."""
    worker = WorkerInfo(
        id="w1", host="h", pid=7, queues=("a", "b"), pool="threads", concurrency=4, version="0", started_at=0, running=2
    )
    with opened() as store:
        store.heartbeat(worker, 60_000_000)
    *most, seen, queues = taskmq("status", *IN_SHOP).lines[-1].split("\t")
    assert most == ["w1", "h", "7", "threads", "4", "2", "0"]
    assert (seen.endswith(" ago"), queues) == (True, "a,b")


def test_status_as_json(taskmq: Taskmq, publish: Any) -> None:
    """--json prints queues and workers as one object."""
    publish("t", "--priority", "4")
    (status,) = taskmq("status", *IN_SHOP, "--json").json
    (queue,) = status["queues"]
    assert (queue["name"], queue["ready"], queue["paused"], queue["by_priority"]) == ("default", 1, False, {"4": 1})
    assert queue["oldest_ready_seconds"] >= 0
    assert status["workers"] == []


def test_status_is_shown_anew_until_interrupted(taskmq: Taskmq, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--watch shows it every --interval seconds until Ctrl-C, which is exit code 130."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("taskmq.cli.status.time.sleep", pause)
    taskmq("queue", "pause", "q", *IN_SHOP)
    ran = taskmq("status", *IN_SHOP, "--watch", "--interval", "0.5", "--json")
    assert (ran.code, pauses, len(ran.json)) == (130, [0.5] * 3, 3)
    pauses.clear()
    assert taskmq("status", *IN_SHOP, "--watch").code == 130
    assert pauses == [2.0] * 3


# ── task ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_list_is_newest_first(taskmq: Taskmq, publish: Any) -> None:
    """``task list`` shows the newest tasks first, at most --limit of them."""
    ids = [publish(text) for text in "abc"]
    assert [row[0] for row in taskmq("task", "list", *IN_SHOP).table] == ids[::-1]
    assert [row[0] for row in taskmq("task", "list", *IN_SHOP, "--limit", "2").table] == [ids[2], ids[1]]


def test_task_list_reads_several_pages(taskmq: Taskmq, shop: Path) -> None:
    """A limit above one page of the store is honoured."""
    Path("n.csv").write_text("text\n" + "".join(f"{n}\n" for n in range(250)))
    taskmq("enqueue", "shop.note", "--app", "shop", "--from", "n.csv")
    assert len(taskmq("task", "list", *IN_SHOP, "--limit", "230").table) == 230
    assert len(taskmq("task", "list", *IN_SHOP, "--limit", "999", "--json").json) == 250


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (("--queue", "other"), ["b"]),
        (("--state", "scheduled"), ["c"]),
        (("--state", "QUEUED", "--state", "SCHEDULED"), ["d", "c", "b", "a"]),
        (("--handler", "shop.note"), ["d", "c", "b", "a"]),
        (("--handler", "shop.send"), []),
        (("--partition", "!p"), ["d"]),
        (("--queue", "default", "--state", "QUEUED"), ["d", "a"]),
    ],
)
def test_task_list_takes_conditions(
    taskmq: Taskmq, publish: Any, conditions: tuple[str, ...], found: list[str]
) -> None:
    """Every condition given to task list must hold for a task to be listed."""
    published = {"a": (), "b": ("--queue", "other"), "c": ("--delay", "1h"), "d": ("--partition", "!p")}
    for text, options in published.items():
        publish(text, *options)
    listed = taskmq("task", "list", *IN_SHOP, "--json", *conditions).json
    assert [task["args"][0] for task in listed] == found


def test_task_show_tells_everything(taskmq: Taskmq, publish: Any) -> None:
    """``task show`` prints what the task is, when it happened, and each attempt with its error."""
    task_id = publish("hello", "--priority", "5", "--key", "k")
    kill()
    ran = taskmq("task", "show", task_id, *IN_SHOP)
    fields = dict(line.split(None, 1) for line in ran.out.split("\n\n")[0].splitlines())
    assert ran.code == 0
    assert (fields["id"], fields["state"], fields["priority"], fields["key"]) == (task_id, "FAILED", "5", "k")
    assert (fields["args"], fields["reason"]) == ('["hello"]', "failed")
    assert "ValueError: no such address" in ran.out
    assert fields["created_at"].endswith("Z")


def test_task_show_as_json(taskmq: Taskmq, publish: Any) -> None:
    """``task show`` --json prints one object, with times as UTC text and null for what has not happened."""
    task_id = publish()
    (task,) = taskmq("task", "show", task_id, *IN_SHOP, "--json").json
    assert (task["id"], task["state"], task["args"], task["finished_at"]) == (task_id, "QUEUED", ["t"], None)
    assert len(task["created_at"]) == len("2026-11-29T21:47:15.123456Z")


def test_task_cancel(taskmq: Taskmq, publish: Any) -> None:
    """``task cancel`` ends what waits, asks what runs, and says for each task what became of it."""
    running, waiting = publish("a"), publish("b")
    run_one()
    ran = taskmq("task", "cancel", waiting, running, *IN_SHOP)
    assert ran.code == 0
    assert ran.lines == [f"{waiting} cancelled", f"{running} is running: its worker is asked to stop it"]
    assert [task.state for task in tasks()] == ["RUNNING", "CANCELLED"]


def test_cancelling_what_is_not_there_or_has_ended_fails(taskmq: Taskmq, publish: Any) -> None:
    """The exit code is the worst of the tasks': 3 for one that is not there, 1 for one that has ended."""
    done = publish()
    with opened() as store:
        (delivery,) = store.reserve(Reserve(queues=["default"], limit=1, worker="w1")).deliveries
        store.settle(Settle(items=[Settlement(delivery, Ack())]))
    ended = taskmq("task", "cancel", done, *IN_SHOP)
    assert (ended.code, ended.err) == (1, f"{done} had already ended: SUCCEEDED\n")
    assert taskmq("task", "cancel", done, NOBODY, *IN_SHOP).code == 3


def test_task_retry_queues_a_failed_task_again(taskmq: Taskmq, publish: Any) -> None:
    """``task retry`` gives a failed task a new budget; of any other it says why not."""
    failed, waiting = publish("a"), publish("b", "--queue", "other")
    kill()
    ran = taskmq("task", "retry", failed, waiting, NOBODY, *IN_SHOP)
    assert ran.code == 3
    assert ran.lines == [f"{failed} queued again in default"]
    assert f"{waiting} is no dead letter: QUEUED" in ran.err
    assert f"{NOBODY} not found" in ran.err
    assert [task.state for task in tasks()] == ["QUEUED", "QUEUED"]


def test_outcomes_as_json(taskmq: Taskmq, publish: Any) -> None:
    """With --json each named task is one object that says whether it went well."""
    task_id = publish()
    ran = taskmq("task", "cancel", task_id, NOBODY, *IN_SHOP, "--json")
    assert [(row["id"], row["ok"]) for row in ran.json] == [(task_id, True), (NOBODY, False)]
    assert (ran.code, ran.err) == (3, "")


# ── dead ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dead_list_shows_only_the_dead_and_why(taskmq: Taskmq, publish: Any) -> None:
    """``dead list`` shows the tasks that failed for good, each with its reason and error."""
    dead = publish("a")
    kill(reason="max_attempts")
    publish("b")
    (row,) = taskmq("dead", "list", *IN_SHOP).table
    assert (row[0], row[6], row[7]) == (dead, "max_attempts", "ValueError: no such address")
    assert [task["id"] for task in taskmq("dead", "list", *IN_SHOP, "--json").json] == [dead]
    assert not taskmq("dead", "list", *IN_SHOP, "--queue", "other").table


def test_dead_show_is_for_the_dead(taskmq: Taskmq, publish: Any) -> None:
    """``dead show`` tells everything about a dead letter, and of another task that it is none."""
    dead = publish("a")
    kill()
    waiting = publish("b")
    assert "no such address" in taskmq("dead", "show", dead, *IN_SHOP).out
    assert taskmq("dead", "show", dead, *IN_SHOP, "--json").json[0]["id"] == dead
    other = taskmq("dead", "show", waiting, *IN_SHOP)
    assert (other.code, other.out) == (1, "")
    assert "is no dead letter: QUEUED" in other.err


def test_dead_replay_of_ids_may_name_another_queue(taskmq: Taskmq, publish: Any) -> None:
    """``dead replay`` --to queues the named dead letters in another queue."""
    one, two = publish("a"), publish("b")
    kill()
    ran = taskmq("dead", "replay", one, "--to", "other", *IN_SHOP)
    assert (ran.code, ran.lines) == (0, [f"{one} queued again in other"])
    assert {task.id: (task.queue, task.state) for task in tasks()} == {
        one: ("other", "QUEUED"),
        two: ("default", "FAILED"),
    }


@pytest.mark.parametrize(("command", "counted"), [("replay", "replayed"), ("purge", "purged")])
def test_dead_all_takes_filters(taskmq: Taskmq, publish: Any, command: str, counted: str) -> None:
    """--all means every dead letter that --queue and --handler leave, over several pages."""
    Path("n.csv").write_text("text\n" + "".join(f"{n}\n" for n in range(130)))
    taskmq("enqueue", "shop.note", "--app", "shop", "--from", "n.csv")
    publish("t", "--queue", "other")
    while kill() or kill("other"):
        pass
    yes = ("--yes",) if command == "purge" else ()
    words = ("dead", command, "--all", *yes, *IN_SHOP, "--json")
    assert taskmq(*words, "--queue", "default").json == [{counted: 130}]
    assert taskmq(*words, "--handler", "shop.send").json == [{counted: 0}]
    assert taskmq(*words).json == [{counted: 1}]
    assert not taskmq("dead", "list", *IN_SHOP).table


def test_dead_purge_of_ids_leaves_the_living(taskmq: Taskmq, publish: Any) -> None:
    """``dead purge`` deletes the named dead letters and refuses tasks in any other state."""
    dead = publish("a")
    kill()
    waiting = publish("b")
    ran = taskmq("dead", "purge", dead, waiting, NOBODY, *IN_SHOP)
    assert (ran.code, ran.lines) == (3, [f"{dead} deleted"])
    assert [task.id for task in tasks()] == [waiting]


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("", 1, 1)])
def test_dead_purge_all_asks(taskmq: Taskmq, publish: Any, answer: str, code: int, left: int) -> None:
    """``dead purge`` --all without --yes asks first, and no answer is a no."""
    publish()
    kill()
    assert taskmq("dead", "purge", "--all", *IN_SHOP, stdin=answer).code == code
    assert len(tasks()) == left


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (2, ("task", "list", "--state", "gone", *IN_SHOP), "'gone' is not one of"),
        (2, ("task", "list", "--limit", "0", *IN_SHOP), "0 is not in the range"),
        (2, ("task", "list", "--queue", "a b", *IN_SHOP), "queue 'a b'"),
        (2, ("task", "show", *IN_SHOP), "Missing argument 'ID'"),
        (2, ("task", "cancel", *IN_SHOP), "Missing argument"),
        (2, ("task", "nothing"), "No such command 'nothing'"),
        (2, ("dead", "replay", *IN_SHOP), "or say --all"),
        (2, ("dead", "purge", NOBODY, "--all", *IN_SHOP), "or say --all"),
        (2, ("dead", "replay", NOBODY, "--queue", "q", *IN_SHOP), "they do not go with ids"),
        (3, ("task", "show", NOBODY, *IN_SHOP), f"no task {NOBODY}"),
        (3, ("dead", "show", NOBODY, *IN_SHOP), f"no task {NOBODY}"),
    ],
)
def test_a_wrong_word_is_one_line(taskmq: Taskmq, shop: Path, code: int, words: tuple[str, ...], told: str) -> None:
    """Whatever is wrong is one line on stderr, with the documented exit code."""
    ran = taskmq(*words)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert ran.err.count("\n") == 1
