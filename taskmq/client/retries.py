"""The tries of one call, for both clients: what is sent, what its answer means, whether and when to send it again.

A client only does the I/O and the waiting:

    while True:
        try:
            return attempts.answer(http.request(**attempts.request()))
        except FAILURES as failure:
            sleep(attempts.pause_after(failure))
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import httpx2

from taskmq.client.calls import Call
from taskmq.client.errors import Problem, of_error, unavailable, unknown
from taskmq.client.target import resolve
from taskmq.errors import TaskMQError
from taskmq.wire import strict
from taskmq.wire.credentials import Credentials

T = TypeVar("T")
FAILURES = (httpx2.TransportError, TaskMQError)
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_AGAIN = (429, 502, 503, 504)


class Configured:
    """What both clients are made of; see ``Client``."""

    def __init__(
        self,
        url: str | None = None,
        credentials: Credentials | str | None = None,
        *,
        timeout: float = 10.0,
        max_retries: int = 4,
        transport: Any = None,
        insecure: bool = False,
        verify: Any = True,
    ) -> None:
        self.url, self.credentials = resolve(url, credentials, insecure=insecure)
        self.verify = verify
        self._timeout = timeout
        self._max_retries = max_retries
        headers = {"Authorization": f"Bearer {self.credentials.token}"}
        self._open({"headers": headers, "transport": transport, "verify": verify})

    def _open(self, options: dict[str, Any]) -> None:
        """Make the HTTP client beneath."""
        raise NotImplementedError

    def _attempts(self, call: Call[T]) -> Attempts[T]:
        return Attempts(call, self.url, self._timeout, self._max_retries)


class Attempts(Generic[T]):
    """All within ``timeout`` seconds, ``most`` of them beyond the first."""

    def __init__(self, call: Call[T], url: str, timeout: float, most: int) -> None:
        self._call = call
        self._url = url
        self._left = most
        self._made = 0
        self._status = 0
        self._end = time.monotonic() + timeout + call.extra

    def request(self) -> dict[str, Any]:
        """Arguments of an httpx2 request."""
        call, left = self._call, max(0.001, self._end - time.monotonic())
        self._status = 0
        where = {"method": call.method, "url": self._url + call.path}
        return {**where, "content": call.body, "headers": call.headers, "timeout": left}

    def answer(self, response: httpx2.Response) -> T:
        """The value of an answer; raises its error."""
        self._status = response.status_code
        return _read(self._call, response.status_code, response.headers, response.content)

    def pause_after(self, failure: Exception) -> float:
        """Seconds to wait before the next try; raises the error that the failure is, where there is none."""
        error, sent = self._error_of(failure)
        pause = self._pause(error, sent)
        if pause is None:
            raise error
        return pause

    def _error_of(self, failure: Exception) -> tuple[TaskMQError, bool]:
        """The error, and whether the request may have reached the server."""
        if isinstance(failure, TaskMQError):
            return failure, True
        if isinstance(failure, _NOT_SENT):
            return unavailable(f"{self._url} cannot be reached: {failure}"), False
        return unknown(f"the answer of {self._url} was lost: {failure}"), True

    def _pause(self, error: TaskMQError, sent: bool) -> float | None:
        if self._left <= 0 or (self._status and self._status not in _AGAIN):
            return None
        if not self._call.again and (sent or self._status) and self._status != 429:
            return None
        after = error.retry_after if isinstance(error, Problem) else None
        pause = after if after is not None else random.uniform(0, min(5.0, 0.2 * 2**self._made))
        if time.monotonic() + pause >= self._end:
            return None
        self._left -= 1
        self._made += 1
        return pause


def _read(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> T:
    try:
        value = strict.loads(content)
    except ValueError:
        value = None
    lower = {name.lower(): text for name, text in headers.items()}
    if status < 300 and isinstance(value, dict) and isinstance(value.get("data"), dict):
        return call.read(value["data"], lower)
    after = lower.get("retry-after", "")
    raise of_error(
        value.get("error") if isinstance(value, dict) else None, status, float(after) if after.isdigit() else None
    )
