"""Requests of every kind that the engine takes, and the sending of them; the same on a traced and on a plain server."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from eagletrace.lab.load import Answer
from eagletrace.lab.server import LabServer

CHUNK = 64
"""Prompt tokens prefilled at a time (--chunked-prefill-size)."""
STEM = "class Parser:\n    def parse(self, text):\n        for line in "
LONG = "".join(f"    def method_{n}(self, value):\n        return self.values[{n}] + value\n" for n in range(12))
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}}, "required": ["name"]}
TOKENS = 32


def body(prompt: str = STEM, **changes: Any) -> dict[str, Any]:
    """A greedy request; `changes` that are no field of a request are sampling parameters."""
    fields = ("rid", "return_logprob", "top_logprobs_num", "logprob_start_len", "stream")
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    sampling |= {name: value for name, value in changes.items() if name not in fields}
    return {
        "text": prompt, "sampling_params": sampling, **{name: changes[name] for name in fields if name in changes}
    }  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "plain": body(),
    "chunked prefill": body(LONG),
    "chunked prefill again": body(LONG + STEM),  # most of it from the cache
    "frequency and presence penalty": body(frequency_penalty=0.9, presence_penalty=0.6),
    "repetition penalty": body(repetition_penalty=1.4),
    "logit bias": body(logit_bias={"10": 4.0}),
    "least tokens": body(min_new_tokens=20, ignore_eos=False),
    "json schema": body(json_schema=json.dumps(SCHEMA), ignore_eos=False),
    "regular expression": body(regex=r"(self|text)\.[a-z]{3,8}\(\)", ignore_eos=False),
    "log-probabilities": body(return_logprob=True, top_logprobs_num=3),
    "log-probabilities of the prompt": body(return_logprob=True, logprob_start_len=0),
    "two answers": body(n=2),
    "two prompts": {**body(), "text": ["import re\n\nclass ", "for key, value in "]},
    "token ids": {**body(), "text": None, "input_ids": [486, 310, 290, 263]},
    "one token": body(max_new_tokens=1),
    "two tokens": body(max_new_tokens=2),
    "no token": body(max_new_tokens=0),
    "stop strings": body(stop=["self", "):"]),
    "stop token": body(stop_token_ids=[14]),
    "temperature": body(temperature=0.8, top_p=0.9),
    "id": body(rid="again"),
    "id again": body(STEM + "self", rid="again"),
    "streamed": body(stream=True),
}
TOGETHER = (
    "plain", "chunked prefill", "repetition penalty", "json schema", "log-probabilities", "stop strings", "temperature",
    "streamed",
)  # fmt: skip
"""Kinds that are also sent at once."""


def answers(server: LabServer, kind: str) -> list[Answer]:
    """Send a request of a kind, wait for all its answers."""
    if KINDS[kind].get("stream"):
        return [answer(list(stream(server, KINDS[kind]))[-1])]
    found = server.post("/generate", KINDS[kind])
    assert found.status == 200, (kind, found.body)
    return [answer(one) for one in (found.body if isinstance(found.body, list) else [found.body])]


def answer(content: dict[str, Any]) -> Answer:
    meta = content["meta_info"]
    return Answer(str(meta["id"]), meta, content["output_ids"])


def stream(server: LabServer, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a streamed answer; the connection is closed when the caller has enough."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/generate", json.dumps(request), {"Content-Type": "application/json"})
        with contextlib.closing(connection.getresponse()) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])


def send_all(server: LabServer) -> dict[str, list[Answer]]:
    """Every kind alone, then some at once."""
    sent = {kind: answers(server, kind) for kind in KINDS}
    with ThreadPoolExecutor(len(TOGETHER)) as pool:
        found = pool.map(partial(answers, server), TOGETHER)
        return sent | {f"{kind}, with others": one for kind, one in zip(TOGETHER, found, strict=True)}


def send_twice_at_once(server: LabServer) -> tuple[int, Answer]:
    """Two requests of one id at once: the status of the refused one, and the answer of the other."""
    request = body(rid="same", max_new_tokens=200)
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(server.post, ["/generate"] * 2, [request] * 2)
        one, other = sorted(both, key=lambda exchange: exchange.status)
    return other.status, answer(one.body)


def hang_up(server: LabServer, rid: str) -> list[int]:
    """Close the connection of a streamed request in the middle; the tokens that had come."""
    ids: list[int] = []
    for part in stream(server, body(rid=rid, stream=True, max_new_tokens=900)):
        ids = part["output_ids"]
        if len(ids) > 8:
            break
    return ids


def abort(server: LabServer, rid: str) -> Answer:
    """/abort_request of a running request, once its stream has begun."""
    parts = stream(server, body(rid=rid, stream=True, max_new_tokens=900))
    last = next(parts)
    assert server.post("/abort_request", {"rid": rid}).status == 200
    for last in parts:  # noqa: B007 - the last one counts
        pass
    return answer(last)


def abort_in_prefill(server: LabServer, rid: str) -> list[str]:
    """Ids of requests that /abort_request ended before their first token, between two chunks or just before them."""
    ended: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        for attempt in range(30):
            name = f"{rid}-{attempt}"
            request = body(f"# {attempt * 7919}\n{LONG}", rid=name)
            waiting = pool.submit(server.post, "/generate", request)
            while not waiting.done():
                time.sleep(0.005 * (attempt + 1))
                server.post("/abort_request", {"rid": name})
            if waiting.result().body.get("output_ids") == []:
                ended.append(name)
            if len(ended) == 4:
                break
    return ended
