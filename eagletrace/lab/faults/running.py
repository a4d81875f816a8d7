"""Faults of the running engine: patches of the lab's server (`eagletrace.lab.runtime`), and weight updates."""

from eagletrace.lab.faults.case import Case, Update
from eagletrace.lab.faults.controls import CHUNKS, FIVE_STEPS, PREFIXES, SHORT_ANSWERS

FEEDING: tuple[Case, ...] = (
    Case(
        name="input-fed-back",
        kind="fault",
        title="the draft hands on the hidden state that it was given, not the one that its layer made of it",
        case="vllm#14464",
        expected=("recurrence.hidden",),
        flags=FIVE_STEPS,
        base="five-steps",
        runtime="input-fed-back",
    ),
    Case(
        name="difference-fed-back",
        kind="fault",
        title="the draft hands on what its layer added, without the residual",
        case="ATOM#1742",
        expected=("recurrence.hidden",),
        flags=FIVE_STEPS,
        base="five-steps",
        runtime="difference-fed-back",
    ),
    Case(
        name="fc-skipped",
        kind="fault",
        title="the last aux state goes into the decoder layer as it is, fc is not called",
        case="sglang#21272",
        expected=("fc.bypassed",),
        runtime="fc-skipped",
    ),
    Case(
        name="stale-extend-states",
        kind="fault",
        title="the draft's extend computes on the hidden states of the launch before, as a stale graph buffer gives",
        case="vllm#38311",
        expected=("graph.stale",),
        runtime="stale-extend",
    ),
    Case(
        name="embeddings-overwritten",
        kind="fault",
        title="the draft's embeddings are overwritten after loading, one row off",
        case="vllm#28549",
        expected=("embed.mismatch",),
        runtime="embeddings-overwritten",
    ),
)

POSITIONS: tuple[Case, ...] = (
    Case(
        name="step-positions-shifted",
        kind="fault",
        title="draft steps run at positions that are too high",
        case="sglang#25015",
        expected=("position.offset",),
        variant="early_layers",
        flags=FIVE_STEPS,
        base="rope-theta-of-its-own",
        runtime="steps-shifted",
    ),
    Case(
        name="length-limit",
        kind="fault",
        title="from a position on the draft drafts one constant token",
        case="vllm#58080",
        expected=("length.limit",),
        runtime="length-limited",
    ),
)

CACHE: tuple[Case, ...] = (
    Case(
        name="prefix-keys-rescaled",
        kind="fault",
        title="the draft's keys of a cached prefix come back at another scale",
        case="sglang#10846",
        expected=("kv.prefix",),
        runtime="prefixes-rescaled",
        load=PREFIXES,
        base="prefix-hits",
    ),
    Case(
        name="chunk-keys-rescaled",
        kind="fault",
        title="of a prompt prefilled in chunks, the draft's keys before the last chunk stand at another scale",
        case="sglang#26329",
        expected=("kv.prefix",),
        runtime="chunks-rescaled",
        flags=CHUNKS,
        base="prompts-in-chunks",
    ),
)

ROUNDS: tuple[Case, ...] = (
    Case(
        name="last-row-only",
        kind="fault",
        title="every request of a batch continues from the last request's row",
        case="sglang#27846",
        expected=("batch.row",),
        runtime="last-row-selected",
    ),
    Case(
        name="first-round-lost",
        kind="fault",
        title="what the prefill hands to a request's first round is zero",
        case="sglang#7242",
        expected=("round.first",),
        runtime="handover-lost",
        load=SHORT_ANSWERS,
        base="short-answers",
    ),
    Case(
        name="right-drafts-rejected",
        kind="fault",
        title="the verdict rejects every draft, those that equal the target's choice too",
        case="vllm#40651",
        expected=("sampling.rule", "verify.skipped"),
        runtime="verdict-rejects",
    ),
)

UPDATES: tuple[Case, ...] = (
    Case(
        name="both-updated",
        kind="fault",
        title="half-way, new weights for the target and an old checkpoint for the draft",
        case="miles#1926",
        expected=("weights.changed",),
        update=Update(noise=0.02, draft="few_steps"),
    ),
    Case(
        name="target-updated",
        kind="fault",
        title="half-way, new weights for the target alone",
        case="sglang#31674",
        expected=("weights.changed",),
        update=Update(noise=0.3),
    ),
)
