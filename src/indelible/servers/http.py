"""Talking to a model server: requests with patience, many at a time.

The key goes into one header. It is in no name, no error and no file.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import queue
import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from indelible.errors import ModelError
from indelible.servers.address import KEY, is_this_machine

T = TypeVar("T")

TRIES = 7
"""How often a question is put before the run gives up: about a minute of waiting in all."""

LONGEST_WAIT = 600.0
"""Seconds. A server that asks for more, such as at the end of a day's allowance, ends the run; what it said is kept."""

_AGAIN = {408, 425, 429, 500, 502, 503, 504, 529}
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{2,40}")


class Rejected(ModelError):
    """The server is well but does not answer this question (400, 404, 422 and the like).

    `reason` has the status and the server's own error code: nothing of the question. `said` is the server's message,
    which may repeat the question and is shown for our own probes only.
    """

    def __init__(self, status: int, code: str, said: str, *, tries: int = 1) -> None:
        self.status, self.code, self.said = status, code, said
        told = f"{status}{f', {code}' if code else ''}"
        self.reason = f"the server refuses the question ({told})"
        if tries > 1:
            self.reason = f"the server fails on the question ({told}; asked {tries} times)"
        super().__init__(self.reason)


@dataclass
class Client:
    """Puts questions to one server, again where waiting may help.

    Tried again, with waits that double, up to `tries` times: 408, 429, 5xx, connections that break or time out, answers
    that are no whole JSON. `Retry-After` is waited out.

    A 500 may be the question's own fault. After all tries the question that was answered last is put once more: if that
    is still answered, the other one is refused and the run goes on.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    requests_per_minute: float | None = None
    tries: int = TRIES
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _next: float = 0.0  # when the rate allows another request
    _met: bool = False  # it answered once: it is there, and gone only for a while
    _answered: tuple[str, Any] | None = field(default=None, repr=False)  # the last question that was

    def __post_init__(self) -> None:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if is_this_machine(urllib.parse.urlsplit(self.url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)
        # No result hangs on it, and clients that started together must not come back together: not seeded.
        self._jitter = random.Random()

    def request(
        self, path: str, body: Any = None, *, tries: int | None = None, final: frozenset[int] = frozenset()
    ) -> dict[str, Any]:
        """A GET, or with `body` a POST of JSON; the answer's JSON object. Of a status in `final` nothing better is
        hoped for.

        Raises:
            Rejected: this question is refused.
            ModelError: unreachable, a wrong key, or still failing after all tries; one line.
        """
        tries = tries or self.tries
        for attempt in range(tries):
            self._pace()
            try:
                found = self._once(path, body, final)
            except _Again as again:
                if attempt + 1 == tries:
                    if again.refusal is not None and self._is_well():
                        told = again.refusal
                        raise Rejected(told.status, told.code, told.said, tries=tries) from None
                    raise ModelError(f"{self.url} {again} (asked {tries} times)") from None
                wait = 2**attempt * self._jitter.uniform(0.5, 1)
                if again.after is not None:
                    wait = again.after + self._jitter.uniform(0, 1)
                if wait > LONGEST_WAIT:
                    raise ModelError(f"{self.url} {again}, and wants to be left alone for {wait:.0f} s") from None
                self.sleep(wait)
            else:
                if body is not None:
                    self._answered = (path, body)
                return found
        raise AssertionError

    def _is_well(self) -> bool:
        """Whether the server still answers the question that it answered last."""
        if self._answered is None:
            return False
        self._pace()
        try:
            self._once(*self._answered, frozenset())
        except (_Again, ModelError):
            return False
        return True

    def _pace(self) -> None:
        """Wait for this request's turn: turns are evenly spaced."""
        if self.requests_per_minute is None:
            return
        with self._lock:
            now = self.clock()
            turn = max(now, self._next)
            self._next = turn + 60 / self.requests_per_minute
        if turn > now:
            self.sleep(turn - now)

    def _once(self, path: str, body: Any, final: frozenset[int]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "User-Agent": "indelible"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            with self._opener.open(
                urllib.request.Request(self.url + path, data, headers), timeout=self.timeout
            ) as reply:
                self._met = True
                raw = reply.read()
        except urllib.error.HTTPError as error:
            self._met = True
            with error:
                raise self._refusal(error, final) from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ModelError(f"{self.url}: its certificate is not trusted ({cause.verify_message})") from None
            why = "did not answer in time" if isinstance(cause, TimeoutError) else f"broke off ({type(cause).__name__})"
            if not self._met and not isinstance(cause, TimeoutError):
                raise ModelError(f"{self.url} cannot be reached ({_reason(cause)}): is the server running?") from None
            raise _Again(why) from None
        try:
            found = json.loads(raw)
        except ValueError:
            raise _Again("answers with something that is not JSON") from None
        if not isinstance(found, dict):
            raise ModelError(
                f"{self.url}{path} answers with JSON that is no object: is it an OpenAI-compatible server?"
            )
        return found

    def _refusal(self, error: urllib.error.HTTPError, final: frozenset[int]) -> Exception:
        status, (code, said) = error.code, self._message(error)
        if status in {401, 403}:
            which = "the key is refused" if self.key else f"no key was sent: set {KEY}"
            return ModelError(f"{self.url} answers {status}: {which}")
        if 300 <= status < 400:
            return ModelError(f"{self.url} answers {status} and sends elsewhere: give the address it sends to")
        if status in _AGAIN - final and code != "insufficient_quota":
            after = _retry_after(error.headers.get("Retry-After"))
            refusal = Rejected(status, code, said) if status == 500 else None
            return _Again(f"answers {status}{f', {code}' if code else ''}", after, refusal)
        if status == 429:
            return ModelError(f"{self.url} answers 429: the account's allowance is used up")
        return Rejected(status, code, said)

    def _message(self, error: IO[bytes]) -> tuple[str, str]:
        """The server's error code, '' where it is no plain name, and its message in one line."""
        try:
            raw = error.read(100_000)
            found: Any = json.loads(raw)
        except (OSError, ValueError, http.client.HTTPException):
            return "", ""
        inner = found.get("error", found) if isinstance(found, dict) else found
        told = inner if isinstance(inner, dict) else {"message": inner}
        codes = [str(told.get(name, "")) for name in ("code", "type")]
        code = next((c for c in codes if _CODE.fullmatch(c) and c != self.key), "")
        said = told.get("message") or told.get("detail") or ""
        line = " ".join((said if isinstance(said, str) else json.dumps(said)).split())[:300]
        return code, line.replace(self.key, "***") if self.key else line


class _Again(Exception):
    """It may help to ask again, `after` so many seconds. `refusal`: what it is where that does not help and others are
    answered; None for a failure that is the server's own."""

    def __init__(self, why: str, after: float | None = None, refusal: Rejected | None = None) -> None:
        super().__init__(why)
        self.after, self.refusal = after, refusal


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would carry the key along to wherever it is sent."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _reason(cause: Any) -> str:
    text = getattr(cause, "strerror", None) or type(cause).__name__
    return " ".join(str(text).split())


def _retry_after(value: str | None) -> float | None:
    """Seconds from a `Retry-After` header: a number or a date; None where there is none that can be read."""
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return None


def in_parallel(ask: Callable[[int], T], n: int, threads: int) -> Iterator[tuple[int, T]]:
    """`ask(0)` to `ask(n - 1)`, so many at a time, in the order in which they get ready, with the index of each.

    The first error is raised, and nothing more is asked. The threads are daemons: an interrupted run ends at once and
    does not wait for the questions in flight.
    """
    todo, lock, stop = iter(range(n)), threading.Lock(), threading.Event()
    ready: queue.Queue[tuple[int, T | None, BaseException | None]] = queue.Queue()

    def work() -> None:
        while not stop.is_set():
            with lock:
                i = next(todo, None)
            if i is None:
                return
            try:
                ready.put((i, ask(i), None))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                ready.put((i, None, error))
                return

    for _ in range(min(threads, n)):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in range(n):
            i, found, error = ready.get()
            if error is not None:
                raise error
            yield i, found  # type: ignore[misc]
    finally:
        stop.set()
