"""Addresses of model servers, and requests to servers that answer badly, late or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from indelible.errors import ModelError
from indelible.servers.address import key_for, parse_address
from indelible.servers.http import LONGEST_WAIT, TRIES, Client, Rejected, in_parallel
from indelible.servers.load import load_server

KEY = "sk-not-for-anyone"
GOOD = (200, {}, b'{"fine": 1}')


@contextmanager
def scripted(
    *replies: tuple[int, dict[str, str], bytes] | str, bad: str = ""
) -> Iterator[tuple[str, list[str | None]]]:
    """A server that gives these raw replies in turn, the last one for ever, and on the path `bad` always a 500; and the
    keys that it was sent."""
    left, keys, ended = list(replies), [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization"))
            now = left.pop(0) if len(left) > 1 else left[0]
            if bad and self.path == bad:
                now = (500, {}, b'{"error": {"message": "prompt: private", "type": "oops"}}')
            if now == "slow":
                ended.wait(10)
                return
            status, headers, body = now
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", keys
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def client(url: str, waits: list[float] | None = None, **settings: Any) -> Client:
    return Client(url, sleep=(waits if waits is not None else []).append, **settings)


@pytest.mark.parametrize(
    "bad",
    [
        (429, {}, b"{}"),
        (500, {}, b"Internal Server Error"),
        (503, {}, b'{"error": {"message": "Loading model", "code": 503}}'),
        (200, {}, b'{"fine": 1'),
        (200, {"Content-Length": "99"}, b'{"fine": 1}'),
        "slow",
    ],
    ids=["429", "500", "503", "half JSON", "half body", "slow"],
)
def test_what_may_pass_is_waited_out(bad) -> None:
    waits: list[float] = []
    with scripted(bad, bad, bad, GOOD) as (url, keys):
        assert client(url, waits, timeout=0.2 if bad == "slow" else 30).request("/x") == {"fine": 1}
    assert len(keys) == 4
    assert all(2**k / 2 <= wait <= 2**k for k, wait in enumerate(waits))
    assert len(waits) == 3


def test_a_server_that_fails_for_ever_ends_the_run_with_one_line() -> None:
    waits: list[float] = []
    reply = (500, {}, b'{"error": {"message": "prompt: private", "type": "oops"}}')
    with scripted(reply) as (url, keys), pytest.raises(ModelError) as caught:
        client(url, waits).request("/x")
    assert str(caught.value) == f"{url} answers 500, oops (asked {TRIES} times)"
    assert len(keys) == TRIES
    assert len(waits) == TRIES - 1


def test_a_question_on_which_a_server_always_fails_is_refused_while_others_are_answered() -> None:
    with scripted(GOOD, bad="/bad") as (url, keys):
        found = client(url)
        found.request("/good", {"question": 1})
        for _ in range(5):
            with pytest.raises(Rejected) as caught:
                found.request("/bad", {"question": 2})
            assert caught.value.reason == f"the server fails on the question (500, oops; asked {TRIES} times)"
    assert len(keys) == 1 + 5 * (TRIES + 1)


def test_a_server_that_fails_on_what_it_answered_before_is_broken() -> None:
    with scripted(GOOD, GOOD, (500, {}, b"{}")) as (url, keys):
        found = client(url)
        found.request("/models")
        found.request("/good", {"question": 1})
        with pytest.raises(ModelError, match="answers 500") as caught:
            found.request("/other", {"question": 2})
    assert not isinstance(caught.value, Rejected)
    assert len(keys) == 2 + TRIES + 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_busy_is_no_fault_of_a_question(status: int) -> None:
    with scripted(GOOD, (status, {}, b"{}")) as (url, _):
        found = client(url)
        found.request("/good", {})
        with pytest.raises(ModelError, match=f"answers {status}") as caught:
            found.request("/x", {})
    assert not isinstance(caught.value, Rejected)


@pytest.mark.parametrize(
    ("value", "low", "high"), [("7", 7, 8), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 1), ("soon", 0.5, 1)]
)
def test_a_server_is_left_alone_for_as_long_as_it_says(value: str, low: float, high: float) -> None:
    waits: list[float] = []
    with scripted((429, {"Retry-After": value}, b"{}"), GOOD) as (url, _):
        client(url, waits).request("/x")
    assert len(waits) == 1
    assert low <= waits[0] <= high


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((429, {"Retry-After": str(LONGEST_WAIT + 60)}, b"{}"), "answers 429, and wants to be left alone for 66"),
        ((429, {}, b'{"error": {"code": "insufficient_quota"}}'), "the account's allowance is used up"),
        ((401, {}, b'{"error": {"message": "Incorrect API key: sk-not-for-anyone"}}'), "401: the key is refused"),
        ((403, {}, b"{}"), "403: the key is refused"),
        ((302, {"Location": "http://elsewhere.invalid/"}, b""), "answers 302 and sends elsewhere"),
        ((200, {}, b"[1]"), "JSON that is no object"),
    ],
)
def test_what_does_not_pass_is_one_line_at_once(reply, message: str) -> None:
    waits: list[float] = []
    with scripted(reply) as (url, keys), pytest.raises(ModelError) as caught:
        client(url, waits, key=KEY).request("/x")
    assert message in str(caught.value)
    assert KEY not in str(caught.value)
    assert keys == [f"Bearer {KEY}"]
    assert waits == []


def test_a_refusal_tells_its_code_and_not_what_was_asked() -> None:
    body = b'{"error": {"message": "too long: my secret text", "code": "context_length_exceeded"}}'
    with scripted((400, {}, body)) as (url, keys), pytest.raises(Rejected) as caught:
        client(url).request("/x")
    assert caught.value.reason == "the server refuses the question (400, context_length_exceeded)"
    assert caught.value.said == "too long: my secret text"
    assert len(keys) == 1


def test_a_server_that_is_not_there_is_one_line_and_one_that_went_away_is_waited_for() -> None:
    waits: list[float] = []
    with scripted(GOOD) as (url, _):
        found = client(url, waits)
        found.request("/x")
    with pytest.raises(ModelError, match="ConnectionRefusedError"):
        found.request("/x")
    assert len(waits) == TRIES - 1
    with pytest.raises(ModelError, match=r"cannot be reached \(Connection refused\): is the server running\?"):
        client(url).request("/x")


def test_requests_keep_to_the_rate() -> None:
    waits: list[float] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    with scripted(GOOD) as (url, _):
        found = Client(url, requests_per_minute=30, sleep=sleep, clock=lambda: now[0])
        for _ in range(3):
            found.request("/x")
        now[0] += 60
        found.request("/x")
    assert waits == pytest.approx([2, 2])


def test_many_are_asked_at_once_and_no_more() -> None:
    lock, full = threading.Lock(), threading.Barrier(3)
    now, most = [0], [0]

    def ask(i: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if i < 3:
            full.wait(10)  # passes only if three are in flight
        with lock:
            now[0] -= 1
        return i * i

    assert sorted(in_parallel(ask, 20, 3)) == [(i, i * i) for i in range(20)]
    assert most == [3]


def test_the_first_error_stops_the_asking() -> None:
    asked: list[int] = []

    def ask(i: int) -> int:
        asked.append(i)
        if i == 2:
            raise ModelError("gone")
        return i

    with pytest.raises(ModelError, match="gone"):
        list(in_parallel(ask, 1000, 1))
    assert asked == [0, 1, 2]


def test_an_address_is_taken_apart() -> None:
    found = parse_address(
        "server:https://h:1/a/v1/?model=org%2Fm&tokenizer=/t&requests_per_minute=30&concurrency=2&timeout=5"
    )
    assert (found.url, found.model, found.tokenizer) == ("https://h:1/a/v1", "org/m", "/t")
    assert (found.requests_per_minute, found.concurrency, found.timeout) == (30, 2, 5)
    assert parse_address("server:http://localhost:8000").url == "http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("localhost:8000", "expected server:http://HOST:PORT"),
        ("http://", "expected server:http://HOST:PORT"),
        ("http://h:port/", "expected server:http://HOST:PORT"),
        (f"http://me:{KEY}@h:1", "holds no user name or password"),
        (f"http://h:1?api_key={KEY}", "unknown option of a server's address 'api_key'"),
        (f"http://h:1?{KEY}", "unknown option of a server's address '...'"),
        ("http://h:1?concurrency=many", "option concurrency of a server's address: expected a number above 0"),
        ("http://h:1?timeout=0", "option timeout of a server's address: expected a number above 0"),
        ("http://h:1?model=", "option model of a server's address: expected a text"),
    ],
)
def test_an_address_that_is_none_is_one_line_without_secrets(given: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_address(f"server:{given}")
    assert message in str(caught.value)
    assert KEY not in str(caught.value)


OPENAI = "https://api.openai.com/v1"


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/v1",
        "https://elsewhere.example/v1",
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://api.openai.com.elsewhere.example/v1",
        "https://elsewhere.example/https://api.openai.com",
    ],
)
def test_the_key_of_openai_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.delenv("INDELIBLE_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert key_for(url) is None
    assert key_for(OPENAI) == key_for("https://API.OpenAI.com:443/v1") == "theirs"
    monkeypatch.setenv("INDELIBLE_API_KEY", " ours ")
    assert key_for(url) == key_for(OPENAI) == "ours"
    monkeypatch.setenv("INDELIBLE_API_KEY", "")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert key_for(url) is key_for(OPENAI) is None


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("http://models.example:8000", KEY, "the records and the key can be read on the way"),
        ("http://models.example:8000", "", "the records can be read on the way"),
        ("https://models.example", KEY, ""),
        ("http://localhost:8000", KEY, ""),
        ("http://127.0.0.5:8000", KEY, ""),
        ("http://[::1]:8000", KEY, ""),
    ],
)
def test_what_can_be_read_on_the_way_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, key: str, said: str
) -> None:
    def stop(_: Client) -> None:
        raise ModelError("reached")

    monkeypatch.setenv("INDELIBLE_API_KEY", key)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("indelible.servers.load._listed", stop)
    with pytest.raises(ModelError, match="reached"):
        load_server(f"server:{url}")
    told = capsys.readouterr().err
    assert said in told
    assert bool(told) == bool(said)
    assert KEY not in told
