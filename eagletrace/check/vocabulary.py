"""Checks of the draft vocabulary: `d2t`, `t2d` and the sizes. SGLang reads `d2t` as offsets from the draft id."""

from __future__ import annotations

import numpy as np

from eagletrace.check.facts import Facts, tokens_of
from eagletrace.check.maps import Ids
from eagletrace.check.outcome import Outcome, alarm, ok, several, skip, unknown

NO_MAP = "the file has no d2t"


def all_zero(f: Facts) -> bool:
    """Every entry is zero."""
    return f.d2t is not None and not np.any(f.d2t)


def is_absolute(f: Facts) -> bool:
    """The map makes sense as ids, and less or none as offsets."""
    both = f.readings
    if both is None or all_zero(f):
        return False
    offsets, ids = both
    if not (ids.sane and ids.monotone):
        return False
    if ids.agreement is not None and offsets.agreement is not None:
        return ids.agreement > offsets.agreement
    return not offsets.sane


def encoding(f: Facts) -> Outcome:
    """`d2t` is encoded as the engine reads it."""
    both = f.readings
    if both is None:
        return skip(NO_MAP)
    offsets, ids = both
    if not is_absolute(f):
        return ok("d2t reads well as the engine reads it")
    agreement = ""
    if ids.agreement is not None and offsets.agreement is not None:
        agreement = (
            f"; t2d agrees with {100 * ids.agreement:.1f} % of them as ids and with "
            f"{100 * offsets.agreement:.1f} % as offsets"
        )
    return alarm(
        f"d2t holds absolute ids ({ids.low} to {ids.high}, ascending, each once), but the engine adds them to the "
        f"draft id: ids up to {offsets.high} in a vocabulary of {f.vocabulary}{agreement}",
        as_offsets=offsets.to_json(), as_ids=ids.to_json(), vocabulary=f.vocabulary, dies=offsets.in_range is False,
    )  # fmt: skip


def length(f: Facts) -> Outcome:
    """`d2t` has one entry for each row of the served head."""
    rows = f.served_rows
    if f.d2t is None:
        return skip(NO_MAP)
    if rows is None:
        return unknown("the rows of the served head are not known: config.json names no draft_vocab_size")
    entries = len(f.d2t)
    if f.draft.algorithm != "EAGLE3":
        return skip("the draft's class reads no d2t")
    if entries != rows:
        return alarm(f"d2t has {entries} entries, the served head {rows} rows", d2t_length=entries, head_rows=rows)
    return ok(f"d2t has {entries} entries, the served head {rows} rows")


def head_rows(f: Facts) -> Outcome:
    """The stored head has as many rows as the engine makes room for."""
    stored, due = f.draft.shape("lm_head.weight"), f.draft.draft_vocab_size
    if stored is None or f.draft.tied or f.head_from_target:
        return skip("the engine does not read a head from the file")
    rows, wide = stored if len(stored) == 2 else (None, None)
    if due is not None and (rows != due or f.draft.hidden_size not in (None, wide)):
        return alarm(
            f"lm_head.weight is {list(stored)}, and draft_vocab_size {due} and hidden_size {f.draft.hidden_size} are "
            "in config.json: loading ends with an error",
            dies=True, stored=list(stored), draft_vocab_size=due, hidden_size=f.draft.hidden_size,
        )  # fmt: skip
    return ok(f"lm_head has {rows} rows, as config.json says")


def mismatch(f: Facts) -> Outcome:
    """`d2t` maps each draft id to a token of its own."""
    both = f.readings
    if both is None:
        return skip(NO_MAP)
    m = both[0]
    outside, unsure = m.in_range is False, m.agreement is not None and m.agreement < 1
    if not (outside or not m.unique or (not m.monotone and unsure)):
        return ok("the mapped ids are in the vocabulary, each once")
    parts = [f"they run from {m.low} to {m.high}, outside the vocabulary of {f.vocabulary}"] if outside else []
    parts += ["several draft ids have the same token"] if not m.unique else []
    parts += ["they are not in ascending order"] if not m.monotone else []
    parts += [f"t2d marks only {100 * (m.agreement or 0):.1f} % of them"] if unsure else []
    return alarm(
        f"the mapped ids are wrong in part: {several(parts, 4)}",
        as_offsets=m.to_json(), vocabulary=f.vocabulary, dies=outside,
    )  # fmt: skip


def missing(f: Facts) -> Outcome:
    """A reduced draft vocabulary has its map."""
    if f.draft.algorithm != "EAGLE3":
        return skip("the draft's class reads no d2t")
    size, vocabulary = f.served_rows, f.vocabulary
    if size is None or vocabulary is None:
        return unknown("the sizes of the vocabularies are not in config.json; give --target")
    if size >= vocabulary:
        return skip(f"the draft has the target's whole vocabulary ({size}): no map is needed")
    both = f.readings
    evidence = {"draft_vocab_size": size, "vocab_size": vocabulary, "d2t_in_checkpoint": f.d2t is not None}
    if both is not None and all_zero(f) and (both[0].agreement or 0) < 1:
        return alarm(f"d2t is zero everywhere: draft ids 0 to {size - 1} are taken for target ids (vocabulary "
                     f"{vocabulary})", [{**evidence, "all_zero": True}])  # fmt: skip
    if both is None:
        return alarm(f"the draft has {size} of the target's {vocabulary} tokens, and there is no d2t: draft ids are "
                     "taken for target ids", [evidence])  # fmt: skip
    read = f.landing is None or "consumed_as_attribute" in f.landing.fates.values()
    if not read:
        return alarm("the file has a d2t, and the engine would serve without a map", [evidence])
    return ok(f"the {size} draft ids are mapped into {vocabulary} target ids")


def order(f: Facts) -> Outcome:
    """`d2t` is in ascending order."""
    both = f.readings
    if both is None:
        return skip(NO_MAP)
    if both[0].monotone:
        return ok("the mapped ids are in ascending order")
    return alarm("the mapped ids are not in ascending order, as trainers write them", as_offsets=both[0].to_json())


def t2d(f: Facts) -> Outcome:
    """`t2d` marks the tokens that `d2t` maps to."""
    both = f.readings
    if f.t2d is None or both is None:
        return skip("the file has no t2d" if f.t2d is None else NO_MAP)
    marked, mapped, share = int(np.count_nonzero(f.t2d)), len(f.d2t) if f.d2t is not None else 0, both[0].agreement or 0
    more = f", and marks {marked} tokens where the map has {mapped}" if marked != mapped else ""
    if share < 1 and not more:
        return alarm(
            f"t2d marks as many tokens as the map has, {marked}, but only {100 * share:.1f} % of those that it holds: "
            "one of the two is wrong, and SGLang reads d2t",
            [{"share": share, "marked": marked, "map_length": mapped}], "sure",
        )  # fmt: skip
    if more:
        return alarm(f"t2d marks {100 * share:.1f} % of the tokens that the map holds{more}",
                     share=share, marked=marked, map_length=mapped)  # fmt: skip
    return ok("t2d and the map agree")


SINGLE_BYTES_SHARE = 0.5
"""Share of the printable ASCII characters below which a draft vocabulary was not chosen by counting text: a draft
vocabulary of 384 of 512 tokens has all of them, and so have those of 32,000."""


def single_bytes(f: Facts) -> Outcome:
    """The draft vocabulary has the single characters, which any text is full of."""
    if f.target is None:
        return unknown("give --target, with its tokenizer.json, to look for single characters in the draft vocabulary")
    if f.map_ids is None:
        return skip("there is no map")
    tokens = tokens_of(f.target.checkpoint.path)
    if tokens is None:
        return skip("the target's folder has no tokenizer.json with a vocabulary")
    ids = set(f.map_ids.tolist())
    there = [character for character in map(chr, range(33, 127)) if character in tokens]
    kept = sum(tokens[character] in ids for character in there)
    evidence = {"in_tokenizer": len(there), "in_draft_vocabulary": kept}
    if kept < SINGLE_BYTES_SHARE * len(there):
        return alarm(f"of the tokenizer's {len(there)} printable single characters the draft vocabulary has {kept}: "
                     "none of the others can ever be drafted", [evidence])  # fmt: skip
    return ok(f"the draft vocabulary has {kept} of {len(there)} printable single characters", **evidence)


def from_t2d(f: Facts) -> Ids | None:
    """The map that `t2d` gives, as offsets, where it marks as many tokens as the head has rows; else None.

    Trainers number the kept tokens in ascending order.
    """
    if f.t2d is None or f.draft.head_rows is None:
        return None
    kept = np.flatnonzero(f.t2d).astype(np.int64)
    return kept - np.arange(len(kept)) if len(kept) == f.draft.head_rows else None
