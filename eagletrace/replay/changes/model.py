"""What a change of a recipe is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eagletrace.replay.recipe import Recipe


@dataclass(frozen=True)
class Change:
    """One small change. `text` says in a few words what is done differently under it.

    `family` groups changes of which at most one holds (several rotary settings, several lists of layers).
    """

    cause: str
    text: str
    apply: Callable[[Recipe], Recipe]
    family: str = ""

    def __call__(self, recipe: Recipe) -> Recipe:
        """The recipe with the change."""
        return self.apply(recipe)


def applied(recipe: Recipe, changes: tuple[Change, ...] | list[Change]) -> Recipe:
    """The recipe with all of some changes."""
    for change in changes:
        recipe = change(recipe)
    return recipe
