"""What a changed fact means for acceptance, as data: the first rule whose pattern fits a key says it.

Patterns are those of `fnmatch`. A key that no rule names is minor.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from eagletrace.diff.result import Importance

_RULES: tuple[tuple[Importance, str, str], ...] = (
    # differs between any two runs of one configuration
    ("noise", "forward.fc_shapes", "the number of tokens is that of the first prompt"),
    ("noise", "*data_ptr*", "an address"),
    ("noise", "*/*port*", "a port"),
    ("noise", "server_args/*_ipc_name", "a name of this process"),
    ("noise", "server_args/host", "an address"),
    ("noise", "server_args/dist_init_addr", "an address"),
    ("noise", "run/host", "the machine"),
    ("noise", "hooks/*/errors", "the same hook"),
    ("noise", "*.relative_difference", "computed from what memory held"),
    ("noise", "*replaced.cosine", "computed from what memory held"),
    ("noise", "draft.config._name_or_path", "a path"),
    ("noise", "draft.config.transformers_version", "who wrote the file"),
    # known to be harmless: what is recorded, how it is told, where it goes
    ("minor", "settings/*", "how it was recorded"),
    ("minor", "trace.redacted", "how it was recorded"),
    ("minor", "run/eagletrace", "what recorded it"),
    ("minor", "run/python", ""),
    ("minor", "events/rows_dropped", "how it was recorded"),
    ("relevant", "events/*", "something happened while serving"),
    ("relevant", "run/torch", "another torch"),
    ("relevant", "run/*", ""),
    ("relevant", "ranks/*", "how the model was divided"),
    ("minor", "hooks/*", "what could be seen, not what was done"),
    # the draft that was served, and how it was loaded
    ("decisive", "checkpoint_keys/*/checksum", "other values in the checkpoint"),
    ("decisive", "checkpoint_keys/*/fate", "loaded otherwise"),
    ("decisive", "checkpoint_keys/*/shape", "another shape"),
    ("decisive", "checkpoint_keys/*/dtype", "another dtype in the checkpoint"),
    ("decisive", "checkpoint_keys/*", "a tensor of the checkpoint"),
    ("decisive", "params/*/elements_loaded", "loaded otherwise"),
    ("decisive", "params/*/shared_with", "shares other storage"),
    ("decisive", "params/*/nan_count", "NaN or infinity"),
    ("decisive", "params/*/checksum", "other values are served"),
    ("decisive", "params/*/dtype", "served in another dtype"),
    ("decisive", "params/*/shape", "another shape"),
    ("decisive", "params/*/constant", "one value in all elements"),
    ("relevant", "params/*/epoch", "weights were updated while serving"),
    ("relevant", "params/*", "a parameter of the model"),
    ("decisive", "positions/*", "how many positions too far the draft is placed"),
    # what is served
    ("relevant", "engine.version", "another release"),
    ("relevant", "server.worker", "another speculative worker"),
    ("relevant", "server.overlap_schedule", ""),
    ("relevant", "server.page_size", ""),
    ("relevant", "server.chunked_prefill_size", ""),
    ("relevant", "server.cuda_graph", "captured graphs or eager"),
    ("relevant", "server.attention_backend*", "another backend"),
    ("relevant", "server.dtype", ""),
    ("relevant", "server.*path", "another folder"),
    ("decisive", "server.speculative_*", "how drafts are made"),
    ("decisive", "env.simulated_acceptance*", "acceptance is faked"),
    ("decisive", "draft.rope*", "rotary settings of the draft"),
    ("decisive", "target.*", "another target"),
    ("relevant", "draft.config.*token_id", ""),
    ("relevant", "draft.config.*dropout", ""),
    ("relevant", "draft.config.use_cache", ""),
    ("decisive", "draft.*", "how the draft is built"),
    ("decisive", "d2t.*", "vocabulary map of the draft"),
    ("decisive", "t2d.*", "vocabulary map of the draft"),
    ("decisive", "hot_token_id*", "the served vocabulary map"),
    ("relevant", "aux.config_ids*", "what the configuration names, not what was captured"),
    ("relevant", "aux.set_layers_calls", ""),
    ("decisive", "aux.*", "states that are captured for the draft"),
    ("relevant", "sharing.*", "calls, not what they led to"),
    ("decisive", "embed.*", "embedding of the draft"),
    ("decisive", "head.*", "head of the draft"),
    ("decisive", "forward.*", "what the draft is given"),
    ("decisive", "graph.*", "what the draft is given from a captured graph"),
    # two runs of training; one beside a server's is compared by `training.py`
    ("relevant", "run.kind", "training or serving"),
    ("noise", "training.rounded*", "follows from the values"),
    ("noise", "training.target_path", "a path"),
    ("relevant", "training.library*", "another package or release trains"),
    ("relevant", "training.outside_draft_vocab*", "other texts"),
    ("decisive", "training.*", "how the draft is trained"),
    # arguments of the server that have no fact of their own
    ("noise", "server_args/*path", "a path"),
    ("noise", "server_args/served_model_name", "a name"),
    ("decisive", "server_args/speculative_accept_threshold*", "when a draft is accepted"),
    ("decisive", "server_args/speculative_use_*", "when a draft is accepted"),
    ("decisive", "server_args/json_model_override_args", "overrides the model's configuration"),
    ("decisive", "server_args/*quantization*", ""),
    ("decisive", "server_args/quantization", ""),
    ("relevant", "server_args/speculative_*", ""),
    ("relevant", "server_args/*kv_cache_dtype", "dtype of the KV cache"),
    ("relevant", "server_args/*backend*", "another backend"),
    ("relevant", "server_args/disable_radix_cache", "prefix cache"),
    ("relevant", "server_args/disable_overlap_schedule", ""),
    ("relevant", "server_args/disable_cuda_graph*", ""),
    ("relevant", "server_args/cuda_graph_*", ""),
    ("relevant", "server_args/enable_deterministic_inference", ""),
    ("relevant", "server_args/enable_torch_compile", ""),
    ("relevant", "server_args/enable_multi_layer_eagle", ""),
    ("relevant", "server_args/context_length", ""),
    ("relevant", "server_args/random_seed", ""),
    ("relevant", "server_args/device", ""),
    ("relevant", "server_args/*_size", "how the model was divided"),
    ("relevant", "server_args/max_running_requests", "how large batches get"),
    ("relevant", "server_args/lora*", ""),
)


@cache
def importance(key: str) -> tuple[Importance, str]:
    """Importance of a fact by its key, and why."""
    for level, pattern, why in _RULES:
        if fnmatchcase(key, pattern):
            return level, why
    return "minor", ""
