"""Causes in what draft and target share: embeddings and head."""

from eagletrace.diagnose.causes.model import CauseInfo

CAUSES = (
    CauseInfo(
        id="lm_head.replaced",
        stage="wiring",
        title="The trained head of the draft was overwritten by another",
        what="EAGLE-3 trains a head of its own. Here the target's head, or the embeddings, serve in its place.",
        why="The draft's last layer was trained against its own head. Through another one its outputs mean other "
        "tokens.",
        shows="The head in the checkpoint against the one served; tie_word_embeddings; load_lm_head_from_target, "
        "which SGLang switches on when draft_vocab_size is missing; set_embed_and_head with checksums before and "
        "after.",
        fix='Set "tie_word_embeddings": false and "draft_vocab_size" to the number of rows of lm_head in '
        "{draft}/config.json.",
        cases=("SpecForge#478",),
        effects=(
            "weights.unused_keys", "vocab.d2t_length", "vocab.d2t_missing", "vocab.coverage", "numerics.nan_hidden",
            "ranks.facts", "ranks.weights", "ranks.rounds", "ranks.acceptance",
        ),
    ),
    CauseInfo(
        id="embed.mismatch",
        stage="wiring",
        title="The draft runs on other embeddings than it was trained with",
        what="The checkpoint holds embeddings, and others are served: SGLang gives each EAGLE-3 draft the target's.",
        why="A draft that was trained on embeddings of its own (or on random frozen ones) does not understand the "
        "target's. Where the file's are only a leftover, nothing is lost: therefore this is named only when "
        "acceptance is poor and nothing surer explains it.",
        shows="Embeddings of the checkpoint against those served: relative difference and cosine.",
        fix="Train the draft with the target's embeddings, frozen (embed_tokens copied from {target}); embeddings of "
        "its own cannot be served with this engine.",
        cases=("vllm#28549", "the Kimi-K2.5 story: frozen embeddings that were not the target's"),
        effects=("ranks.facts", "ranks.weights", "ranks.rounds", "ranks.acceptance"),
    ),
)  # fmt: skip
