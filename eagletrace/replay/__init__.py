"""Proof by replay: a reference EAGLE-3 in plain PyTorch, and hypotheses as small changes of it. Needs torch."""
