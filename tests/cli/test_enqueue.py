"""``taskmq enqueue`` of one task."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskmq.state import TaskState
from tests.cli.project import URL, Taskmq, tasks


def test_prints_the_id(taskmq: Taskmq, shop: Path) -> None:
    """The only word on stdout is the new task's id, so that a script can keep it."""
    ran = taskmq("enqueue", "shop.send", "--app", "shop:app", "--args", '["a@example.org"]', "--kwargs", '{"n": 2}')
    (task,) = tasks()
    assert (ran.code, ran.out, ran.err) == (0, f"{task.id}\n", "")
    assert (task.handler, task.queue, task.args, task.kwargs) == ("shop.send", "default", ["a@example.org"], {"n": 2})


def test_options_reach_the_task(taskmq: Taskmq, shop: Path) -> None:
    """Queue, priority, partition, delay and key are what the options say."""
    options = ("--queue", "other", "--priority", "7", "--partition", "!x", "--delay", "5m", "--key", "k")
    ran = taskmq("enqueue", "shop.note", "--app", "shop", "--args", '["t"]', *options)
    (task,) = tasks()
    assert ran.code == 0
    assert (task.queue, task.priority, task.partition, task.key) == ("other", 7, "!x", "k")
    assert task.state is TaskState.SCHEDULED


def test_the_handlers_options_are_the_default(taskmq: Taskmq, shop: Path) -> None:
    """Without options a task goes where its handler's decorator says."""
    taskmq("enqueue", "shop.record", "--app", "shop", "--args", '["c", "opened"]')
    (task,) = tasks()
    assert (task.queue, task.priority) == ("cases", 2)


def test_a_key_published_twice_is_one_task(taskmq: Taskmq, shop: Path) -> None:
    """A second publish of a key prints the first task's id and says so on stderr."""
    words = ("enqueue", "shop.note", "--app", "shop", "--args", '["t"]', "--key", "k")
    first, second = taskmq(*words), taskmq(*words)
    assert (second.code, second.out) == (0, first.out)
    assert "published before" in second.err
    assert len(tasks()) == 1


def test_json_tells_id_queue_and_duplicate(taskmq: Taskmq, shop: Path) -> None:
    """--json prints one object with the id, the queue, and whether the key had been published before."""
    words = ("enqueue", "shop.note", "--app", "shop", "--args", '["t"]', "--key", "k", "--json")
    (first,), (second,) = taskmq(*words).json, taskmq(*words).json
    assert first == {"id": second["id"], "queue": "default", "duplicate": False}
    assert second["duplicate"] is True


def test_with_a_url_alone_any_name_is_published(taskmq: Taskmq, project: Path) -> None:
    """--url publishes by the handler's name, with arguments that nobody checks."""
    ran = taskmq("enqueue", "else.where", "--url", URL, "--args", "[1, null]", "--queue", "q")
    (task,) = tasks()
    assert ran.code == 0
    assert (task.handler, task.queue, task.args) == ("else.where", "q", [1, None])


def test_without_app_and_url_the_default_store_is_made(taskmq: Taskmq, project: Path) -> None:
    """Publishing needs no set-up at all: it makes taskmq.db in the working directory."""
    assert taskmq("enqueue", "h").code == 0
    assert taskmq("task", "list", "--json").json[0]["handler"] == "h"
    assert (project / "taskmq.db").exists()


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (2, (), "Missing argument 'HANDLER'"),
        (2, ("shop.send", "--args", "[1"), "--args is not JSON"),
        (2, ("shop.send", "--args", '{"to": 1}'), "not an array"),
        (2, ("shop.send", "--kwargs", "[1]"), "not an object"),
        (2, ("shop.send",), "missing a required argument: 'to'"),
        (2, ("shop.send", "--args", "[1]"), "argument 'to: str'"),
        (2, ("shop.send", "--args", '["a"]', "--priority", "10"), "priority 10"),
        (2, ("shop.send", "--args", '["a"]', "--priority", "x"), "'x' is not a valid integer"),
        (2, ("shop.send", "--args", '["a"]', "--queue", "a b"), "queue 'a b'"),
        (2, ("shop.send", "--args", '["a"]', "--delay", "soon"), "delay 'soon'"),
        (2, ("shop.send", "--args", '["a"]', "--key-column", "k"), "--key-column goes with --from"),
        (2, ("shop.send", "--args", '["a"]', "--url", URL), "give --app or --url"),
        (3, ("shop.sent", "--args", '["a"]'), "did you mean shop.send?"),
        (3, ("xyz",), "it has shop.note, shop.record, shop.send"),
    ],
)
def test_a_wrong_word_is_one_line_and_publishes_nothing(
    taskmq: Taskmq, shop: Path, code: int, words: tuple[str, ...], told: str
) -> None:
    """Whatever is wrong with the words, nothing is published and one line on stderr says what."""
    ran = taskmq("enqueue", "--app", "shop", *words)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert not tasks()


def test_a_key_of_other_content_fails(taskmq: Taskmq, shop: Path) -> None:
    """The same key with other arguments is refused with exit code 1."""
    words = ("enqueue", "shop.note", "--app", "shop", "--key", "k", "--args")
    taskmq(*words, '["one"]')
    ran = taskmq(*words, '["two"]')
    assert ran.code == 1
    assert "'k'" in ran.err
    assert [task.args for task in tasks()] == [["one"]]
