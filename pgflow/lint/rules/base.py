"""The base of rules."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from pgflow.lint.findings import Finding
from pgflow.lint.module import Module


class Rule(ABC):
    """One thing that workflow code should not do.

    Attributes:
        code: Its permanent name.
        title: Subject, in a few words.
        why: Trouble that it leads to.
        instead: Advice.
        bad: A module that breaks it.
        good: The same, done well.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    why: ClassVar[str]
    instead: ClassVar[str]
    bad: ClassVar[str]
    good: ClassVar[str]

    @abstractmethod
    def check(self, module: Module) -> Iterator[Finding]:
        """Return every place of a module that breaks this rule."""

    def found(
        self, module: Module, node: ast.AST, what: str, instead: str | None = None
    ) -> Finding:
        """Return a finding that says what is there, why it is trouble, and what to do instead."""
        return self.at(module, node, f"{what}: {self.why}; {instead or self.instead}")

    def at(self, module: Module, node: ast.AST, message: str) -> Finding:
        """Return a finding of this rule."""
        return module.finding(node, self.code, message)
