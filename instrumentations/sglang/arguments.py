"""The server's arguments as the engine decided them.

Older releases write their decisions into the arguments. Newer ones (0.5.20 and 0.5.23 were read) leave them as they
were given and note decisions beside them, in order (arg_groups/overrides.py `declare_resolution`): an algorithm under
its own name, the number of draft steps, a draft that stands in the target's checkpoint.
"""

from __future__ import annotations

from typing import Any

SPECULATION = "speculative_"
"""Arguments whose decisions count here; the others are recorded as they were asked for."""


class Decided:
    """Arguments of a server, with what was decided of speculation."""

    def __init__(self, given: Any, decisions: dict[str, Any]) -> None:
        self._given, self._decisions = given, decisions

    def __getattr__(self, name: str) -> Any:
        """The decision, or what was given."""
        return self._decisions[name] if name in self._decisions else getattr(self._given, name)


def decided(server_args: Any) -> Any:
    """The arguments with the engine's decisions; the arguments themselves where there are none beside them."""
    decisions: dict[str, Any] = {}
    for _source, declared in getattr(server_args, "_resolved_overrides", None) or ():
        decisions |= {name: value for name, value in declared.items() if name.startswith(SPECULATION)}
    return Decided(server_args, decisions) if decisions else server_args
