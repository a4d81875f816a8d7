"""Proof by replay: a reference of EAGLE-1 to EAGLE-3 in plain PyTorch, and hypotheses as small changes of it."""
