"""Random programs of what partitions mostly see: publish, claim and success. Two stores are held to one another.

The programs over all verbs (testing/machine.py) seldom leave a queue in peace for long; here it mostly is, so that what
stores do differently for plain work – their short ways – is held to the rule, too.
"""

from __future__ import annotations

from random import Random

from taskmq.codec import Envelope, encode
from taskmq.durations import Moment
from taskmq.ids import new_id
from taskmq.message import Delivery, Message
from taskmq.outcome import Ack, Outcome, Retry, Yield
from taskmq.queue import Partition, QueueConfig
from taskmq.state import Progress
from taskmq.testing.clock import FakeClock
from taskmq.transport.base import Extend, Publish, Renewal, Reserve, Settle, Settlement, Store

SECOND = 1_000_000
LEASE = 100 * SECOND
Pair = tuple[Delivery, Delivery]


class Program:
    """One random program."""

    def __init__(self, seed: int, model: Store, store: Store, clock: FakeClock) -> None:
        self.random = random = Random(seed)
        self.both = (model, store)
        self.clock = clock
        self.queues = ["a", "b"][: random.choice([1, 1, 2])]
        self.codes = random.choice([2, 4, 8, 30])
        self.kinds = random.choice(["!", "p", "!p", "!p-", "!-", "p--"])
        self.weights: list[int | None] = random.choice([[None], [None], [None, None, 2, 3]])
        self.priorities = random.choice([[0], [0, 0, 5], [0, 1, 2, 9]])
        self.handlers = random.choice([1, 1, 2])
        self.retentions = random.choice([[None], [None, None, 60 * SECOND, 0]])
        self.held: list[Pair] = []
        self.rare = [self.start, self.cancel, self.pause]
        """What one step in twenty is."""
        config = {
            queue: QueueConfig(
                weight=random.choice([1, 1, 3]),
                order=random.choice(["strict", "strict", "strict", "aging"]),
                max_running=random.choice([None, None, 7]),
            )
            for queue in self.queues
        }
        for store in self.both:
            store.configure_queues(config)

    def run(self, steps: int) -> None:
        """So many steps, then all work is done; raises AssertionError at the first difference."""
        for _ in range(steps):
            often = [self.publish, self.claim, self.settle, self.wait, self.do_something_rare]
            self.random.choices(often, [30, 32, 28, 10, 5])[0]()
            self.compare()
        while True:
            self.exchange([], self.queues, 3)
            if not self.held:
                return self.compare()
            self.end(self.held, [Ack()] * len(self.held))
            self.held = []
            self.clock.advance(5)

    def compare(self) -> None:
        """What does not show in the answers of the verbs; raises AssertionError."""
        for queue in self.queues:
            assert self.both[0].partitions(queue) == self.both[1].partitions(queue)
            assert self.both[0].stats([queue]) == self.both[1].stats([queue])

    def publish(self) -> None:
        random, kind = self.random, self.random.choice(self.kinds)
        queue, handler = random.choice(self.queues), f"h{random.randrange(self.handlers)}"
        messages = []
        for _ in range(random.choice([1, 1, 2, 5, 12])):
            form = random.choice(self.kinds) if random.random() < 0.2 else kind
            code = f"{'!' if form == '!' else ''}c{random.randrange(self.codes)}"
            messages.append(
                Message(
                    id=new_id(),
                    queue=queue,
                    handler=handler,
                    body=encode(Envelope()),
                    priority=random.choice(self.priorities),
                    partition=None if form == "-" else Partition(code, weight=random.choice(self.weights)),
                    retention=random.choice(self.retentions),
                    max_attempts=random.choice([3, 3, 3, 7]),
                    tags=random.choice([(), (), ("t",)]),
                    run_after=Moment(2 * SECOND, relative=True) if random.random() < 0.02 else None,
                )
            )
        for store in self.both:
            store.publish(Publish(messages=messages))

    def claim(self) -> None:
        random, ends = self.random, []
        if random.random() < 0.5:
            n = random.choice([1, 3])
            ends, self.held = self.held[:n], self.held[n:]
        queues = random.sample(self.queues, random.randint(1, len(self.queues)))
        self.exchange(ends, queues, random.choice([1, 1, 2, 3, 5, 10, 20]))

    def exchange(self, ends: list[Pair], queues: list[str], n: int) -> None:
        answers = []
        for side, store in enumerate(self.both):
            settle = Settle(items=[Settlement(pair[side], Ack(b"1"), started_ago=5) for pair in ends])
            claim = Reserve(queues=queues, limit=n, worker="w", lease=LEASE)
            answers.append(store.settle_and_reserve(settle, claim))
        (told, taken), (told_too, taken_too) = answers
        assert told == told_too
        assert list(map(_seen, taken.deliveries)) == list(map(_seen, taken_too.deliveries))
        self.held += zip(taken.deliveries, taken_too.deliveries, strict=True)

    def settle(self) -> None:
        random = self.random
        if random.random() < 0.2:
            random.shuffle(self.held)
        n = random.choice([1, 2, 5, 20])
        pairs, self.held = self.held[:n], self.held[n:]
        rare: list[Outcome] = [Retry(delay=0), Retry(delay=3 * SECOND), Yield()]
        self.end(pairs, [random.choice(rare) if random.random() < 0.02 else Ack(b"1") for _ in pairs])

    def end(self, pairs: list[Pair], outcomes: list[Outcome]) -> None:
        answers = [
            store.settle(
                Settle(items=[Settlement(pair[side], outcome) for pair, outcome in zip(pairs, outcomes, strict=True)])
            )
            for side, store in enumerate(self.both)
        ]
        assert answers[0] == answers[1]

    def do_something_rare(self) -> None:
        self.random.choice(self.rare)()

    def start(self) -> None:
        """A worker says that it has started a task, and how far it is."""
        if self.held:
            pair = self.random.choice(self.held)
            answers = [
                store.extend(Extend(items=[Renewal(pair[side], started=True, progress=Progress(done=1, total=2))]))
                for side, store in enumerate(self.both)
            ]
            assert answers[0] == answers[1]

    def cancel(self) -> None:
        """A running task is asked to stop; it may succeed all the same."""
        if self.held:
            task_id = self.random.choice(self.held)[0].id
            assert self.both[0].cancel([task_id]) == self.both[1].cancel([task_id])

    def pause(self) -> None:
        queue, code = self.random.choice(self.queues), f"{self.random.choice(['!', ''])}c0"
        for paused in (True, False)[: self.random.choice([1, 2])]:
            for store in self.both:
                store.pause_partition(queue, code, paused)
            self.exchange([], self.queues, 2)
        for store in self.both:
            store.pause_partition(queue, code, False)

    def wait(self) -> None:
        long = self.random.random() < 0.1 and len(self.held) < 20  # more leases than one call takes back
        self.clock.advance(130 if long else self.random.choice([0.001, 0.5, 2]))


def _seen(delivery: Delivery) -> tuple[object, ...]:
    return delivery.id, delivery.queue, delivery.attempt, delivery.epoch, delivery.lease_until
