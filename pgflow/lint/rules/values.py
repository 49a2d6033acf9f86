"""Annotations of values that have no form as JSON."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pgflow.lint.definitions import WITHOUT_CONNECTION, Declared, Kind
from pgflow.lint.findings import Finding
from pgflow.lint.module import Module
from pgflow.lint.names import FUNCTIONS, HERE, Function, Names
from pgflow.lint.rules.base import Rule


def _in(module: str, names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in names.split())


_ABSTRACT = (
    "Callable Generator Iterator AsyncGenerator AsyncIterator AsyncIterable Awaitable Coroutine"
)

WITHOUT_FORM = (
    _in("collections.abc", _ABSTRACT)
    | _in("typing", f"{_ABSTRACT} IO TextIO BinaryIO")
    | _in("builtins", "memoryview BaseException Exception slice")
    | _in(
        "io",
        "TextIOWrapper BytesIO StringIO BufferedReader BufferedWriter "
        "RawIOBase TextIOBase IOBase FileIO",
    )
    | _in(
        "types",
        "ModuleType FunctionType MethodType TracebackType GeneratorType "
        "CoroutineType FrameType CodeType",
    )
    | _in("threading", "Thread Lock RLock Event Condition Semaphore")
    | _in(
        "asyncio",
        "Task Future Event Lock Queue Semaphore Condition StreamReader StreamWriter "
        "AbstractEventLoop TaskGroup",
    )
    | _in("concurrent.futures", "Future Executor ThreadPoolExecutor ProcessPoolExecutor")
    | _in("subprocess", "Popen CompletedProcess")
    | _in("logging", "Logger LoggerAdapter")
    | frozenset(
        {
            "socket.socket",
            "contextvars.Context",
            "contextvars.ContextVar",
            "re.Match",
            "weakref.ref",
            "queue.Queue",
        }
    )
    | _in("psycopg", "Connection AsyncConnection Cursor AsyncCursor")
    | _in("psycopg_pool", "ConnectionPool AsyncConnectionPool")
    | frozenset({"sqlite3.Connection", "sqlite3.Cursor", "asyncpg.Connection", "asyncpg.Pool"})
    | _in("sqlalchemy", "Engine Connection")
    | _in("sqlalchemy.orm", "Session sessionmaker")
    | _in("sqlalchemy.ext.asyncio", "AsyncSession AsyncEngine AsyncConnection")
    | _in("requests", "Session Response")
    | _in("httpx", "Client AsyncClient Response Request")
    | _in("aiohttp", "ClientSession ClientResponse")
    | _in("numpy", "ndarray")
    | _in("pandas", "DataFrame Series")
    | _in("pgflow", "App AsyncApp Client AsyncClient Run AsyncRun Signal Workflow Step")
)
"""Classes without a codec, by their dotted paths."""

FORMLESS_BASES = frozenset(
    {"builtins.object", "builtins.Exception", "builtins.BaseException", "abc.ABC", "typing.Generic"}
)
"""Bases that give a class no form. Another one might: a model, an enumeration, a typed dict."""


class NotStorableAnnotation(Rule):
    """PF301."""

    code = "PF301"
    title = "value without a form as JSON"
    why = "what passes through the journal is JSON"
    instead = "pass a model, a dataclass or a key, and make the object in the step"
    bad = """import typing
import pgflow

@pgflow.step
def load(file: typing.TextIO) -> int:
    return len(file.read())
"""
    good = """import pgflow

@pgflow.step
def load(path: str) -> int:
    with open(path) as file:
        return len(file.read())
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Annotations of parameters and results that no codec knows."""
        for found in module.definitions.declared.values():
            if isinstance(found.body, FUNCTIONS):
                for _, annotation, what in stored_parameters(found, found.body, module.names):
                    for name in without_form(annotation, module.names):
                        message = (
                            f"{what} of {found.kind} {found.label} is annotated {name}: "
                            f"{self.why}; {self.instead}"
                        )
                        yield self.at(module, annotation, message)


def stored_parameters(
    found: Declared, body: Function, names: Names
) -> Iterator[tuple[str, ast.expr, str]]:
    """Annotations of what is stored, each with its name and what a message calls it.

    The connection of a transaction is not stored; nor is what a method is called on.
    """
    parameters = [*body.args.posonlyargs, *body.args.args]
    scope = names.scope_of.get(body)
    skipped = int(scope is not None and scope.is_class)
    skipped += (
        found.kind is Kind.TRANSACTION
        and found.decorator != WITHOUT_CONNECTION
        and "provider" not in found.options
    )
    for parameter in (*parameters[skipped:], *body.args.kwonlyargs):
        if parameter.annotation is not None:
            yield parameter.arg, parameter.annotation, f"parameter {parameter.arg}"
    if body.returns is not None:
        yield "return", body.returns, "the result"


def without_form(annotation: ast.expr, names: Names) -> Iterator[str]:
    """Names in an annotation of what has no form as JSON."""
    match annotation:
        case ast.Constant(value=str(text)):
            yield from _in_text(text, annotation, names)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from without_form(left, names)
            yield from without_form(right, names)
        case ast.Subscript(value=value, slice=inside):
            yield from _in_generic(value, inside, names)
        case ast.Name() | ast.Attribute():
            if is_without_form(names.resolve(annotation), names):
                yield ast.unparse(annotation)


def _in_generic(value: ast.expr, inside: ast.expr, names: Names) -> Iterator[str]:
    path = names.resolve(value) or ""
    if is_without_form(path, names):
        yield ast.unparse(value)
    elif path.endswith(".Literal") or path.startswith(HERE):
        return  # its arguments are not annotations, or are what the class makes of them
    elif path.endswith(".Annotated") and isinstance(inside, ast.Tuple):
        yield from without_form(inside.elts[0], names)
    else:
        for element in inside.elts if isinstance(inside, ast.Tuple) else [inside]:
            yield from without_form(element, names)


def _in_text(text: str, annotation: ast.expr, names: Names) -> Iterator[str]:
    """Yield an annotation that is written as a text."""
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return
    scope = names.scope_of.get(annotation, names.module)
    for node in ast.walk(parsed):
        names.scope_of[node] = scope
    yield from without_form(parsed, names)


def is_without_form(path: str | None, names: Names) -> bool:
    """Return True if values of a class have no form as JSON, judging by its name or its
    definition.
    """
    if path is None or not path.startswith(HERE):
        return path in WITHOUT_FORM
    found = names.defined.get(path.removeprefix(HERE))
    return isinstance(found, ast.ClassDef) and _is_plain_class(found, names)


def _is_plain_class(node: ast.ClassDef, names: Names) -> bool:
    """Return True for a class that cannot be a model: without a decorator, a keyword, a base that
    could make it one, or a method of pydantic's.
    """
    methods = {
        child.name
        for child in node.body
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    if (
        node.decorator_list
        or node.keywords
        or any(method.startswith("__get_pydantic") for method in methods)
    ):
        return False
    return all(_is_formless_base(base, names) for base in node.bases)


def _is_formless_base(base: ast.expr, names: Names) -> bool:
    path = names.resolve(base.value if isinstance(base, ast.Subscript) else base)
    if path in FORMLESS_BASES:
        return True
    found = (
        names.defined.get(path.removeprefix(HERE))
        if path is not None and path.startswith(HERE)
        else None
    )
    return isinstance(found, ast.ClassDef) and _is_plain_class(found, names)
