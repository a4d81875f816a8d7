"""Reads an engine's source without importing it: functions, their parameters, the attributes of classes.

A source tree is a folder or an unpacked place inside a wheel (`zipfile.Path`). Reading takes no GPU, no compiled
kernels and no seconds. What runs only at import (names made by `setattr`, star imports) is not seen.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Place(Protocol):
    """A folder or file: `pathlib.Path` or `zipfile.Path`."""

    def joinpath(self, *parts: str) -> Any:
        """A place below."""
        ...

    def is_file(self) -> bool:
        """Whether it is a file that exists."""
        ...

    def read_text(self, encoding: str | None = None) -> str:
        """What the file holds."""
        ...


@dataclass(frozen=True)
class Function:
    """A function as its source defines it.

    `parameters` are names in order, `*` before those that are keywords only, without the instance. Of a name imported
    from elsewhere (a compiled kernel) they are the keywords that the module's calls give; None if it gives none.
    `annotations` are the classes that the source names; `self` too.
    """

    parameters: tuple[str, ...] | None
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    module: str = ""


def _tree(source: str) -> ast.Module:
    """Parse a module while no garbage is collected: Python 3.11 counts its recursion wrongly if that comes into it
    (python/cpython#106905)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if enabled:
            gc.enable()


class Sources:
    """The modules of one package. `root` is the package's folder, `package` its name."""

    def __init__(self, root: Place, package: str = "sglang") -> None:
        self._root, self._package = root, package
        self._trees: dict[str, ast.Module | None] = {}

    def read(self) -> list[str]:
        """The modules that were read so far and were there."""
        return [module for module, tree in self._trees.items() if tree is not None]

    def function(self, path: str) -> Function | None:
        """What `module:function` or `module:Class.method` is; None if the module does not define or import it."""
        module, _, dotted = path.partition(":")
        body: Sequence[ast.stmt] | None = self._body(module)
        *classes, name = dotted.split(".")
        for part in classes:
            found = _named(body or (), part, ast.ClassDef)
            body = found.body if found else None
        if body is None:
            return None
        node = _named(body, name, ast.FunctionDef) or _named(body, name, ast.AsyncFunctionDef)
        if node is not None:
            return _function(node, module, classes[-1] if classes else None)
        origin = _imports(_statements(body)).get(name) if not classes else None
        if origin is None:
            return None
        return self.function(":".join(origin)) or Function(_keywords_given(body, name), module=module)

    def attributes(self, module: str, name: str, depth: int = 6) -> set[str] | None:
        """Fields, methods and `self.…` of a class that `module` defines or imports, its bases included.

        None if the class, or one of its bases, is not found in this package: then nothing can be said.
        """
        body = self._body(module)
        if body is None or not depth:
            return None
        found = _named(body, name, ast.ClassDef)
        if found is None:
            origin = _imports(ast.walk(ast.Module(list(body), []))).get(name)
            return self.attributes(*origin, depth - 1) if origin else None
        names = _own_attributes(found)
        for base in found.bases:
            text = _class_name(base)
            if text in PLAIN_BASES:
                continue
            inherited = self.attributes(module, text, depth - 1) if text else None
            if inherited is None:
                return None
            names |= inherited
        return names

    def _body(self, module: str) -> list[ast.stmt] | None:
        if module not in self._trees:
            self._trees[module] = self._parse(module)
        tree = self._trees[module]
        return tree.body if tree else None

    def _parse(self, module: str) -> ast.Module | None:
        package, *parts = module.split(".")
        if package != self._package:
            return None
        file = self._root.joinpath(*parts[:-1], f"{parts[-1]}.py") if parts else self._root.joinpath("__init__.py")
        try:
            if not file.is_file():
                file = self._root.joinpath(*parts, "__init__.py")
            return _tree(file.read_text(encoding="utf-8")) if file.is_file() else None
        except (OSError, SyntaxError, ValueError):
            return None


PLAIN_BASES = frozenset({"object", "ABC", "Protocol", "Generic"})


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body, those under its `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(statement, name, ()))


def _named(body: Sequence[ast.stmt], name: str, kind: type[Any]) -> Any:
    return next((s for s in _statements(body) if isinstance(s, kind) and getattr(s, "name", None) == name), None)


def _imports(nodes: Iterator[Any]) -> dict[str, tuple[str, str]]:
    """Imported names: name here to (module, name there)."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _keywords_given(body: Sequence[ast.stmt], name: str) -> tuple[str, ...] | None:
    """`*` and the keywords that every call of a name in a module gives; None if there is no call with keywords."""
    calls = [
        [k.arg for k in node.keywords if k.arg]
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]
    common = [k for k in calls[0] if all(k in call for call in calls)] if calls else []
    return ("*", *common) if common else None


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str, owner: str | None) -> Function:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    annotations = {a.arg: _class_name(a.annotation) for a in [*positional, *arguments.kwonlyargs] if a.annotation}
    if owner and not static and positional:
        annotations["self"] = annotations.get(positional[0].arg) or owner
        positional = positional[1:]
    names = [a.arg for a in positional]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        names.append("*")
    names += [a.arg for a in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return Function(tuple(names), {k: v for k, v in annotations.items() if v}, module)


def _class_name(node: ast.expr | None) -> str:
    """The class that an annotation or a base names: `C`, `"C"`, `C | None`, `Optional[C]`, `C[T]`; "" for others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.Subscript):
        inside = isinstance(node.value, ast.Name) and node.value.id == "Optional"
        return _class_name(node.slice if inside else node.value)
    return node.id if isinstance(node, ast.Name) else ""


def _own_attributes(node: ast.ClassDef) -> set[str]:
    names: set[str] = set()
    for statement in _statements(node.body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(statement.name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            names |= {t.id for t in statement.targets if isinstance(t, ast.Name)}
    return names | {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name) and inner.value.id == "self"
    }  # fmt: skip
