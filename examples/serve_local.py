"""A small OpenAI-compatible server for a model on this machine: the standard library's HTTP and transformers.

    python examples/serve_local.py --model builtin:toy --port 8000
    indelible audit --model "server:http://localhost:8000?tokenizer=builtin:toy" --base builtin:toy ...

It prints its address in its first line; `--port 0` takes a free port. `/v1/completions` takes text or token ids and
gives log-probabilities of the prompt (`echo` with `logprobs`, and vLLM's `prompt_logprobs`); `/v1/chat/completions`
takes temperature, seed and logprobs. A key in INDELIBLE_API_KEY must then be sent. One question is computed at a time,
by the plain forward pass: it is made for trying and testing audits of servers, not for speed.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor

from indelible.errors import UserError
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model


class Refused(Exception):
    """A question that is not answered, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Answerer:
    """Answers the bodies of requests; knows nothing of HTTP."""

    def __init__(self, model: CausalModel, name: str) -> None:
        self.model, self.name = model, name
        self.tokenizer = model.chat.tokenizer
        self.lock = threading.Lock()

    def models(self) -> dict[str, Any]:
        """`/v1/models`."""
        row = {"id": self.name, "object": "model", "owned_by": "local", "max_model_len": self.model.context_length}
        return {"object": "list", "data": [row]}

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        """`/v1/completions`: text or token ids, one prompt."""
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        elif isinstance(prompt, list) and prompt and all(isinstance(i, int) for i in prompt):
            ids = prompt
        else:
            raise Refused(400, "prompt: expected text or token ids")
        new, logp = self._continue(ids, body, body.get("max_tokens", 16))
        choice: dict[str, Any] = {"index": 0, "text": self._text(new, body), "finish_reason": self._reason(new)}
        if body.get("logprobs") is not None:
            told = self._legacy([*ids, *new], logp, int(body["logprobs"]))
            choice["logprobs"] = told if body.get("echo") else {key: rows[len(ids) :] for key, rows in told.items()}
        if body.get("echo"):
            choice["text"] = self.tokenizer.decode(ids) + choice["text"]
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._by_id(ids, logp, int(body["prompt_logprobs"]))
        return self._answer("text_completion", choice, len(ids), len(new))

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """`/v1/chat/completions`."""
        going_on = bool(body.get("continue_final_message"))
        ids = self.tokenizer.apply_chat_template(
            body["messages"],
            chat_template=self.model.chat.template,
            add_generation_prompt=not going_on,
            continue_final_message=going_on,
            tokenize=True,
            return_dict=False,
        )
        new, logp = self._continue(list(ids), body, body.get("max_tokens", 256))
        message = {"role": "assistant", "content": self._text(new, body)}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._reason(new)}
        if body.get("logprobs"):
            rows = zip(new, logp[len(ids) - 1 :], strict=False)
            top = int(body.get("top_logprobs", 0))
            choice["logprobs"] = {"content": [self._entry(i, p) | {"top_logprobs": self._top(p, top)} for i, p in rows]}
        return self._answer("chat.completion", choice, len(ids), len(new))

    @torch.inference_mode()
    def _continue(self, ids: list[int], body: dict[str, Any], n: int) -> tuple[list[int], Tensor]:
        """New token ids, and log-probabilities after every token but the last: (T, V) float32."""
        if len(ids) + n > self.model.context_length:
            raise Refused(400, f"{len(ids)} + {n} tokens do not fit into {self.model.context_length}")
        temperature = float(body.get("temperature", 1))
        draw = torch.Generator().manual_seed(int(body.get("seed") or 0))
        whole, rows, cache = list(ids), [], None
        for _ in range(max(n, 1)):
            step = torch.tensor([whole if cache is None else whole[-1:]])
            out = self.model.module(input_ids=step, cache=cache, use_cache=True)
            cache = out.cache
            rows.append(out.logits[0].float().log_softmax(-1))
            if n == 0:
                break
            last = rows[-1][-1]
            p = (last / temperature).softmax(-1) if temperature > 0 else None
            whole.append(int(last.argmax() if p is None else torch.multinomial(p, 1, generator=draw)))
            if whole[-1] == self.tokenizer.eos_token_id:
                break
        return whole[len(ids) :], torch.cat(rows)

    def _text(self, new: list[int], body: dict[str, Any]) -> str:
        text = str(self.tokenizer.decode(new, skip_special_tokens=True))
        stop = body.get("stop") or []
        for end in [stop] if isinstance(stop, str) else stop:
            text = text.split(end)[0]
        return text

    def _reason(self, new: list[int]) -> str:
        return "stop" if new[-1:] == [self.tokenizer.eos_token_id] else "length"

    def _legacy(self, ids: list[int], logp: Tensor, top: int) -> dict[str, list[Any]]:
        told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        for k, i in enumerate(ids):
            row = logp[k - 1] if k else None
            told["tokens"].append(self.tokenizer.decode([i]))
            told["token_logprobs"].append(float(row[i]) if row is not None else None)
            tops = {e["token"]: e["logprob"] for e in reversed(self._top(row, top))} if row is not None else None
            told["top_logprobs"].append(tops)
        return told

    def _by_id(self, ids: list[int], logp: Tensor, top: int) -> list[dict[str, Any] | None]:
        out: list[dict[str, Any] | None] = [None]
        for i, row in zip(ids[1:], logp, strict=False):
            some = [*row.topk(top).indices.tolist(), i]
            out.append({str(j): {"logprob": float(row[j]), "decoded_token": self.tokenizer.decode([j])} for j in some})
        return out

    def _top(self, row: Tensor, top: int) -> list[dict[str, Any]]:
        return [self._entry(i, row) for i in row.topk(top).indices.tolist()]

    def _entry(self, i: int, row: Tensor) -> dict[str, Any]:
        return {"token": self.tokenizer.decode([i]), "logprob": float(row[i])}

    def _answer(self, kind: str, choice: dict[str, Any], n_prompt: int, n_new: int) -> dict[str, Any]:
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}
        return {"id": "local", "object": kind, "model": self.name, "choices": [choice], "usage": usage}

    def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            Refused: with the status to send.
        """
        if path == "/v1/models":
            return self.models()
        answers = {"/v1/completions": self.completion, "/v1/chat/completions": self.chat}
        if path not in answers:
            raise Refused(404, f"no {path} here")
        if body.get("model") != self.name:
            raise Refused(404, f"the model {body.get('model')!r} does not exist")
        with self.lock:
            return answers[path](body)


def handler(answer: Answerer, key: str | None) -> type[BaseHTTPRequestHandler]:
    """What reads requests and writes answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({})

        def do_POST(self) -> None:
            self._send(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0)))))

        def _send(self, body: dict[str, Any]) -> None:
            status = 200
            try:
                if key and self.headers.get("Authorization") != f"Bearer {key}":
                    raise Refused(401, "wrong key")
                out = answer(self.path, body)
            except Refused as error:
                status, out = error.status, {"error": {"message": str(error), "type": "refused", "code": error.status}}
            raw = json.dumps(out).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Questions may hold private text: nothing is logged."""

    return Handler


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve a model of this machine as OpenAI-compatible servers do.")
    parser.add_argument("--model", required=True, help="folder, adapter folder, hub id, .gguf file or builtin:NAME")
    parser.add_argument("--name", help="what it is called; its own name by default")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--template", help="as for indelible: a name or a Jinja file")
    args = parser.parse_args()
    options = LoadOptions(device="cpu", dtype=args.dtype, template=args.template, trainable=True)
    try:
        model, _ = load_model(args.model, options)
    except UserError as error:
        parser.error(str(error))
    answer = Answerer(model, args.name or args.model)
    server = ThreadingHTTPServer((args.host, args.port), handler(answer, os.environ.get("INDELIBLE_API_KEY")))
    print(f"http://{args.host}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
