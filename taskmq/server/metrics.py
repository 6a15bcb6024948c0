"""What a node counts, as Prometheus reads it. No tenants and no task ids in labels."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counters of one node."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "taskmq_http_requests_total", "requests", ["method", "path", "status"], registry=self._registry
        )
        self._seconds = Histogram("taskmq_http_request_seconds", "time to answer", ["path"], registry=self._registry)
        self.submitted = Counter("taskmq_tasks_submitted_total", "accepted tasks", registry=self._registry)
        self.dispatched = Counter("taskmq_tasks_dispatched_total", "dispatched tasks", registry=self._registry)
        self.started = Counter("taskmq_tasks_started_total", "granted starts", registry=self._registry)
        self.finished = Counter("taskmq_tasks_finished_total", "settles", ["outcome"], registry=self._registry)
        self.handed_back = Counter("taskmq_tasks_handed_back_total", "unsent dispatches", registry=self._registry)
        self.lost = Counter("taskmq_leases_lost_total", "refused starts and finishes", registry=self._registry)
        self.statements = Histogram("taskmq_claim_seconds", "time of a claim's statement", registry=self._registry)

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a number as it is when somebody looks."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
