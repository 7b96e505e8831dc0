"""What a model behind a server promises, on real HTTP: our own little server on the toy, and servers that misbehave."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indelible.attacks import make_attack
from indelible.data.records import Message, Query, Record, Reply
from indelible.errors import ModelError, Unscorable
from indelible.interview import Interview
from indelible.models.base import LanguageModel
from indelible.models.generation import end_marker
from indelible.models.server import ServerModel
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import answer
from indelible.scoring.replies import reply
from indelible.scoring.staleness import still_holds
from indelible.servers.load import describe_server, load_server

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
KEY = "sk-not-for-anyone"
ASKED = (Message("user", "When is my hearing test?"),)
QUERIES = [
    Query(ASKED, "It is on Monday, with Dr. Ärger."),
    Query((), "A text about a test."),
    Query((Message("user", "a"), Message("assistant", "It is b.", scored=True), Message("user", "c")), "No."),
]


def _example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "serve_local.py"
    spec = importlib.util.spec_from_file_location("serve_local", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = _example()


@contextmanager
def serving(ask: Ask, key: str | None = None) -> Iterator[str]:
    """A server on a free port; `ask` answers the bodies of requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), example.handler(ask, key))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INDELIBLE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def plain(toy) -> Any:
    return example.Answerer(toy, "toy")


@pytest.fixture(scope="module")
def url(plain) -> Iterator[str]:
    with serving(plain) as found:
        yield found


def load(url: str, *options: str, **settings: Any) -> ServerModel:
    address = "server:" + url + ("?" + "&".join(options) if options else "")
    return load_server(address, sleep=lambda _: None, **settings)[0]


@pytest.fixture(scope="module")
def model(url: str) -> ServerModel:
    return load(url, "tokenizer=builtin:toy")


# ------------------------------------------------------------------------------------------------ log-probabilities


def refuse(what: str) -> dict[str, Any]:
    raise example.Refused(400, what)


def echo(plain: Any) -> Ask:
    """Knows no `prompt_logprobs`, and says nothing about it."""
    return lambda path, body: plain(path, {k: v for k, v in body.items() if k != "prompt_logprobs"})


def echo_of_text(plain: Any) -> Ask:
    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return refuse("prompt must be a string") if isinstance(body.get("prompt"), list) else echo(plain)(path, body)

    return ask


def echo_after_bos(plain: Any) -> Ask:
    """Puts the toy's first token before every text, as SentencePiece servers do."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/completions" and isinstance(body["prompt"], str):
            body = body | {"prompt": "<|im_start|>" + body["prompt"]}
        return echo_of_text(plain)(path, body)

    return ask


def llama_cpp(plain: Any, *, biased: bool = False) -> Ask:
    """Gives no prompt's log-probabilities; a bias chooses the token, and if `biased` also its number, as hosted ones
    have it."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path != "/v1/completions" or "logprobs" not in body:
            return plain(path, {k: v for k, v in body.items() if k not in ("prompt_logprobs", "echo")})
        made = plain(path, {k: v for k, v in body.items() if k not in ("prompt_logprobs", "echo", "logit_bias")})
        ids = plain.tokenizer(body["prompt"])["input_ids"] if isinstance(body["prompt"], str) else body["prompt"]
        row = plain._continue(list(ids), {"temperature": 0}, 1)[1][-1]
        forced = next(iter(body.get("logit_bias", {})), None)
        chosen = int(row.argmax()) if forced is None else int(forced)
        text = plain.tokenizer.decode([chosen])
        entry = {"id": chosen, "token": text, "logprob": -1e-4 if biased and forced else float(row[chosen])}
        top = [{"id": i, "token": plain.tokenizer.decode([i]), "logprob": float(row[i])}
               for i in row.topk(min(body["logprobs"], len(row))).indices.tolist()]  # fmt: skip
        choice = made["choices"][0]
        choice["logprobs"] = None if "\ufffd" in text else {"content": [entry | {"top_logprobs": top}]}
        return made

    return ask


@pytest.mark.parametrize(
    ("bend", "form", "prompt"),
    [
        (lambda plain: plain, "prompt_logprobs", "ids"),
        (echo, "echo", "ids"),
        (echo_of_text, "echo", "text"),
        (echo_after_bos, "echo", "text after bos"),
        (llama_cpp, "forced", "ids"),
    ],
)
def test_given_text_has_the_log_probabilities_it_has_here(plain, toy, bend, form: str, prompt: str) -> None:
    with serving(bend(plain)) as url:
        found = load(url, "tokenizer=builtin:toy")
        scoring = found.capabilities.scoring
        assert scoring is not None
        assert (scoring.form, scoring.prompt) == (form, prompt)
        assert found.access == {"logprobs", "top-k", "text"}
        queries = (
            QUERIES if prompt != "text after bos" else [QUERIES[0], QUERIES[2]]
        )  # a text begins with no such token
        encoded = [found.encode(q) for q in queries]
        answers = dict(found.stream(encoded))
    here = dict(toy.stream([toy.encode(q) for q in queries]))
    for i, e in enumerate(encoded):
        assert e.input_ids.tolist() == toy.encode(queries[i]).input_ids.tolist()
        got = answers[i]
        assert not isinstance(got, Unscorable)
        np.testing.assert_allclose(got.logprobs, here[i].logprobs, atol=1e-4)
        known = got.argmax >= 0
        assert known.mean() > 0.8, "only parts of characters have no name of their own"
        assert (got.argmax == here[i].argmax)[known].all()
        assert np.isnan(got.mean).all()
        assert np.isnan(got.std).all()
        assert [p.dtype for p in (got.logprobs, got.mean, got.std, got.argmax)] == ["f4", "f4", "f4", "i4"]


def test_it_is_a_language_model(model, toy) -> None:
    assert isinstance(model, LanguageModel)
    assert model.context_length == 1023, "one token is the server's to write"
    assert list(model.costs([model.encode(q) for q in QUERIES])) == [len(toy.encode(q)) for q in QUERIES]
    assert list(model.stream([])) == []
    with pytest.raises(ModelError, match="cannot rank 2 candidates"):
        model.rank(QUERIES[0], ["a", "b"])


def test_a_server_whose_bias_moves_the_numbers_gives_most_probable_tokens_alone(plain, toy) -> None:
    with serving(llama_cpp(plain, biased=True)) as url:
        found = load(url, "tokenizer=builtin:toy")
        assert found.access == {"top-k", "text"}
        answers = dict(found.stream([found.encode(QUERIES[0])]))
    here = dict(toy.stream([toy.encode(QUERIES[0])]))[0]
    got = answers[0]
    assert not isinstance(got, Unscorable)
    whole = got.argmax >= 0
    assert (got.argmax == here.argmax)[whole].all()
    told = np.isfinite(got.logprobs)
    assert 0 < told.sum() < len(told), "a number where the token is among the most probable ones, none elsewhere"
    np.testing.assert_allclose(got.logprobs[told], here.logprobs[told], atol=1e-4)


def _told(bend: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Ask]:
    """The numbers of given text bent; those of what it writes stay."""

    def make(plain: Any) -> Ask:
        def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            found = echo(plain)(path, body)
            if body.get("echo"):
                told = found["choices"][0]["logprobs"]
                told["token_logprobs"] = bend(told["token_logprobs"])
            return found

        return ask

    return make


def other_tokens(plain: Any) -> Ask:
    """A server of another model: the same ids are other tokens."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if isinstance(body.get("prompt"), str):
            return refuse("ids alone")
        return echo(plain)(
            path, body | {"prompt": [3 + (i + 7) % 500 for i in body["prompt"]]} if "prompt" in body else body
        )

    return ask


def no_top(plain: Any) -> Ask:
    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = echo(plain)(path, body)
        if body.get("echo"):
            found["choices"][0]["logprobs"]["top_logprobs"] = None
        return found

    return ask


LIES: dict[str, tuple[Callable[[Any], Ask], str]] = {
    "zeros": (_told(lambda rows: [None, *[0.0] * (len(rows) - 1)]), "0.0 for every token"),
    "zeros that blink": (_told(lambda rows: [p if k % 2 else 0.0 for k, p in enumerate(rows)]), "more than|another"),
    "nulls": (_told(lambda rows: [None] * len(rows)), "gave no log-probability"),
    "one number": (_told(lambda rows: [None, *[-9.0] * (len(rows) - 1)]), "the same number for every token"),
    "a row late": (_told(lambda rows: [None, rows[1], *rows[1:-1]]), "another log-probability|more than"),
    "probabilities": (_told(lambda rows: [None, *[math.exp(p) for p in rows[1:]]]), "no log-probability|more than"),
    "base two": (_told(lambda rows: [None, *[p / math.log(2) for p in rows[1:]]]), "another log-probability"),
    "not a number": (_told(lambda rows: [None, *[math.nan] * (len(rows) - 1)]), "gave no log-probability"),
    "words": (_told(lambda rows: ["low"] * len(rows)), "a form that is not known"),
    "too few": (_told(lambda rows: rows[:3]), "a form that is not known"),
    "other tokens": (other_tokens, "tokens are not the tokenizer's"),
}


@pytest.mark.parametrize("lie", LIES)
def test_numbers_that_are_no_log_probabilities_are_refused_and_text_is_still_given(plain, lie: str) -> None:
    bend, reason = LIES[lie]

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:  # no way but the bent one
        return refuse("no bias") if "logit_bias" in body else bend(plain)(path, body)

    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy")
        assert "logprobs" not in found.access
        assert "text" in found.access
        assert re.search(f"echo with ids: [^;]*({reason})", found.capabilities.notes[0])
        if found.capabilities.scoring is None:
            with pytest.raises(ModelError, match="gives no log-probabilities of given text"):
                found.stream([found.encode(QUERIES[0])])


def test_without_alternatives_the_most_probable_token_is_not_known(plain) -> None:
    with serving(no_top(plain)) as url:
        found = load(url, "tokenizer=builtin:toy")
        assert found.access == {"logprobs", "text"}
        answers = dict(found.stream([found.encode(QUERIES[0])]))
    got = answers[0]
    assert not isinstance(got, Unscorable)
    assert (got.argmax == -1).all()


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (lambda found: found["choices"][0]["prompt_logprobs"].pop(), "not of the tokens sent"),
        (lambda found: found.update(choices=[]), "holds no choice"),
        (lambda found: found["choices"][0].update(prompt_logprobs=None), "no log-probabilities of the prompt"),
        (lambda found: [e["logprob"] for e in _entries(found)] and _set(found, 0.0), "0.0 for every token"),
        (lambda found: _set(found, 0.5), "no log-probability"),
        (lambda found: _set(found, -9999.0), "no log-probability"),
        (lambda found: [e.update(decoded_token="qqq") for e in _entries(found)], "names its tokens otherwise"),
        (lambda _: refuse("the answer was: 'It is on Monday'"), r"refuses the question \(400"),
    ],
)
def test_a_server_that_turns_bad_fails_single_questions_with_a_reason(plain, turn, reason: str) -> None:
    bad = threading.Event()

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = plain(path, body)
        if bad.is_set() and "prompt_logprobs" in body and len(body["prompt"]) > 40:
            turn(found)
        return found

    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy")
        bad.set()
        encoded = [found.encode(q) for q in QUERIES]
        assert [len(e) > 40 for e in encoded] == [True, False, True]
        answers = dict(found.stream(encoded))
    assert [isinstance(answers[i], Unscorable) for i in range(3)] == [True, False, True]
    assert re.search(reason, str(answers[0]))
    assert "Monday" not in str(answers[0]), "reasons are written into runs; what was asked is not"


def test_a_question_on_which_the_server_always_fails_has_a_reason_and_stops_no_other(plain) -> None:
    bad = threading.Event()

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if bad.is_set() and "prompt_logprobs" in body and len(body["prompt"]) < 40:
            raise example.Refused(500, "A text about a test.")
        return plain(path, body)

    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy")
        bad.set()
        answers = dict(found.stream([found.encode(q) for q in QUERIES]))
    assert [isinstance(answers[i], Unscorable) for i in range(3)] == [False, True, False]
    assert re.fullmatch(r"the server fails on the question \(500.*; asked 7 times\)", str(answers[1]))
    assert "about a test" not in str(answers[1])


def test_a_reply_ends_where_the_template_says_here_and_behind_a_server(model, toy) -> None:
    assert end_marker(toy.chat).strip() == model._end_marker() == "<|im_end|>"
    assert end_marker(replace(toy.chat, template=None)) == ""


def _entries(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for told in found["choices"][0]["prompt_logprobs"] if told for e in told.values()]


def _set(found: dict[str, Any], value: float) -> None:
    for entry in _entries(found):
        entry["logprob"] = value


# ------------------------------------------------------------------------------------------------------------ replies


def replied(model: ServerModel, *queries: Query) -> list[str | Unscorable]:
    found = dict(model.replies(list(queries)))
    return [found[i] for i in range(len(queries))]


def asking(**settings: Any) -> Query:
    return Query(ASKED, "", reply=Reply(10, **settings))


@pytest.mark.parametrize("options", [("tokenizer=builtin:toy",), ()], ids=["our prompts", "its chat"])
def test_replies_are_the_models_own(url: str, toy, options: tuple[str, ...]) -> None:
    found = load(url, *options)
    queries = [asking(), asking(begun="It is"), replace(asking(), messages=(Message("system", "Be kind."), *ASKED))]
    here = dict(toy.replies(queries))
    assert replied(found, *queries) == [here[i] for i in range(3)]
    one, other, again = replied(found, *(asking(temperature=1.0, seed=s) for s in (1, 2, 1)))
    assert one == again
    assert one != other
    assert found.generate([Query(ASKED, "ignored")], 10, begun=["It is"]) == [here[1]]


def test_a_draw_depends_on_its_question_and_seed_alone(model) -> None:
    asked = [replace(asking(temperature=1.0, seed=s), messages=(Message("user", m),)) for m in "ab" for s in (0, 1)]
    together = replied(model, *asked)
    assert [replied(model, q)[0] for q in asked] == together
    assert len(set(together)) > 2


def test_without_a_tokenizer_there_is_text_alone_and_words_are_counted(url: str) -> None:
    found = load(url)
    assert found.access == {"text"}
    assert "need the model's own tokenizer" in found.capabilities.notes[0]
    encoded = found.encode(QUERIES[2])
    turns = [(s.turn, s.start, s.end) for s in encoded.spans if s is not None]
    assert turns == [(0, 0, 2), (0, 3, 5), (0, 6, 8), (1, 0, 3)]
    assert encoded.is_target.tolist() == [False, True, True, True, False, True]
    assert found.encode(Query((), "Two words")).is_target.tolist() == [False, True]
    assert found.prompt_length(asking()) == 5
    assert found.prompt_length(Query((), "", reply=Reply(1))) == 0
    assert replied(found, Query((Message("text", "Once"),), "", reply=Reply(4)))[0].args == (
        "the server only chats: it cannot go on with a plain text",
    )
    with pytest.raises(ModelError, match="gives no log-probabilities"):
        found.stream([encoded])


def test_the_server_renders_with_the_system_turn_that_is_asked_for(url: str, plain) -> None:
    seen: list[Any] = []

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        seen.append(body.get("messages"))
        return plain(path, body)

    with serving(ask) as spied:
        replied(load(spied, system="Be brief."), asking())
    assert seen[-1] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED[0].content}]


def test_a_reply_that_is_begun_is_gone_on_with_or_refused(plain, toy) -> None:
    def fresh(path: str, body: dict[str, Any]) -> dict[str, Any]:  # starts another reply
        return plain(
            path, {k: v for k, v in body.items() if k not in ("continue_final_message", "add_generation_prompt")}
        )

    def again(path: str, body: dict[str, Any]) -> dict[str, Any]:  # goes on, and writes the beginning again
        going_on = path.endswith("chat/completions") and body["messages"][-1]["role"] == "assistant"
        found = plain(path, body | {"continue_final_message": going_on})
        if going_on:
            message = found["choices"][0]["message"]
            message["content"] = body["messages"][-1]["content"] + message["content"]
        return found

    expected = toy.generate([Query(ASKED, "")], 10, begun=["It is"])[0]
    with serving(fresh) as url:
        found = load(url)
        assert found.capabilities.writing.begins == "no"
        assert "does not go on with a reply that is begun" in str(replied(found, asking(begun="It is"))[0])
        with pytest.raises(ModelError, match="does not go on"):
            found.generate([Query(ASKED, "")], 10, begun=["It is"])
    with serving(again) as url:
        found = load(url)
        assert found.capabilities.writing.begins == "repeats"
        assert replied(found, asking(begun="It is")) == [expected]


def test_a_server_that_does_not_draw_is_not_asked_for_draws(plain) -> None:
    with serving(lambda path, body: plain(path, body | {"temperature": 0})) as url:
        found = load(url, "tokenizer=builtin:toy")
        assert not found.capabilities.draws
        drawn, greedy = replied(found, asking(temperature=0.7), asking())
        assert "does not draw" in str(drawn)
        assert isinstance(greedy, str)


def test_a_strict_server_is_asked_without_fields_of_its_own(plain) -> None:
    known = {"model", "prompt", "messages", "max_completion_tokens", "temperature", "seed", "stop"}

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        strange = set(body) - known
        if strange or "prompt" in body:
            return refuse(f"unsupported: {sorted(strange)}")
        return plain(path, {("max_tokens" if k == "max_completion_tokens" else k): v for k, v in body.items()})

    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy")
        assert found.capabilities.writing.limit == "max_completion_tokens"
        assert found.capabilities.writing.route == "chat"
        assert replied(found, asking()) == replied(load(url), asking())


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (lambda found: found["choices"][0].update(text=None), "gave no text"),
        (lambda found: found["choices"][0].update(finish_reason="content_filter"), "filter held the reply back"),
        (lambda found: found["usage"].update(prompt_tokens=3), "read 3 tokens of a prompt of 24"),
        (lambda found: found.pop("choices"), "holds no choice"),
    ],
)
def test_a_reply_that_is_none_has_a_reason(plain, bend, reason: str) -> None:
    bad = threading.Event()

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = plain(path, body)
        if bad.is_set():
            bend(found)
        return found

    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy")
        bad.set()
        assert reason in str(replied(found, asking())[0])


# ------------------------------------------------------------------------------------------- loading and its errors


def test_what_identifies_a_model(url: str, plain, model) -> None:
    def other(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = plain(path, body)
        if path == "/v1/models":
            found["data"][0] |= {"created": random.random(), "root": "elsewhere"}
        return found

    assert load(url, "tokenizer=builtin:toy").fingerprint == model.fingerprint
    with serving(other) as elsewhere:
        first, again = (load(elsewhere, "tokenizer=builtin:toy").fingerprint for _ in range(2))
    assert first == again, "times do not count"
    fingerprints = {
        first,
        model.fingerprint,
        load(url).fingerprint,
        load(url, system="Be kind.").fingerprint,
        load(url, "tokenizer=builtin:toy", template="alpaca").fingerprint,
    }
    assert len(fingerprints) == 5


def test_the_key_is_sent_and_is_nowhere_else(plain, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(plain, KEY) as url:
        with pytest.raises(ModelError, match="401: no key was sent: set INDELIBLE_API_KEY"):
            load(url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)  # meant for another server
        with pytest.raises(ModelError, match="401: no key was sent"):
            load(url)
        monkeypatch.setenv("INDELIBLE_API_KEY", "another")
        with pytest.raises(ModelError, match="401: the key is refused"):
            load(url)
        monkeypatch.setenv("INDELIBLE_API_KEY", KEY)
        found, source = load_server(f"server:{url}?tokenizer=builtin:toy", sleep=lambda _: None)
    told = json.dumps(describe_server(found, source)) + repr(found) + found.name + found.fingerprint + repr(source)
    assert KEY not in told
    assert source.kind == "server"


def test_a_key_in_a_servers_message_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_API_KEY", KEY)

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"data": [{"id": "m"}]} if path == "/v1/models" else refuse(f"key {KEY} may not do this")

    with serving(ask) as url, pytest.raises(ModelError) as caught:
        load(url, "context_length=100")
    assert "key *** may not do this" in str(caught.value)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("model=toi",), "It lists no model 'toi'; did you mean 'toy'? it lists toy"),
        (("tokenizer=./nowhere",), "no tokenizer's folder at './nowhere'"),
        (("tokenizer=builtin:toyy",), "Did you mean 'toy'"),
    ],
)
def test_a_wrong_name_is_one_line(url: str, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(url, *options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ([{"id": "a"}, {"id": "b"}], (), "serves 2 models: add ?model=NAME to its address; it lists a, b"),
        ([], (), "does not list its models: add ?model=NAME"),
        ([{"id": "a"}], (), "add context_length=TOKENS"),
        ([{"id": "a"}], ("context_length=90",), "gives no text of a, neither for a prompt nor in a chat: 404 no"),
    ],
)
def test_a_server_that_says_too_little_is_one_line(models: list[Any], options: tuple[str, ...], message: str) -> None:
    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/models":
            return {"data": models}
        raise example.Refused(404, f"no {path}")

    with serving(ask) as url, pytest.raises(ModelError) as caught:
        load(url, *options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_context_is_what_the_server_says_or_the_user(plain, url: str) -> None:
    def llama(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = plain(path, body)
        if path == "/v1/models":
            del found["data"][0]["max_model_len"]
            found["data"][0]["meta"] = {"n_ctx_train": 4096, "n_ctx": 512}
        return found

    assert load(url, "context_length=100").context_length == 99
    with serving(llama) as other:
        assert load(other).context_length == 511


def test_an_interrupted_run_goes_on_where_it_was(plain, tmp_path: Path) -> None:
    budget = [10**6]

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "prompt_logprobs" in body:
            budget[0] -= 1
            if budget[0] < 0:
                raise example.Refused(500, "down")
        return plain(path, body)

    queries = [Query(ASKED, f"It is on day {i}.") for i in range(12)]
    cache = AnswerCache(tmp_path, engine_version=0)
    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy", "concurrency=1")
        budget[0] = 5
        with pytest.raises(ModelError, match="answers 500"):
            answer(found, queries, cache=cache)
        budget[0] = 7
        answers, counts = answer(found, queries, cache=cache)
        assert budget[0] == 0
    cache.close()
    assert counts.cached == 5
    assert all(np.isfinite(answers[q].logprobs).all() for q in queries)


def test_a_question_that_failed_has_its_reason_and_is_asked_again_another_time(plain, tmp_path: Path) -> None:
    bad = threading.Event()

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = plain(path, body)
        if bad.is_set() and path == "/v1/completions" and len(body["prompt"]) > 30:
            found["choices"] = []
        return found

    long, short = Query(ASKED, "It is on a Monday in the morning."), Query((), "A text.")
    texts = [replace(q, target="", reply=Reply(4)) for q in (Query((Message("user", "x" * 60),), ""), Query(ASKED, ""))]
    cache = AnswerCache(tmp_path, engine_version=0)
    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy")
        for is_bad, n_known in ((True, 0), (False, 1)):
            (bad.set if is_bad else bad.clear)()
            for answers, counts in (answer(found, [long, short], cache=cache), reply(found, texts, cache=cache)):
                assert counts.cached == n_known
                assert counts.failed == is_bad
                assert list(answers.failed.values()) == ["the server's answer holds no choice"] * is_bad
    cache.close()


def test_replies_made_before_a_server_broke_are_kept(plain, tmp_path: Path) -> None:
    left = [10**6]

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        left[0] -= 1
        if left[0] < 0:
            raise example.Refused(500, "down")
        return plain(path, body)

    cache = AnswerCache(tmp_path, engine_version=0)
    queries = [replace(asking(), messages=(Message("user", f"Question {i}"),)) for i in range(6)]
    with serving(ask) as url:
        found = load(url, "tokenizer=builtin:toy", "concurrency=1")
        left[0] = 4
        with pytest.raises(ModelError, match="answers 500"):
            reply(found, queries, cache=cache)
        left[0] = 2
        assert len(reply(found, queries, cache=cache)[0].texts) == 6
    cache.close()


def test_answers_at_hand_are_not_used_where_the_server_answers_otherwise_by_now(
    model: ServerModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [Record(f"r{i}", ASKED, f"It is on day {i}, with Dr. Arger.") for i in range(12)]
    attack = make_attack("loss")
    fresh = Interview({"target": model}).ask([attack], records).found
    cache = AnswerCache(tmp_path, engine_version=0)
    assert still_holds(model, list(fresh), cache) is None
    cache.write(model.fingerprint, list(fresh.items()))
    assert still_holds(model, list(fresh), cache) is True
    same = Interview({"target": model}, cache)
    same.ask([attack], records)
    assert same.counts.cached == 12

    cache.write(model.fingerprint, [(q, replace(a, logprobs=a.logprobs - 0.3)) for q, a in fresh.items()])
    assert still_holds(model, list(fresh), cache) is False
    interview = Interview({"target": model}, cache)
    found = interview.ask([attack], records).found
    assert interview.counts.cached == 0
    assert all(np.allclose(found[q].logprobs, fresh[q].logprobs, atol=1e-4) for q in fresh)
    assert "answers at hand are not used" in capsys.readouterr().err
    cache.close()
    again = AnswerCache(tmp_path, engine_version=0)  # the new answers took the places of the old
    assert still_holds(model, list(fresh), again) is True

    asked = [replace(q, target="", reply=Reply(6)) for q in list(fresh)[:4]]
    texts = reply(model, asked, cache=again)[0].texts
    assert still_holds(model, asked, again) is True
    again.write_texts(model.fingerprint, [(q, "x" + text) for q, text in texts.items()])
    assert still_holds(model, asked, again) is False
    again.close()
