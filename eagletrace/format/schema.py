"""The one description of the trace tables: every column's type, unit and meaning.

A column that could not be observed is NULL; NULL never counts as zero or as false. Probabilities, log-probabilities
and entropies (`draft_prob`, `draft_logprob`, `draft_entropy`, `target_logprob_of_draft_token`) are stored with 11
significant bits: a relative error of at most 1/2048. All other values are stored as they were observed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1

# The column types that the format uses, by their Arrow names.
TYPES = (
    "string", "bool", "int8", "int16", "int32", "int64", "float32", "float64", "binary",
    "list<string>", "list<int64>", "json",
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column: `type` is one of `TYPES` (`json` is text that holds one JSON value)."""

    name: str
    type: str
    doc: str
    unit: str = ""
    since: int = 1


@dataclass(frozen=True)
class Table:
    """One table. `detail` tables are sampled and may be dropped for space; the others never are."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    detail: bool = False
    per_rank: bool = False
    key: tuple[str, ...] = field(default=())

    def column_names(self) -> list[str]:
        """Names of all columns, those of the process first."""
        return [c.name for c in (*PROCESS_COLUMNS, *self.columns)]


PROCESS_COLUMNS = (
    Column("host", "string", "host name of the process that wrote the row"),
    Column("pid", "int32", "process id of the writer"),
    Column(
        "tp_rank",
        "int16",
        "tensor-parallel rank, with attention data parallelism that within its group; NULL before it is known",
    ),
    Column("dp_rank", "int16", "data-parallel rank; NULL without data parallelism"),
    Column("pp_rank", "int16", "pipeline-parallel rank"),
)

_ROUND = Column("round", "int64", "launch counter of verify rounds in the process, from 1")
_SEQ = Column("request_seq", "int64", "number of the request, unique in the run together with host and pid")
_TIME = Column("time_unix_nano", "int64", "when it was recorded", "ns since 1970 UTC")

SPANS = Table(
    "spans",
    "One OpenTelemetry span: a batch phase, a request, or a load-time step.",
    (
        Column("trace_id", "string", "trace id; one trace per request, batch phases are linked", "32 hex digits"),
        Column("span_id", "string", "span id", "16 hex digits"),
        Column("parent_span_id", "string", "parent span id; NULL for a root", "16 hex digits"),
        Column("name", "string", "span name, such as `eagle.draft` or `eagle.request`"),
        Column("kind", "string", "OpenTelemetry span kind"),
        Column("start_time_unix_nano", "int64", "start", "ns since 1970 UTC"),
        Column("duration_time_unix_nano", "int64", "duration", "ns"),
        Column("status_code", "string", "UNSET, OK or ERROR"),
        Column("status_message", "string", "message of an ERROR status"),
        Column("attributes", "json", "span attributes"),
        Column("resource_attributes", "json", "resource attributes"),
        Column("scope_name", "string", "instrumentation scope"),
        Column("links", "json", "linked spans: list of {trace_id, span_id}"),
    ),
    detail=True,
)

HOOKS = Table(
    "hooks",
    "One hook target in one process; the newest row of a target counts.",
    (
        Column("target", "string", "dotted path of what is hooked"),
        Column("engine_version", "string", "version of the engine"),
        Column("status", "string", "installed, missing, shut_out, never_fired, graph_hidden or disabled_after_errors"),
        Column("calls", "int64", "calls seen so far"),
        Column("errors", "int64", "errors of the hook itself, all swallowed"),
        Column("detail", "string", "why a hook is missing, shut out or disabled"),
        Column("required", "bool", "whether the trace is useless without it"),
        _TIME,
    ),
    key=("target",),
)

PARAMS = Table(
    "params",
    "One parameter or buffer of the draft (and the target's shared ones); the newest row of a name counts.",
    (
        Column("side", "string", "draft or target"),
        Column("name", "string", "name in the model, behind `draft_step_N.` where each step has a draft of its own"),
        Column("elements", "int64", "number of elements"),
        Column("elements_loaded", "int64", "elements that checkpoint tensors wrote"),
        Column("checkpoint_keys", "list<string>", "checkpoint tensors that wrote into it"),
        Column(
            "shared_with",
            "string",
            "the parameter whose storage it uses, as `side:name`, with `[hot_token_id]` "
            "where it is a copy of the rows of the token map",
        ),
        Column("shape", "list<int64>", "shape"),
        Column("dtype", "string", "dtype as served"),
        Column("rms", "float64", "root mean square of the values; NaN if any value is NaN"),
        Column("checksum", "string", "position-weighted sum of the values' bits", "16 hex digits"),
        Column("epoch", "int32", "0 after loading, then one more for each change of the weights"),
        Column("constant", "float64", "the value that all elements share; NULL if they differ"),
        Column("nan_count", "int64", "elements that are NaN or infinite"),
        Column("phase", "string", "loaded (right after load_weights), serving (before the first forward) or training"),
        Column("module_type", "string", "class of the module that holds it"),
        Column("loaded_checksum", "string", "checksum right after load_weights", "16 hex digits"),
        _TIME,
    ),
    key=("side", "name"),
)

PARAM_VALUES = Table(
    "param_values",
    "Level `tensors`: values of draft parameters that no checkpoint tensor wrote fully, or that changed.",
    (
        Column("name", "string", "name in the model"),
        Column("epoch", "int32", "epoch of the values"),
        Column("dtype", "string", "dtype"),
        Column("shape", "list<int64>", "shape"),
        Column("data", "binary", "raw values, little endian, row-major"),
    ),
)

CHECKPOINT_KEYS = Table(
    "checkpoint_keys",
    "One tensor name in the draft checkpoint, in the order in which it was loaded.",
    (
        Column("key", "string", "tensor name"),
        Column("shape", "list<int64>", "shape"),
        Column("dtype", "string", "dtype in the file"),
        Column("checksum", "string", "as in params, of the file's values", "16 hex digits"),
        Column("landed_in", "json", "list of {parameter, offset, elements}"),
        Column("fate", "string", "loaded, consumed_as_attribute, ignored_by_engine or dropped"),
        Column("rms", "float64", "root mean square of the values"),
        Column("elements", "int64", "number of elements"),
    ),
)

CONTRACT = Table(
    "contract",
    "One load-time fact; the newest row of a key counts. The keys are listed in eagletrace.format.facts.",
    (
        Column("key", "string", "name of the fact"),
        Column("expected", "json", "what the checkpoint or configuration asks for; NULL if nothing does"),
        Column("actual", "json", "what the engine has"),
        Column("source", "string", "where it was read"),
        _TIME,
    ),
    key=("key",),
)

EVENTS = Table(
    "events",
    "One thing that happened; kinds are listed in eagletrace.format.facts.",
    (
        _TIME,
        Column("kind", "string", "kind of event"),
        Column("detail", "json", "facts of the event"),
    ),
)

REQUESTS = Table(
    "requests",
    "One request; the newest row of a request counts.",
    (
        _SEQ,
        Column("request_id", "string", "the engine's request id"),
        Column("request_kind", "string", "user, warmup or health"),
        Column("prompt_hash", "string", "hash of the prompt's token ids", "16 hex digits"),
        Column("prompt_tokens", "int32", "length of the prompt", "tokens"),
        Column("cached_tokens", "int32", "prompt tokens found in the prefix cache", "tokens"),
        Column("output_tokens", "int32", "tokens generated so far", "tokens"),
        Column("temperature", "float64", "sampling temperature"),
        Column("has_grammar", "bool", "whether a grammar constrains the output"),
        Column("has_image", "bool", "whether the prompt has images or other media"),
        Column("finish_reason", "string", "length, stop, abort ...; NULL while it runs"),
        Column("start_time_unix_nano", "int64", "first seen in a batch", "ns since 1970 UTC"),
        Column("end_time_unix_nano", "int64", "finished; NULL while it runs", "ns since 1970 UTC"),
        Column("retractions", "int32", "how often the scheduler retracted it"),
        Column("engine_rounds", "int32", "the engine's own count of verify rounds (spec_verify_ct)"),
        Column("engine_accepted", "int32", "the engine's own count of correct drafts"),
        _TIME,
    ),
    key=("request_seq",),
)

TOTALS = Table(
    "totals",
    "One process and one interval; all levels, never sampled, never dropped. User requests and counted rounds.",
    (
        _TIME,
        Column("rounds", "int64", "counted rounds in the interval"),
        Column("drafted", "int64", "drafted tokens, roots left out"),
        Column("accepted", "int64", "correct drafts"),
        Column("reached_by_depth", "list<int64>", "rounds that reached depth 1, 2, ..."),
        Column("accepted_by_depth", "list<int64>", "rounds in which a node at depth 1, 2, ... was accepted"),
        Column("correct_drafts_histogram", "list<int64>", "rounds with 0, 1, 2, ... correct drafts"),
        Column("dropped_rows_by_reason", "json", "rows that were not recorded, by reason"),
    ),
)

ROUNDS = Table(
    "rounds",
    "One request in one verify launch.",
    (
        _ROUND,
        Column(
            "request_round",
            "int32",
            "from 1, again after a prefill or retraction; 0: no launch but a prefill whose "
            "token no launch has as its root (the request ended with it, or was retracted); drafted 0, not counted",
        ),
        _SEQ,
        Column("request_id", "string", "the engine's request id"),
        Column("row", "int32", "row in the batch"),
        Column("batch_size", "int32", "requests in the batch"),
        Column("position", "int32", "sequence position of the root, the last committed token", "tokens"),
        Column("cached_tokens", "int32", "prompt tokens found in the prefix cache", "tokens"),
        Column("graph", "bool", "whether the verify forward ran from a captured graph"),
        Column("drafted", "int32", "drafted tokens, the root left out"),
        Column("accepted", "int32", "correct drafts before any cut by length, stop or grammar"),
        Column("committed", "int32", "tokens kept: correct drafts and the bonus token, after cuts"),
        Column("counted", "bool", "false for a request that had already finished or was retracted"),
        Column("engine_reported_accepted", "int32", "the engine's own number for the round, from its counters"),
        Column("target_hidden_width", "int32", "width of the target's hidden state in this round", "elements"),
        Column("draft_input_width", "int32", "width given to the draft where depth 1 was drafted", "elements"),
        Column("fc_applied", "bool", "whether fc ran where depth 1 was drafted"),
        Column("time_unix_nano", "int64", "start of the launch", "ns since 1970 UTC"),
    ),
    detail=True,
    per_rank=True,
    key=("round", "request_seq"),
)

DRAFTS = Table(
    "drafts",
    "One drafted token, with what only the draft knows.",
    (
        _ROUND,
        _SEQ,
        Column("node", "int16", "index in the verify tree; 0 is the root and has no row here"),
        Column("parent_node", "int16", "node that it follows"),
        Column("depth", "int16", "depth, 1 for the first drafted token"),
        Column("position", "int32", "sequence position of the token", "tokens"),
        Column(
            "rope_position",
            "int32",
            "position given to the draft's rotary embedding where it was drafted; NULL at depth 1, "
            "which an extend drafts",
            "tokens",
        ),
        Column("token", "int64", "target-vocabulary id"),
        Column("draft_vocab_id", "int32", "draft-vocabulary id"),
        Column("draft_prob", "float32", "the draft's probability; NULL where the engine has none"),
        Column("draft_logprob", "float32", "log-probability of the token in the draft's own logits", "nats"),
        Column("draft_entropy", "float32", "entropy of the draft's distribution at the parent", "nats"),
    ),
    detail=True,
    per_rank=True,
)

VERIFIES = Table(
    "verifies",
    "One node of a verify tree.",
    (
        _ROUND,
        _SEQ,
        Column("node", "int16", "index in the verify tree; 0 is the root, the last committed token"),
        Column("parent_node", "int16", "node that it follows; NULL for the root"),
        Column("depth", "int16", "0 for the root"),
        Column("position", "int32", "sequence position of the token", "tokens"),
        Column("draft_token", "int64", "the token at this node, a target-vocabulary id"),
        Column("expected_token", "int64", "the target's choice after the parent; NULL for the root"),
        Column("target_token", "int64", "the target's choice after this node"),
        Column("reached", "bool", "the parent is on the accepted path"),
        Column("accepted", "bool", "the node is on the accepted path; NULL for the root"),
        Column("target_token_in_draft_vocab", "bool", "whether expected_token is in the served draft vocabulary"),
        Column("draft_rank_of_target_token", "int64", "rank of expected_token in the draft's distribution, from 1"),
        Column("target_logprob_of_draft_token", "float32", "log-probability of draft_token after its parent", "nats"),
        Column("grammar_masked", "bool", "whether a grammar masks draft_token"),
    ),
    detail=True,
    per_rank=True,
)

HIDDEN = Table(
    "hidden",
    "Statistics of one hidden state, on sampled rounds.",
    (
        _ROUND,
        _SEQ,
        Column("stage", "string", "target_aux, fc_in, fc_out, draft_in or draft_out"),
        Column("slot", "int16", "aux slot, from 0; NULL for a stage of one state"),
        Column("width", "int32", "width", "elements"),
        Column("rms", "float32", "root mean square"),
        Column("nan_count", "int32", "elements that are NaN or infinite"),
        Column("kurtosis", "float32", "excess kurtosis over the elements"),
    ),
    detail=True,
    per_rank=True,
)

TENSORS = Table(
    "tensors",
    "One stored tensor of a sampled user request (level `tensors`): n consecutive positions, n the first of its shape. "
    "Positions of a request have no holes from the first row on; an event `tensors_bounded` says where it stops early.",
    (
        _SEQ,
        Column("position", "int32", "sequence position of the first row of data", "tokens"),
        Column(
            "stage",
            "string",
            "prompt_ids: the prompt's token ids [prompt tokens]; "
            "input_ids: token ids given to the draft's extend [n], row i is the token at position + i + 1; "
            "target_aux: hidden states that the target left for the draft, as given to its extend [n, width]; "
            "target_layer: input of layer `layer` of the target [n, H]; "
            "fc_out: output of the fusion layer in the extend [n, H]; "
            "draft_out: hidden state that the draft hands to its next depth [K, H], at depth 1 of the extend [1, H]; "
            "draft_in: hidden state given to the draft step that drafts `depth` [K, H]; "
            "draft_top_ids: the 10 best draft-vocabulary ids by the draft's logits at `depth` [K, 10]. "
            "At depth d `position` is that of the round's root + d - 2",
        ),
        Column("dtype", "string", "dtype, such as float32, bfloat16 or int64"),
        Column("shape", "list<int64>", "shape"),
        Column("data", "binary", "raw values, little endian, row-major"),
        Column("round", "int64", "as in rounds; NULL over a prompt"),
        Column(
            "layer",
            "int32",
            "target_layer: layer of the target; the number of layers: output of the last layer, before the final norm",
        ),
        Column("depth", "int16", "draft_in, draft_out and draft_top_ids: depth that is drafted, from 1"),
    ),
    detail=True,
    per_rank=True,
)

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        SPANS, HOOKS, PARAMS, PARAM_VALUES, CHECKPOINT_KEYS, CONTRACT, EVENTS, REQUESTS, TOTALS,
        ROUNDS, DRAFTS, VERIFIES, HIDDEN, TENSORS,
    )
}  # fmt: skip
# Views of tensor-parallel rank 0, because all ranks run every round.
RANK0_TABLES = ("rounds", "drafts", "verifies", "requests", "totals")


def arrow_schema(table: Table) -> pa.Schema:
    """Arrow schema of a table, process columns first; `doc` and `unit` are field metadata."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "string": pa.string(), "json": pa.string(), "bool": pa.bool_(), "binary": pa.binary(),
        "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
        "float32": pa.float32(), "float64": pa.float64(),
        "list<string>": pa.list_(pa.string()), "list<int64>": pa.list_(pa.int64()),
    }  # fmt: skip
    return pa.schema(
        [
            pa.field(c.name, types[c.type], metadata={"doc": c.doc, "unit": c.unit})
            for c in (*PROCESS_COLUMNS, *table.columns)
        ]
    )
