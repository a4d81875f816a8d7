"""The gate: whether this process traces, and the one small wrapper that starts it. Standard library only when off.

The engine's scheduler module is imported by every process of a server, so nothing is attached on import: the
wrapper on `Scheduler.__init__` attaches in the process that builds a scheduler, before any weight is loaded.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from eagletrace.settings import is_on, on

logger = logging.getLogger("eagletrace")
SCHEDULER = "sglang.srt.managers.scheduler"
PLUGINS = "sglang.srt.plugins"  # 0.5.11 and later
PLUGIN_NAME = "eagletrace"
KEY = "EAGLETRACE_REDACT_KEY"

_state: dict[str, Any] = {}


def register() -> None:
    """Entry point `sglang.srt.plugins`: called by SGLang 0.5.11 and later in each of its processes."""
    if is_on():
        _quietly(_install)


def from_site() -> None:
    """Called by the `.pth` file in every Python process of the environment while EAGLETRACE is set.

    Releases with plugins call `register` themselves; here it is only said at once if they were told not to.
    """
    if not is_on() or any("resource_tracker" in part for part in sys.orig_argv):
        return
    _quietly(_on_import, SCHEDULER, _from_site)


def _from_site(module: Any) -> None:
    if not _has_plugins():
        _install()
        return
    reason = shut_out(os.environ)
    if reason is not None:
        _report_shut_out(module, reason)


def shut_out(environ: Mapping[str, str]) -> str | None:
    """Why SGLang will not load the plugin; None if it will."""
    allowed = {name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()}
    if allowed and PLUGIN_NAME not in allowed:
        return f"SGLANG_PLUGINS={environ['SGLANG_PLUGINS']!r} does not name {PLUGIN_NAME!r}"
    return None


def _has_plugins() -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(PLUGINS) is not None
    except (ImportError, ValueError):
        return False


def _report_shut_out(module: Any, reason: str) -> None:
    """Warn where a scheduler is built, in its log."""
    import wrapt

    def warn(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        _say(f"eagletrace: EAGLETRACE is set but tracing is shut out: {reason}. Add {PLUGIN_NAME} to it, or unset it.")
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "Scheduler.__init__", warn)


def _on_import(name: str, callback: Any) -> None:
    import wrapt

    wrapt.register_post_import_hook(callback, name)


def _install() -> None:
    """Arrange for the scheduler module's class to be wrapped, now or when it is imported. Idempotent."""
    if _state.get("asked"):
        return
    _state["asked"] = True
    _share_key()
    _on_import(SCHEDULER, _wrap_scheduler)


def _share_key() -> None:
    """One random key for all processes of a redacted run, which inherit it: their hashes must be comparable."""
    if on(os.environ.get("EAGLETRACE_REDACT", "")) and not os.environ.get(KEY):
        os.environ[KEY] = os.urandom(32).hex()
        _state["key"] = True


def _wrap_scheduler(module: Any) -> None:
    import wrapt

    if not _state.get("asked") or _state.get("wrapped"):
        return
    scheduler = module.Scheduler
    original: Any = vars(scheduler)["__init__"]
    wrapper = wrapt.FunctionWrapper(original, _build_scheduler)
    scheduler.__init__ = wrapper
    _state["wrapped"] = (scheduler, original, wrapper)


def _build_scheduler(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around `Scheduler.__init__`: attach before it, record the load-time facts after it."""
    attachment = _attach(args, kwargs)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        if attachment is not None:
            _quietly(attachment.session.crashed, "Scheduler.__init__", error, "load")
        raise
    if attachment is not None:
        _quietly(attachment.ready, instance)
    return result


def _attach(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _state.get("attachment") is not None:
        return None
    try:
        from eagletrace.settings import from_environ

        settings = from_environ()
        for bad in settings.bad:
            _say(str(bad))
        from eagletrace.instrumentations.sglang.attach import Attachment
        from eagletrace.instrumentations.sglang.ranks import scheduler_ranks

        server_args = args[0] if args else kwargs.get("server_args")
        attachment = Attachment(settings, server_args, scheduler_ranks(args, kwargs))
        _state["attachment"] = attachment
        attachment.attach()
    except OSError as error:
        _say(
            f"eagletrace: cannot write a trace ({error}); serving without tracing. "
            "Set EAGLETRACE_DIR to a folder that can be written to."
        )
        return None
    except Exception as error:
        _say(f"eagletrace: could not attach ({type(error).__name__}: {error}); serving without tracing")
        logger.debug("eagletrace: attach failed", exc_info=True)
        return None
    return attachment


def _say(message: str) -> None:
    """One warning, to the log if it is configured, else to stderr."""
    if logger.hasHandlers():
        logger.warning(message)
    else:
        print(message, file=sys.stderr, flush=True)


def _quietly(function: Any, *args: Any) -> None:
    try:
        function(*args)
    except Exception as error:
        _say(f"eagletrace: {type(error).__name__}: {error}; serving is not affected")
        logger.debug("eagletrace: error", exc_info=True)


def instrument() -> None:
    """Trace SGLang servers and engines started by this process. Idempotent."""
    if "environ" not in _state:
        _state["environ"] = os.environ.get("EAGLETRACE")
    if not is_on():
        os.environ["EAGLETRACE"] = "1"
    _install()


def uninstrument() -> None:
    """Stop tracing in this process and put the engine's original objects back. Idempotent."""
    attachment = _state.pop("attachment", None)
    if attachment is not None:
        attachment.detach()
    wrapped = _state.pop("wrapped", None)
    if wrapped is not None:
        scheduler, original, wrapper = wrapped
        if vars(scheduler).get("__init__") is wrapper:
            scheduler.__init__ = original
    _state.pop("asked", None)
    if _state.pop("key", None):
        os.environ.pop(KEY, None)
    if "environ" in _state:
        before = _state.pop("environ")
        if before is None:
            os.environ.pop("EAGLETRACE", None)
        else:
            os.environ["EAGLETRACE"] = before
