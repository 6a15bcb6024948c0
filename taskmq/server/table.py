"""Every route of the API, in one table. The OpenAPI document and the permission test read it."""

from __future__ import annotations

from taskmq.server import answers as a
from taskmq.server import bodies as b
from taskmq.server import params as p
from taskmq.server.http import Nothing, Route
from taskmq.server.routes import meta, queues, submit, submit_batch, tasks
from taskmq.state import TaskState

_PAGE = (p.LIMIT, p.CURSOR, p.ORDER)
_LIST_TASKS = p.table(
    p.choices("state", TaskState),
    p.QUEUE_ID,
    p.QUEUE_NAME,
    p.matching("handler", p.NAME, "a name"),
    p.text("partition", 255),
    p.text("resource_key", 255),
    p.integer("priority", 0, 9),
    p.matching("schedule_id", p.ID, "an id of 32 hex digits"),
    p.time("created_from"),
    p.time("created_to"),
    *_PAGE,
)

ROUTES = (
    Route(
        method="POST", path="/v1/tasks", handler=submit.submit, summary="Accept a task", body=b.Submit, needs_key=True,
        answers={201: a.TaskObject, 200: a.TaskObject}, errors=(400, 404, 409, 413, 415, 429),
    ),
    Route(
        method="POST", path="/v1/tasks:batch", handler=submit_batch.submit_batch, summary="Accept up to 1,000 tasks",
        body=b.Batch, batch=True, answers={200: a.BatchAnswer}, errors=(400, 413, 415),
    ),
    Route(
        method="GET", path="/v1/tasks", handler=tasks.list_tasks, summary="List tasks", query=_LIST_TASKS,
        answers={200: a.TaskPage}, errors=(400,),
    ),
    Route(
        method="GET", path="/v1/tasks/{task_id}", handler=tasks.get, summary="A task, now or when it has ended",
        query=p.table(p.integer("wait_ms", 0, 30_000, 0)), answers={200: a.TaskObject}, errors=(400, 404),
    ),
    Route(
        method="GET", path="/v1/tasks/{task_id}/why", handler=tasks.why, summary="What holds a task back",
        answers={200: a.Why}, errors=(404,),
    ),
    Route(
        method="POST", path="/v1/tasks/{task_id}/cancel", handler=tasks.cancel, summary="Cancel a task", body=b.Cancel,
        body_optional=True, answers={200: a.TaskObject}, errors=(400, 404, 409, 413, 415),
    ),
    Route(
        method="POST", path="/v1/tasks/{task_id}/replay", handler=tasks.replay, summary="Queue an ended task again",
        body=b.Replay, body_optional=True, answers={200: a.TaskObject}, errors=(400, 404, 409, 413, 415),
    ),
    Route(
        method="POST", path="/v1/tasks:replay", handler=tasks.replay_many, summary="Queue failed tasks again",
        body=b.ReplayMany, answers={200: a.Replayed}, errors=(400, 404, 413, 415),
    ),
    Route(
        method="POST", path="/v1/queues", handler=queues.create, summary="Make a queue", body=b.NewQueue,
        answers={201: a.QueueObject, 200: a.QueueObject}, errors=(400, 409, 413, 415),
    ),
    Route(
        method="GET", path="/v1/queues", handler=queues.list_queues, summary="List queues",
        query=p.table(p.matching("name", p.NAME, "a name"), *_PAGE), answers={200: a.QueuePage}, errors=(400,),
    ),
    Route(
        method="GET", path="/v1/queues/{queue_id}", handler=queues.get, summary="A queue with its counts",
        answers={200: a.QueueObject}, errors=(404,),
    ),
    Route(
        method="PATCH", path="/v1/queues/{queue_id}", handler=queues.change, summary="Change a queue's settings",
        body=b.ChangeQueue, answers={200: a.QueueObject}, errors=(400, 404, 409, 412, 413, 415),
    ),
    Route(
        method="DELETE", path="/v1/queues/{queue_id}", handler=queues.delete, summary="Delete a queue",
        answers={200: a.Deleted}, errors=(404, 409, 412),
    ),
    Route(
        method="POST", path="/v1/queues/{queue_id}/pause", handler=queues.pause, summary="Stop claims from a queue",
        body=Nothing, body_optional=True, answers={200: a.QueueObject}, errors=(400, 404, 412, 415),
    ),
    Route(
        method="POST", path="/v1/queues/{queue_id}/resume", handler=queues.resume, summary="Let claims go on",
        body=Nothing, body_optional=True, answers={200: a.QueueObject}, errors=(400, 404, 412, 415),
    ),
    Route(
        method="POST", path="/v1/queues/{queue_id}/purge", handler=queues.purge, summary="Cancel what waits",
        body=b.Purge, answers={200: a.Purged}, errors=(400, 404, 413, 415),
    ),
    Route(
        method="GET", path="/v1/queues/{queue_id}/partitions", handler=queues.partitions, summary="List partitions",
        query=p.table(p.text("partition", 255), p.LIMIT, p.CURSOR), answers={200: a.PartitionPage}, errors=(400, 404),
    ),
    Route(
        method="POST", path="/v1/queues/{queue_id}/partitions", handler=queues.partition_action,
        summary="Pause, resume, release, skip or purge a partition", body=b.PartitionAction,
        answers={200: a.PartitionDone}, errors=(400, 404, 409, 413, 415),
    ),
    Route(
        method="GET", path="/v1/workers/connect", handler=meta.connect, summary="A worker's WebSocket", errors=(400,),
    ),
    Route(
        method="GET", path="/healthz", handler=meta.healthz, summary="It answers", public=True,
        answers={200: a.Health},
    ),
    Route(
        method="GET", path="/readyz", handler=meta.readyz, summary="It can work", public=True,
        answers={200: a.Ready, 503: a.Ready},
    ),
    Route(method="GET", path="/metrics", handler=meta.metrics, summary="For Prometheus", public=True, errors=(401,)),
    Route(method="GET", path="/openapi.json", handler=meta.openapi, summary="This document", public=True),
    Route(
        method="GET", path="/v1/schemas/worker.json", handler=meta.worker_schema, summary="Messages of workers",
        public=True,
    ),
)  # fmt: skip
