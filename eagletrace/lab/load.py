"""Requests to a lab server over HTTP, and what the engine itself reports of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from eagletrace.errors import EagletraceError
from eagletrace.lab.server import EngineDiedError, LabServer


@dataclass(frozen=True)
class LoadOptions:
    """What is sent: greedy requests, `concurrency` at once, until about `rounds` verify rounds are done.

    `max_new_tokens` is one limit, or several that requests take in turn; `stop` are stop strings.
    With `prompts` given, each is sent once and `rounds` is not looked at. `midway` is called
    once, between two waves, when half of the rounds (or of the prompts) are done; at least one wave follows it.
    `marks` are numbers of rounds before the last; `at_mark` is called between two waves when so many are done.
    """

    rounds: int = 400
    concurrency: int = 4
    max_new_tokens: int | Sequence[int] = 96
    stop: Sequence[str] = ()
    ignore_eos: bool = True
    temperature: float = 0.0
    prompts: Sequence[str] | None = None
    midway: Callable[[LabServer], None] | None = None
    marks: Sequence[int] = ()
    at_mark: Callable[[int, LoadResult], None] | None = None


@dataclass(frozen=True)
class Answer:
    """One answered request, as the engine reports it."""

    request_id: str
    meta_info: dict[str, Any]
    output_ids: list[int]

    @property
    def rounds(self) -> int:
        """Verify rounds, by the engine's count (0 when it does not speculate)."""
        return int(self.meta_info.get("spec_verify_ct") or 0)

    @property
    def completion_tokens(self) -> int:
        """Output tokens, by the engine's count."""
        return int(self.meta_info["completion_tokens"])

    def public(self) -> dict[str, Any]:
        """The entry of `lab run --json`."""
        return {"request_id": self.request_id, "meta_info": self.meta_info, "output_ids": self.output_ids}


def accept_length(answers: Sequence[Answer]) -> float | None:
    """Accept length as SGLang defines it: completion tokens divided by verify rounds; None without a round."""
    rounds = sum(answer.rounds for answer in answers)
    return sum(answer.completion_tokens for answer in answers) / rounds if rounds else None


@dataclass
class LoadResult:
    """The answers in the order of sending, and whether the engine died on the way."""

    answers: list[Answer]
    engine_died: bool = False
    reason: str = ""

    @property
    def rounds(self) -> int:
        """Verify rounds of all answers, by the engine's count."""
        return sum(answer.rounds for answer in self.answers)


def send_load(server: LabServer, options: LoadOptions, prompts: Sequence[str]) -> LoadResult:
    """Send requests in waves of `concurrency`; after each, stop when enough rounds are done.

    EagletraceError when a healthy server refuses a request.
    """
    result = LoadResult([])
    planned = list(options.prompts) if options.prompts is not None else list(prompts)
    sent, midway, marks = 0, options.midway, sorted(options.marks)
    with ThreadPoolExecutor(options.concurrency) as pool:
        while not result.engine_died and (midway or not _enough(result, options, sent, len(planned))):
            if midway and _enough(result, options, 2 * sent, len(planned), share=0.5):
                midway(server)
                midway = None
            while marks and options.at_mark and result.rounds >= marks[0]:
                options.at_mark(marks.pop(0), result)
            numbers = range(sent, sent + options.concurrency)
            if options.prompts is not None:
                numbers = range(sent, min(sent + options.concurrency, len(planned)))
            bodies = [_body(planned[number % len(planned)], number, options) for number in numbers]
            sent += len(bodies)
            for outcome in pool.map(partial(_ask, server), bodies):
                if isinstance(outcome, Answer):
                    result.answers.append(outcome)
                else:
                    result.engine_died, result.reason = True, str(outcome)
    return result


def _enough(result: LoadResult, options: LoadOptions, sent: int, planned: int, share: float = 1.0) -> bool:
    if options.prompts is not None:
        return sent >= planned
    # An engine that reports no rounds would never get there: one wave per round wanted is plenty.
    return result.rounds >= share * options.rounds or (sent >= 8 * options.rounds)


def _body(prompt: str, number: int, options: LoadOptions) -> dict[str, Any]:
    limits = options.max_new_tokens
    limit = limits if isinstance(limits, int) else limits[number % len(limits)]
    sampling: dict[str, Any] = {
        "temperature": options.temperature,
        "max_new_tokens": limit,
        "ignore_eos": options.ignore_eos,
    }
    if options.stop:
        sampling["stop"] = list(options.stop)
    return {"text": prompt, "sampling_params": sampling}


def _ask(server: LabServer, body: dict[str, Any]) -> Answer | EngineDiedError:
    try:
        answer = server.post("/generate", body)
    except EngineDiedError as error:
        return error
    if answer.status != 200:
        if not server.settles_alive():
            return EngineDiedError(f"the server ended after answering {answer.status}")
        raise EagletraceError(f"the lab server refused a request ({answer.status}): {answer.body}")
    meta = dict(answer.body["meta_info"])
    return Answer(str(meta["id"]), meta, [int(token) for token in answer.body["output_ids"]])
