"""Servers as processes of their own: ours, and those of transformers and llama.cpp where they are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from indelible.attacks import make_attack
from indelible.attacks.base import Resources
from indelible.data.records import Message, Query, Reply
from indelible.errors import Unscorable
from indelible.interview import Interview, prepare, score_frame
from indelible.models.builtin import builtin_folder
from indelible.models.causal import CausalModel
from indelible.models.server import ServerModel
from indelible.servers.load import load_server

SERVER = Path(__file__).parents[2] / "examples" / "serve_local.py"
TOKENIZER = "tokenizer=builtin:toy"
ASKED = (Message("user", "When is my hearing test?"),)
QUERIES = [
    Query(ASKED, "It is on Monday, with Dr. Ärger."),
    Query((), "A text about a test."),
    Query((Message("user", "a"), Message("assistant", "It is b.", scored=True), Message("user", "c")), "No."),
]
# Through llama.cpp's bindings: keys and values in float32, so that numbers can be compared closely.
LLAMA_CPP = """
import sys, time, xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.cpuparams.n_threads = sys.argv[1], 1024, 1, 1
p.hostnames, p.port = ["127.0.0.1"], int(sys.argv[2])
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = x.Server(p)
time.sleep(600)
"""


def needs(*packages: str) -> pytest.MarkDecorator:
    absent = [p for p in packages if importlib.util.find_spec(p) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


@contextmanager
def process(*command: str, answers: str | None = None) -> Iterator[str]:
    """A process that serves until the block ends. It prints its address, or answers at `answers` once it is up."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")} | {"HF_HUB_OFFLINE": "1"}
    out = subprocess.PIPE if answers is None else subprocess.DEVNULL
    running = subprocess.Popen([sys.executable, *command], stdout=out, stderr=subprocess.DEVNULL, text=True, env=env)
    try:
        if running.stdout is not None:
            yield running.stdout.readline().strip()
        else:
            assert answers is not None
            _wait_for(answers, running)
            yield answers
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(10)
        if running.stdout is not None:
            running.stdout.close()


def _wait_for(url: str, running: subprocess.Popen[str]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(600):
        assert running.poll() is None, "the server ended"
        try:
            with opener.open(f"{url}/v1/models", timeout=5) as reply:
                reply.read()
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("the server did not come up")


def free_port() -> int:
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return int(at.getsockname()[1])


@pytest.fixture(scope="module")
def served(tuned_toy: Path) -> Iterator[ServerModel]:
    with process(str(SERVER), "--model", str(tuned_toy), "--name", "tuned", "--port", "0") as url:
        yield load_server(f"server:{url}?tokenizer={tuned_toy}")[0]


@pytest.fixture(scope="module")
def tuned(tuned_toy: Path) -> CausalModel:
    from indelible.models.load import LoadOptions, load_model

    return load_model(str(tuned_toy), LoadOptions(device="cpu", dtype="float32"))[0]


def agrees(server: ServerModel, here: CausalModel, atol: float) -> None:
    encoded = [server.encode(q) for q in QUERIES]
    answers, expected = dict(server.stream(encoded)), dict(here.stream(encoded))
    for i in range(len(QUERIES)):
        got = answers[i]
        assert not isinstance(got, Unscorable)
        np.testing.assert_allclose(got.logprobs, expected[i].logprobs, atol=atol)
        assert (got.argmax == expected[i].argmax)[got.argmax >= 0].all()


def replies(model: ServerModel | CausalModel, **settings: Any) -> list[str | Unscorable]:
    asked = [Query(ASKED, "", reply=Reply(8, **s)) for s in ({}, {"begun": "It is"}, settings) if s is not None]
    found: dict[int, Any] = dict(model.replies(asked))
    return [found[i] for i in range(len(asked))]


def test_log_probabilities_and_replies_through_a_server_are_those_of_the_model(served, tuned) -> None:
    agrees(served, tuned, 1e-4)
    assert replies(served)[:2] == replies(tuned)[:2]


def test_attacks_through_a_server_score_as_on_this_machine(served, tuned, rows) -> None:
    attacks = {name: make_attack(name, {}) for name in ("loss", "zlib", "min-k", "icp-sp")}
    attacks["recall"] = make_attack("recall", {"shots": 2})
    records = [*rows.members[:6], *rows.nonmembers[:6]]
    frames = []
    for model in (served, tuned):
        resources = Resources(pool=rows.pool, spans=lambda q, m=model: m.encode(q).spans)
        prepared = prepare(list(attacks.values()), records, resources)
        interview = Interview({"target": model})
        answers = interview.ask(list(attacks.values()), prepared)
        frames.append(score_frame(attacks, prepared, answers, "target"))
    through, here = frames
    assert through["reason"].isna().all()
    np.testing.assert_allclose(through["score"], here["score"], atol=1e-4)
    members = {r.id for r in rows.members}
    loss = through[through["attack"] == "loss"].set_index("record_id")["score"]
    assert (
        loss[[i for i in loss.index if i in members]].mean() > loss[[i for i in loss.index if i not in members]].mean()
    )


@needs("fastapi", "uvicorn", "openai")
def test_transformers_serve_gives_text_and_is_not_believed_to_give_more(toy) -> None:
    port = free_port()
    command = ["-m", "transformers.cli.transformers", "serve", str(builtin_folder("toy")), "--device", "cpu"]
    with process(*command, "--port", str(port), answers=f"http://localhost:{port}") as url:
        ours = load_server(f"server:{url}?{TOKENIZER}")[0]
        theirs = load_server(f"server:{url}?context_length=1000")[0]
        assert ours.access == theirs.access == {"text"}
        assert "echo with text: the server gave no log-probabilities of the prompt" in ours.capabilities.notes[0]
        assert ours.capabilities.writing.route == "text"
        expected = replies(toy, temperature=1.0)
        assert replies(ours)[:2] == expected[:2]
        greedy, begun, drawn = replies(theirs, temperature=1.0)
        assert greedy == expected[0]
        assert "does not go on with a reply that is begun" in str(begun)
        assert "does not draw" in str(drawn)


@needs("xllamacpp")
def test_llama_cpp_gives_log_probabilities_a_token_a_request(toy, tmp_path: Path) -> None:
    port = free_port()
    toy_gguf(tmp_path / "toy.gguf")
    with process("-c", LLAMA_CPP, str(tmp_path / "toy.gguf"), str(port), answers=f"http://127.0.0.1:{port}") as url:
        found = load_server(f"server:{url}?{TOKENIZER}")[0]
        assert found.access == {"logprobs", "top-k", "text"}
        assert found.capabilities.scoring is not None
        assert found.capabilities.scoring.form == "forced"
        agrees(found, toy, 1e-4)
        expected = replies(toy)[:2]
        assert replies(found)[:2] == expected
        chat = load_server(f"server:{url}")[0]
        assert chat.capabilities.writing.begins == "repeats"
        assert replies(chat)[:2] == expected


def toy_gguf(path: Path) -> None:
    """The toy as llama.cpp reads it: query and key rows interleaved, as its rotary embedding wants them."""
    import gguf
    from safetensors.numpy import load_file

    folder = builtin_folder("toy")
    config = json.loads((folder / "config.json").read_text())
    pieces = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = sorted(pieces["model"]["vocab"], key=pieces["model"]["vocab"].get)
    special = {t["content"] for t in pieces["added_tokens"]}
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(vocabulary)
    out.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in vocabulary])
    out.add_token_merges([" ".join(m) for m in pieces["model"]["merges"]])
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_add_bos_token(False)
    out.add_chat_template((folder / "chat_template.jinja").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weights in load_file(folder / "model.safetensors").items():
        part = name.split(".")[-2]
        if part in heads:
            n, width = heads[part], weights.shape[0] // heads[part]
            weights = weights.reshape(n, 2, width // 2, -1).swapaxes(1, 2).reshape(weights.shape)
        out.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(weights, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def test_an_audit_of_a_server_is_the_audit_of_its_model(tuned_toy: Path, rows, tmp_path: Path) -> None:
    from indelible.audit import run_audit
    from indelible.config import AuditConfig, resolve
    from indelible.data.synthetic import write_jsonl

    held = tmp_path / "heldout.jsonl"
    write_jsonl(held, [{"instruction": r.prompt, "output": r.target} for r in (*rows.nonmembers, *rows.pool)])
    scores, manifests = [], []
    with process(str(SERVER), "--model", str(tuned_toy), "--name", "tuned", "--port", "0") as url:
        for model in (str(tuned_toy), f"server:{url}?tokenizer={tuned_toy}"):
            flags = {
                "model": model, "base": "builtin:toy", "members": str(rows.train), "nonmembers": str(held),
                "attacks": ("loss", "min-k", "min-k++", "reference-base"), "max_records": 12, "n_bootstrap": 200,
                "load": {"device": "cpu", "dtype": "float32"}, "out": str(tmp_path / f"run{len(scores)}"),
            }  # fmt: skip
            config, given = resolve(AuditConfig, flags)
            given = {k: v for k, v in given.items() if k != "attacks"}  # as by default: what cannot run is left out
            path = run_audit(config, given, command=["indelible"]).path
            scores.append(pd.read_parquet(path / "scores.parquet").set_index(["record_id", "attack", "model"])["score"])
            manifests.append(json.loads((path / "manifest.json").read_text()))
    here, through = scores
    shared = through.index
    assert {"loss", "min-k", "reference-base"} <= set(shared.get_level_values("attack"))
    np.testing.assert_allclose(through, here[shared], atol=1e-4)
    facts = manifests[1]["models"]["target"]
    assert (facts["kind"], facts["access"]) == ("server", ["logprobs", "text", "top-k"])
    left_out = {n["what"]: n["reason"] for n in manifests[1]["not_run"]}
    assert "min-k++ needs whole next-token distributions of the target model" in left_out["min-k++"]
    assert "not_measured" in manifests[1]["drift"]
