"""From `server:URL` to a model that can be asked."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from indelible.data.chat import ChatFormat, chat_format
from indelible.errors import ModelError
from indelible.models.server import ServerModel
from indelible.models.sources import Source, locate, trained_system
from indelible.progress import say
from indelible.servers.address import Address, key_for, parse_address, unencrypted
from indelible.servers.capabilities import probe
from indelible.servers.given import Endpoint
from indelible.servers.http import Client, Rejected
from indelible.servers.wire import TokenNames

TOLD = ("id", "root", "parent", "owned_by", "max_model_len", "context_length", "context_window", "meta", "aliases")
"""What a server says of a model that stays the same while the model does; times and permissions do not."""

_CONTEXT = ("max_model_len", "n_ctx", "loaded_context_length", "context_length", "context_window", "n_ctx_train")
_TOKENIZER_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]


def load_server(
    given: str,
    *,
    template: str | None = None,
    system: str | None = None,
    chat_data: bool = True,
    trust_remote_code: bool = False,
    chat: ChatFormat | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[ServerModel, Source]:
    """Reach a server and see what it can do.

    Args:
        given: `server:URL` with options (`Address`). The key is taken from the environment: INDELIBLE_API_KEY, else for
            api.openai.com OPENAI_API_KEY.
        template, system, chat_data, trust_remote_code: as for a model on this machine.
        chat: another model's format, to be asked in its template about the same text.
        sleep: waits; for tests.

    Returns:
        the model, and its source: of kind `server`, with the tokenizer's folder.

    Raises:
        ModelError: one line: no address, unreachable, a wrong key, no such model, no text, no context length.
        ConfigError: an unknown template.
    """
    address = parse_address(given)
    like, chat, folder = chat, None, Path(os.devnull) / "server"  # no folder: no training left its facts here
    if address.tokenizer is not None:
        tokenizer, folder = _tokenizer(address.tokenizer, trust_remote_code)
        system = system if system is not None else trained_system(folder)
        if like is not None:
            chat, system = replace(like, tokenizer=tokenizer), like.system
        else:
            chat = chat_format(tokenizer, template=template, system=system, chat_data=chat_data)
    elif template is not None:
        raise ModelError("--template needs the model's tokenizer: add tokenizer=FOLDER to the server's address")
    key = key_for(address.url)
    if unencrypted(address.url):
        say(
            f"{address.url} is not encrypted: the records{' and the key' if key else ''} can be read on the way; use "
            "https, or a tunnel to localhost"
        )
    client = Client(address.url, key, address.timeout, address.requests_per_minute, sleep=sleep)
    listed = _listed(client)
    model = address.model or _only(client, listed)
    told = listed.get(model, {})
    endpoint, names = Endpoint(client, model), TokenNames(chat.tokenizer) if chat is not None else None
    try:
        context_length = _context_length(address, told, chat)
        capabilities = probe(endpoint, chat, names)
    except ModelError as error:
        if told or not listed:
            raise
        raise ModelError(f"{error}. It lists no model {model!r}; {_some(model, list(listed))}") from None
    found = ServerModel(
        name=f"server:{address.url}?model={model}",
        endpoint=endpoint,
        capabilities=capabilities,
        told={key: told[key] for key in TOLD if key in told},
        chat=chat,
        names=names,
        context_length=context_length,
        system=system,
        concurrency=address.concurrency,
    )
    return found, Source(given, folder, "server")


def describe_server(model: ServerModel, source: Source) -> dict[str, Any]:
    """The facts of a model for a manifest."""
    can, chat = model.capabilities, model.chat
    return {
        "source": source.given,
        "kind": source.kind,
        "fingerprint": model.fingerprint,
        "weights_fingerprint": None,
        "weights": "not seen: the server may change them without saying so",
        "told": dict(model.told),
        "access": sorted(model.access),
        "log_probabilities": str(can.scoring) if can.scoring is not None else None,
        "replies": str(can.writing),
        "chat_tells_most_probable": can.chat_top,
        "notes": list(can.notes),
        "tokens": "the tokenizer's" if chat is not None else "words: no tokenizer was given",
        "template": chat.name if chat is not None else "the server's own",
        "template_fingerprint": chat.fingerprint if chat is not None else None,
        "system": model.system,
        "context_length": model.context_length,
        "adapter": None,
        "quantised": "not known",
    }


def _listed(client: Client) -> dict[str, Mapping[str, Any]]:
    """The models that a server lists, by name; none where it does not list them."""
    try:
        found = client.request("/models", tries=3)
    except Rejected:
        return {}
    rows = found.get("data")
    rows = rows if isinstance(rows, list) else []
    return {str(row["id"]): row for row in rows if isinstance(row, dict) and "id" in row}


def _only(client: Client, listed: Mapping[str, Any]) -> str:
    if len(listed) == 1:
        return next(iter(listed))
    what = f"serves {len(listed)} models" if listed else "does not list its models"
    raise ModelError(
        f"{client.url} {what}: add ?model=NAME to its address{'; ' + _some('', list(listed)) if listed else ''}"
    )


def _some(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    shown = sorted(known)[:10]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}it lists {', '.join(shown)}{more}"


def _context_length(address: Address, told: Mapping[str, Any], chat: ChatFormat | None) -> int:
    """Tokens of a question with its reply. One is kept free: a server that scores a text also writes a token.

    A server that cuts long prompts without a word must not be asked any: so the length has to be known.
    """
    if address.context_length is not None:
        return address.context_length - 1
    meta = told.get("meta")
    facts = {**told, **(meta if isinstance(meta, dict) else {})}
    for name in _CONTEXT:
        if isinstance(facts.get(name), int) and facts[name] > 1:
            return int(facts[name]) - 1
    own = getattr(chat.tokenizer, "model_max_length", None) if chat is not None else None
    if own is not None and 1 < int(own) < 10**9:
        return int(own) - 1
    raise ModelError(f"{address.url} does not say how long a question may be: add context_length=TOKENS to its address")


def _tokenizer(given: str, trust_remote_code: bool) -> tuple[Any, Path]:
    """A tokenizer and its folder, from a folder, an adapter's or a GGUF file's, a hub id or builtin:NAME.

    Raises:
        ModelError: nothing there.
    """
    from indelible.models.load import load_tokenizer, quiet  # needs torch

    quiet()
    path = Path(given).expanduser()
    if given.startswith("builtin:") or path.suffix == ".gguf":
        folder = locate(given).folder
    elif path.is_dir():
        folder = path
    elif path.exists() or given.startswith((".", "/", "~")) or given.count("/") != 1:
        raise ModelError(f"no tokenizer's folder at {given!r}")
    else:
        folder = _download(given)
    source = Source(given, folder, "folder")
    return load_tokenizer(source, source, trust_remote_code=trust_remote_code), folder


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_TOKENIZER_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"no tokenizer's folder {hub_id!r} here, and the model hub did not give one ({type(error).__name__})"
        ) from error
