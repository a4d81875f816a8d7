"""Registry of `contract` keys and `events` kinds: the names that recorder and checks share.

Values in `expected` and `actual` are JSON. `expected` is what the checkpoint or its configuration asks for
(NULL when nothing does), `actual` what the engine has.
"""

from __future__ import annotations

CONTRACT_KEYS: dict[str, str] = {
    "trace.redacted": "whether token ids are keyed hashes (EAGLETRACE_REDACT)",
    "run.kind": "training for a recorded validation step (eagletrace.record_training); a server's run has no such key",
    # what serves
    "engine.name": "sglang",
    "engine.version": "version of the engine",
    "server.model_path": "path of the target",
    "server.speculative_draft_model_path": "path of the draft; null without speculation",
    "server.speculative_algorithm": "actual: the server's; expected: the one that fits the draft's class "
    "(EAGLE3 for an EAGLE-3 draft: an fc that fuses aux states, or a d2t; EAGLE, of which NEXTN is another "
    "name, for an EAGLE-1 or EAGLE-2 draft and multi-token prediction; STANDALONE for a language model of its own)",
    "server.speculative_num_steps": "draft steps per round",
    "server.speculative_eagle_topk": "branches per step",
    "server.speculative_num_draft_tokens": "nodes of the verify tree, root included",
    "server.speculative_token_map": "path of a token map, or null",
    "server.overlap_schedule": "whether the overlap scheduler is on",
    "server.worker": "class of the speculative worker",
    "server.dtype": "dtype asked for",
    "server.page_size": "KV page size",
    "server.chunked_prefill_size": "tokens of a prompt that are computed in one forward; -1 or null: all",
    "server.cuda_graph": "whether graphs are captured",
    "server.attention_backend": "attention backends, {prefill, decode}",
    "env.simulated_acceptance": "value of the setting that fakes acceptance (SGLANG_SIMULATE_ACC_LEN); null if off",
    # models
    "target.architecture": "class of the target",
    "target.num_hidden_layers": "layers of the target's language model",
    "target.hidden_size": "hidden size of the target's language model",
    "target.vocab_size": "target vocabulary",
    "target.rope": "rotary settings as the engine has them: {theta, scaling, head_dim, partial, max_position}",
    "draft.architecture": "class of the draft",
    "draft.family": "eagle3 (fc over aux states), eagle (EAGLE-1 and EAGLE-2: fc over embedding and last hidden "
    "state), nextn (multi-token prediction: eh_proj or fc over the same two, each normed) or standalone (a model of "
    "its own); null for others",
    "draft.hidden_size": "hidden size of the draft",
    "draft.target_hidden_size": "hidden size of the target as the draft's configuration or fc says",
    "draft.vocab_size": "vocab_size in the draft's configuration; expected: the target's",
    "draft.draft_vocab_size": "draft vocabulary served (rows of the head; with a token map its length); expected: rows "
    "of the checkpoint's head",
    "draft.tie_word_embeddings": "whether the draft's head is its embedding; expected: false when the file has a head",
    "draft.load_lm_head_from_target": "whether the engine replaces the draft's head by the target's",
    "draft.rope": "as target.rope, of the draft",
    "draft.config": "the draft's whole configuration",
    "draft.fc": "actual: {in_features, out_features, name} of the fusion layer (fc, or eh_proj); null if none",
    # draft vocabulary map
    "d2t.in_checkpoint": "whether the file has a d2t",
    "d2t.length": "actual: length of the file's d2t; expected: rows of the served head",
    "d2t.all_zero": "whether the file's d2t is all zero",
    "d2t.as_offsets": "d2t read as offsets: {min, max, in_range, monotone, unique, t2d_agreement}",
    "d2t.as_ids": "d2t read as absolute ids: the same",
    "t2d.in_checkpoint": "whether the file has a t2d",
    "t2d.agreement": "share of the served map's ids that t2d marks, and {marked, map_length}",
    "hot_token_id": "actual: the served map {length, min, max, in_range, monotone, unique, identity}, null if none; "
    "expected: {length: rows of the head, max_below: target vocabulary}",
    # aux hidden states
    "aux.use_aux_hidden_state": "actual: what the engine read; expected: true for an EAGLE-3 draft with a fusion layer",
    "aux.count": "actual: states captured; expected: fc.in_features / hidden size of the target",
    "aux.config_ids": "every place of the draft's configuration that names aux layers: {path: ids}",
    "aux.layers_requested": "ids given to set_eagle3_layers_to_capture (null: the default); "
    "expected: the ids that the draft's configuration names, wherever they stand; source: where the engine read them",
    "aux.layers_captured": "actual: the target's layers_to_capture (null: never set); expected: what the "
    "configuration's ids, or the engine's default, mean on this target, as inputs of layers",
    "aux.capture_enabled": "the capture flags of the target and its inner models: {path: bool}; source: the innermost "
    "path, whose flag counts",
    "aux.set_layers_calls": "calls of set_eagle3_layers_to_capture on the target",
    # sharing
    "sharing.set_embed_calls": "calls of set_embed on the draft",
    "sharing.set_embed_and_head_calls": "calls of set_embed_and_head on the draft",
    "sharing.set_lm_head_from_target_calls": "calls of set_lm_head_from_target on the draft",
    "embed.in_checkpoint": "whether a tensor of the file landed in the draft's embedding, and {key}",
    "embed.shared_with_target": "whether the served embedding is the target's storage",
    "embed.replaced": "{changed, relative_difference, cosine}: the loaded embedding against the served one; "
    "null when the file has none",
    "head.in_checkpoint": "whether a tensor of the file landed in the draft's head, or was meant to, and {key}",
    "head.shared_with_target": "whether the served head is the target's storage (head or embedding)",
    "head.replaced": "{changed, relative_difference, cosine, by}: the head of the file against the served one; "
    "null when the file has none; the differences are null when the shapes differ",
    # first forwards
    "forward.target_hidden_width": "actual: width of the target's hidden state at the first draft extend; "
    "expected: fc.in_features",
    "forward.draft_input_width": "actual: width given to the draft at its first extend; expected: fc.in_features",
    "forward.fc_applied": "actual: whether fc ran in the first draft extend; expected: true where there is an fc",
    "forward.fc_shapes": "[input shape, output shape] of the first fc call",
    "graph.draft_extend_input_width": "actual: width of the captured draft extend's input buffer; expected: width of "
    "the hidden state given to it (SGLang skips the copy where they differ, and replays on old values)",
    # a draft in training
    "training.library": "{name, version} of the package that trains",
    "training.trained": "names of the parameters that are trained",
    "training.frozen": "names of the parameters that are not",
    "training.rounded": "checksums of the values rounded to other dtypes: {name: {bfloat16, float16}}",
    "training.norms": "{norm_before_residual, norm_before_fc, fc_norm, norm_output}, as the configuration has them",
    "training.target_path": "path of the target that the draft was compared with",
    "training.embed_equals_target": "{key, rows, equal_rows, equal, rounded_to, relative_difference}: the draft's "
    "embedding against the target's; null where one of the two has none",
    "training.head_equals_target": "as training.embed_equals_target: the draft's head against the target's rows of the "
    "draft vocabulary",
    "training.target_choice": "vocabulary: drafts are compared with the best of all tokens; draft vocabulary: with the "
    "best of those that the draft has",
    "training.outside_draft_vocab": "{tokens, outside}: tokens of the validation texts that the loss looks at, and "
    "those of them that the draft's vocabulary lacks",
}

EVENT_KINDS: dict[str, str] = {
    "set_embed": "{caller, embed_before, embed_after, head_before, head_after}: each {checksum, shape, rms, data_ptr}",
    "set_embed_and_head": "as set_embed",
    "set_lm_head_from_target": "as set_embed",
    "weights_loaded": "{side, keys, dropped, unwritten, seconds}",
    "weights_changed": "{side, epoch, how, success, message, names, changed, given, given_names, path, seconds}: an "
    "update of the draft or the target; names: parameters whose checksums changed (of the target its embedding and "
    "head are looked at), null where checksums were left out because calls followed each other too fast; given_names: "
    "the tensors handed over; path: the files",
    "layers_captured": "{requested, captured, caller, model}",
    "graph_captured": "{runner, batch_sizes, token_counts, type, input_width}: the shapes of one runner's graphs",
    "rows_dropped": "{table, rows, reason}",
    "recording_stopped": "{reason, table}: rows could not be written; detail is dropped, facts and totals wait",
    "recording_resumed": "{seconds, rows_lost}: rows are written again; rows_lost by table, null where it is not known",
    "control": "{level, sample, paused, by, asked_time_unix_nano}, or {refused}: a change of a live recording "
    "(eagletrace ctl)",
    "engine_exception": "{where, type, message, traceback, phase}: an exception that passed a hook or the event loop",
    "hook_error": "{target, error}",
    "shut_out": "{reason}: the engine was told not to load the plugin; not written by this release (the log says so)",
    "serving": "{}: load-time facts are complete; the first forward follows",
    "setting_ignored": "{variable, value, allowed, used}: a bad value of a variable",
    "retraction": "{request_ids}",
    "otlp": "{state, sent, dropped, reason}: spans to the collector of the OTEL_* variables; state is "
    "sending or failing",
    "tensors_bounded": "{request_seq, position, reason}: at level tensors, a request's hidden states are stored up to "
    "this position and not on; position null: it was not begun (of these the first for each reason, the others are "
    "counted in totals). reason: EAGLETRACE_TENSOR_TOKENS, EAGLETRACE_TENSOR_BYTES, queue full, retracted, "
    "recording interrupted, write failed, device memory (of the target's layers), error (a hook_error says which), or "
    "gap (the engine gave other positions than expected)",
    "param_values_bounded": "{names, elements}: parameters whose values were not stored: 64 MiB were",
}
