"""The SGLang versions that the lab can serve with: interpreter, module, stand-in kernels, flags, environment."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.lab.runtime import START

LAB = Path(__file__).parent
DEFAULT_ENGINE = "0.5.23"
MODULE_0_5_9 = "lab_launch_server"
"""kernels_0_5_9/lab_launch_server.py, which spawned children import again."""


class EngineMissingError(EagletraceError):
    """The environment of an engine is not installed."""


@dataclass(frozen=True)
class Engine:
    """How one SGLang version is served on a CPU.

    `flags` are `sglang.launch_server` flags without their dashes (True: a switch); `workers` are the
    speculative workers the version has, `worker_env` what selects each.
    """

    version: str
    module: str
    kernels: tuple[str, ...]
    flags: Mapping[str, str | int | float | bool]
    env: Mapping[str, str]
    workers: tuple[str, ...]
    setup: str
    worker_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    def worker(self, name: str | None) -> str:
        """The named worker, or the version's default; EagletraceError if the version has no such worker."""
        if name is None:
            return self.workers[0]
        if name not in self.workers:
            raise EagletraceError(
                f"SGLang {self.version} has no speculative worker {name!r}; it has {', '.join(self.workers)}"
            )
        return name

    def environment(self, worker: str) -> dict[str, str]:
        """Variables that the server needs, besides the caller's own."""
        inherited = os.environ.get("PYTHONPATH")
        # A `sitecustomize` of the caller's comes before the lab's.
        paths = [*(str(LAB / folder) for folder in self.kernels), *([inherited] if inherited else []), str(START)]
        return {
            **_CPU_ENV,
            **self.env,
            **self.worker_env.get(worker, {}),
            "PYTHONPATH": os.pathsep.join(paths),
        }


_CPU_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first draft step compiles for 20 s
    "OMP_NUM_THREADS": "1",  # else up to 30 times slower beside another busy process
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "USE_LIBUV": "0",
}
_NO_CRASH_DUMPS = {  # else a dying server first waits a minute for dumps of a GPU that is not there
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}
_FLAGS: dict[str, str | int | float | bool] = {
    "device": "cpu",
    "dtype": "float32",
    "mem-fraction-static": 0.3,
    "max-total-tokens": 8192,
    "max-running-requests": 8,
    "disable-cuda-graph": True,
}

ENGINES: dict[str, Engine] = {
    "0.5.23": Engine(
        version="0.5.23",
        module="sglang.launch_server",
        kernels=("kernels_0_5_23", "kernels_shared"),
        # As a pair: with --attention-backend alone SGLang takes torch_native on a CPU without AMX.
        flags={**_FLAGS, "prefill-attention-backend": "intel_amx", "decode-attention-backend": "intel_amx"},
        env=_NO_CRASH_DUMPS,
        workers=("v2",),
        setup="make setup",
    ),
    "0.5.20": Engine(
        version="0.5.20",
        module="sglang.launch_server",
        kernels=("kernels_0_5_23", "kernels_shared"),
        flags={**_FLAGS, "prefill-attention-backend": "intel_amx", "decode-attention-backend": "intel_amx"},
        env=_NO_CRASH_DUMPS,
        workers=("v2",),
        setup="make setup-0.5.20",
    ),
    "0.5.9": Engine(
        version="0.5.9",
        module=MODULE_0_5_9,
        kernels=("kernels_0_5_9", "kernels_shared"),
        flags={**_FLAGS, "attention-backend": "torch_native"},
        env={"TRITON_INTERPRET": "1"},  # SGLang's Triton kernels, interpreted
        workers=("v1", "v2"),
        setup="make setup-0.5.9",
        worker_env={"v2": {"SGLANG_ENABLE_SPEC_V2": "1"}},
    ),
}


def engine(version: str | None = None) -> Engine:
    """The engine of a version (default 0.5.23); UnknownNameError names the nearest ones."""
    name = version or DEFAULT_ENGINE
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    return ENGINES[name]


def python_variable(version: str) -> str:
    """Name of the variable that overrides an engine's interpreter."""
    return f"EAGLETRACE_LAB_SGLANG_{version.replace('.', '_')}_PYTHON"


def _here_is(version: str) -> bool:
    try:
        return importlib.metadata.version("sglang") == version
    except importlib.metadata.PackageNotFoundError:
        return False


def _candidates(version: str) -> list[Path]:
    """Interpreters of the project's environments, seen from the package and from this interpreter."""
    folder = ".venv" if version == DEFAULT_ENGINE else f".venv-sglang-{version}"
    roots = [LAB.parent.parent, Path(sys.prefix).parent]
    return [root / folder / "bin" / "python" for root in roots]


def engine_python(version: str) -> Path:
    """The interpreter whose environment has this SGLang version.

    The variable `EAGLETRACE_LAB_SGLANG_<version>_PYTHON` first, then this interpreter if it has it,
    then the project's environments. EngineMissingError says which command installs it.
    """
    spec = engine(version)
    given = os.environ.get(python_variable(version))
    if given:
        if not Path(given).is_file():
            raise EngineMissingError(f"{python_variable(version)}={given}: there is no such interpreter")
        return Path(given)
    if _here_is(version):
        return Path(sys.executable)
    for candidate in _candidates(version):
        if candidate.is_file():
            return candidate
    raise EngineMissingError(
        f"no environment with sglang=={version} was found; run `{spec.setup}`, or name its interpreter in "
        f"{python_variable(version)}"
    )
