"""The kinds of drafts that a pair has."""

from __future__ import annotations

from eagletrace.lab.pair.draft import Draft, FeatureDraft
from eagletrace.lab.pair.nextn import NextNDraft
from eagletrace.lab.pair.standalone import StandaloneDraft

AnyDraft = Draft | FeatureDraft | NextNDraft | StandaloneDraft
