"""Check of codecs, which only an imported module allows:
whether there is one for every annotation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pgflow._flow.step import resolve_hints
from pgflow._model.codecs import codec_for
from pgflow.errors import DefinitionError
from pgflow.lint.definitions import Declared
from pgflow.lint.findings import Finding
from pgflow.lint.module import Module
from pgflow.lint.rules.values import NotStorableAnnotation, stored_parameters

RULE = NotStorableAnnotation()


def ask_codecs(module: Module, imported: ModuleType) -> Iterator[Finding]:
    """Yield every annotation of what a module declares that no codec can be made for.

    Args:
        module: The text.
        imported: The same module, imported.
    """
    for declared in module.definitions.declared.values():
        function = getattr(getattr(imported, declared.name, None), "fn", None)
        if function is not None and isinstance(
            declared.body, (ast.FunctionDef, ast.AsyncFunctionDef)
        ):
            yield from _ask(module, declared, declared.body, function)


def _ask(
    module: Module, declared: Declared, body: ast.FunctionDef | ast.AsyncFunctionDef, function: Any
) -> Iterator[Finding]:
    try:
        hints = resolve_hints(function)
    except DefinitionError as error:
        yield RULE.at(module, body, str(error))
        return
    for name, annotation, what in stored_parameters(declared, body, module.names):
        try:
            codec_for(hints.get(name, Any), f"{what} of {declared.kind} {declared.label}")
        except DefinitionError as error:
            yield RULE.at(module, annotation, f"{error}; {RULE.instead}")
