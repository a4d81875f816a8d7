"""Checks of what draft and target share: embeddings and heads, copied, random or trained."""

from __future__ import annotations

import numpy as np

from eagletrace.check.facts import Facts
from eagletrace.check.outcome import Outcome, alarm, ok, skip, unknown
from eagletrace.checkpoint import sample
from eagletrace.checkpoint.sample import Likeness, Stored
from eagletrace.diagnose import policy

EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"


def _embedding_likeness(f: Facts) -> Likeness | None:
    key = f.draft.names.get(EMBED)
    if key is None or f.target is None or f.target.embed_key is None:
        return None
    return sample.likeness(Stored(f.draft.checkpoint, key), Stored(f.target.checkpoint, f.target.embed_key))


def embedding(f: Facts) -> Outcome:
    """The draft runs on the embeddings that it was trained with."""
    key = f.draft.names.get(EMBED)
    if key is None:
        return skip("the file has no embeddings of its own: the target's are served")
    if not f.shares_embedding:
        return ok("the hidden sizes differ, so that the engine serves the file's own embeddings")
    if f.target is None:
        return unknown("the file has embeddings, and the target's are served: give --target to compare them")
    alike = _embedding_likeness(f)
    if alike is None:
        return unknown("the target's embeddings have another width, or were not found")
    if alike.equal:
        return ok("the embeddings in the file are a copy of the target's, which are served")
    kind = _KINDS[sample.origin(Stored(f.draft.checkpoint, key))]
    return alarm(
        f"the embeddings in the file are {kind}, not the target's, which are served {_said(alike)}: harmless unless "
        "the draft was trained with these",
        relative_difference=alike.relative_difference, cosine=alike.cosine, kind=kind,
    )  # fmt: skip


_KINDS = {
    "constant": "one value",
    "independent": "independent random values",
    "structured": "those of a trained model",
}


def _said(alike: Likeness) -> str:
    return f"(relative difference {alike.relative_difference:.3g}, cosine {alike.cosine:.3f})"


def _foreign(f: Facts) -> Likeness | None:
    """How the file's embeddings compare where they were trained and are neither the target's nor alike; else None."""
    alike = _embedding_likeness(f)
    key = f.draft.names.get(EMBED)
    if alike is None or key is None or alike.equal or alike.cosine > policy.SIBLING_COSINE:
        return None
    return alike if sample.origin(Stored(f.draft.checkpoint, key)) == "structured" else None


def _is_rotated(f: Facts) -> bool:
    """The rows lie to each other as the target's do, in another basis."""
    mine, theirs = f.draft.names[EMBED], f.target.embed_key if f.target else None
    if f.target is None or theirs is None:
        return False
    return sample.same_angles(Stored(f.draft.checkpoint, mine), Stored(f.target.checkpoint, theirs))


def rotation(f: Facts) -> Outcome:
    """The target's hidden states lie in the basis that the draft was trained in, as its embeddings tell."""
    alike = _foreign(f)
    if alike is None:
        return skip("the file has no trained embeddings other than the target's")
    if _is_rotated(f):
        return alarm(
            f"the embeddings in the file are the target's in another basis {_said(alike)}: all angles and lengths are "
            "the same; the target was rotated after the draft was trained",
            relative_difference=alike.relative_difference, cosine=alike.cosine,
        )  # fmt: skip
    return ok("the embeddings in the file are not the target's in another basis")


def foreign(f: Facts) -> Outcome:
    """The embeddings in the file are not those of another model."""
    alike = _foreign(f)
    if alike is None or _is_rotated(f):
        return skip("the file has no embeddings of another model")
    return alarm(
        f"the embeddings in the file were trained, and are not this target's {_said(alike)}: drafts are trained with a "
        "copy of their target's, so that it was made for another one, or for embeddings of its own",
        relative_difference=alike.relative_difference, cosine=alike.cosine,
    )  # fmt: skip


def sibling(f: Facts) -> Outcome:
    """The embeddings in the file are not those of another version of the target."""
    alike = _embedding_likeness(f)
    if alike is None:
        return skip("there are no two embeddings to compare")
    if not alike.equal and alike.cosine > policy.SIBLING_COSINE:
        return alarm(
            f"the embeddings in the file resemble the target's (cosine {alike.cosine:.3f}) and are not the same "
            f"(relative difference {alike.relative_difference:.3g}): another version of the target",
            relative_difference=alike.relative_difference, cosine=alike.cosine,
        )  # fmt: skip
    return ok("the embeddings in the file are the target's, or none of its kind")


def _head_likeness(f: Facts) -> Likeness | None:
    """The stored head's rows against those rows of the target's head that the map names."""
    key = f.draft.names.get(HEAD)
    if key is None or f.target is None or f.target.head_key is None:
        return None
    stored = Stored(f.draft.checkpoint, key)
    ids = f.map_ids if f.map_ids is not None else np.arange(stored.info.shape[0], dtype=np.int64)
    return sample.row_likeness(stored, Stored(f.target.checkpoint, f.target.head_key), ids)


def head(f: Facts) -> Outcome:
    """The draft runs on the head of its file."""
    key = f.draft.names.get(HEAD)
    if key is None:
        return skip("the file has no head")
    if f.draft.tied:
        return skip("tie_word_embeddings is set: see lm_head.tied")
    if not f.head_from_target:
        return ok("the head that is served is that of the file")
    alike = _head_likeness(f)
    if alike is not None and alike.equal:
        return ok("the target's head is served, and that in the file is a copy of it")
    differs = "" if alike is None else f" (relative difference {alike.relative_difference:.3g})"
    if f.draft.algorithm != "EAGLE3":
        if alike is None:
            return unknown("the target's head is served, as with every EAGLE draft; give --target to compare")
        return alarm(f"the target's head is served, and that in the file is another one{differs}",
                     relative_difference=alike.relative_difference)  # fmt: skip
    return alarm(
        f"draft_vocab_size is null: the target's head is served in place of that in the file{differs}",
        relative_difference=None if alike is None else alike.relative_difference, draft_vocab_size=None,
    )  # fmt: skip


def tied(f: Facts) -> Outcome:
    """The head is not tied to the embeddings where the file has a head."""
    if HEAD not in f.draft.names:
        return skip("the file has no head")
    if f.draft.tied:
        return alarm(
            "tie_word_embeddings is true: the embeddings serve as head, and the trained head of the file is not used",
            tie_word_embeddings=True,
        )
    return ok("the head is a parameter of its own")


def head_origin(f: Facts) -> Outcome:
    """Where the head's rows come from: copied from the target, or trained."""
    if HEAD not in f.draft.names:
        return skip("the file has no head")
    alike = _head_likeness(f)
    if alike is None:
        return unknown("give --target (with a head of this width) to tell a trained head from a copied one")
    said = f"relative difference {alike.relative_difference:.3g}, cosine {alike.cosine:.3f}"
    evidence = {"relative_difference": alike.relative_difference, "cosine": alike.cosine}
    if alike.equal:
        return ok(f"the head's rows are copies of the target's ({said})", **evidence)
    kind = sample.origin(Stored(f.draft.checkpoint, f.draft.names[HEAD]))
    if kind == "structured" or f.draft.head_rows is None:
        return ok(f"the head was trained: its rows are not the target's ({said})", **evidence)
    what = "one value" if kind == "constant" else "independent random values, as before training"
    return alarm(f"the head's rows are {what} ({said})", [{**evidence, "origin": kind}])
