"""Where a model server is: `server:URL?options`, and the key that the environment holds for it.

A key goes to the server that it is meant for and to no other: OPENAI_API_KEY to api.openai.com alone.
"""

from __future__ import annotations

import ipaddress
import os
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

from indelible.errors import ModelError, did_you_mean

KEY = "INDELIBLE_API_KEY"
"""Environment variable with the key for the server that is named, whichever it is."""

OPENAI_KEY, OPENAI = "OPENAI_API_KEY", "https://api.openai.com"
"""Environment variable with the key for this server, where the other one is not set."""


@dataclass(frozen=True)
class Address:
    """`server:URL?model=NAME&tokenizer=FOLDER&...`, taken apart.

    Attributes:
        url: up to where the endpoints' names follow (`http://host:8000/v1`).
        model: as the server names it; None where it serves one.
        tokenizer: folder, hub id or builtin:NAME of the model's own tokenizer.
        context_length: tokens, where the server does not say.
        requests_per_minute: at most so many; None for no limit.
        concurrency: questions in flight.
        timeout: seconds for one answer.
    """

    url: str
    model: str | None = None
    tokenizer: str | None = None
    context_length: int | None = None
    requests_per_minute: float | None = None
    concurrency: int = 8
    timeout: float = 120.0


def parse_address(given: str) -> Address:
    """Take `server:URL?options` apart.

    Raises:
        ModelError: no http address, a user name or password in it, an unknown option or a value out of range. The
            message repeats no value, since a secret may be among them.
    """
    text, _, options = given.removeprefix("server:").partition("?")
    try:
        parts = urllib.parse.urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urllib.parse.urlsplit("")
    if "@" in text:
        raise ModelError(f"a server's address holds no user name or password: leave them out, and set {KEY}")
    if parts.scheme not in {"http", "https"} or not host:
        raise ModelError(
            "no server's address: expected server:http://HOST:PORT, or https, such as server:http://localhost:8000"
        )
    url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
    found: dict[str, Any] = {}
    kinds: dict[str, type] = {
        "model": str, "tokenizer": str, "context_length": int, "requests_per_minute": float, "concurrency": int,
        "timeout": float,
    }  # fmt: skip
    for option in filter(None, options.split("&")):
        name, _, value = option.partition("=")
        if name not in kinds:
            shown = name if re.fullmatch("[a-z_]{1,30}", name) else "..."
            raise ModelError(did_you_mean(shown, list(kinds), "option of a server's address"))
        try:
            found[name] = kinds[name](urllib.parse.unquote(value))
        except ValueError:
            found[name] = 0
        if not found[name] or (kinds[name] is not str and not 0 < found[name] < 1e9):
            what = "a text" if kinds[name] is str else "a number above 0"
            raise ModelError(f"option {name} of a server's address: expected {what}")
    return Address(url, **found)


def key_for(url: str) -> str | None:
    """The key that the environment holds for the server at this address; None where there is none for it."""
    parts = urllib.parse.urlsplit(url)
    names = (KEY, OPENAI_KEY) if f"{parts.scheme}://{parts.netloc.lower()}" in (OPENAI, f"{OPENAI}:443") else (KEY,)
    return next((key for name in names if (key := os.environ.get(name, "").strip())), None)


def is_this_machine(host: str) -> bool:
    """Whether a host's name or address means the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unencrypted(url: str) -> bool:
    """Whether what is sent to this address can be read on the way."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "http" and not is_this_machine(parts.hostname or "")
