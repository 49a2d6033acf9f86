"""Comments to the check itself: an ignore that names no rule, or has nothing to allow."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pgflow.lint.findings import Finding
from pgflow.lint.ignores import Ignore, Ignores
from pgflow.lint.module import Module
from pgflow.lint.rules.base import Rule


class CommentRule(Rule):
    """A rule about comments: it can be checked once the other rules have been."""

    def check(self, module: Module) -> Iterator[Finding]:
        """Nothing: see `check_comments`."""
        del module
        return iter(())

    def check_comments(
        self, file: str, ignores: Ignores, known: Collection[str], applied: Collection[str]
    ) -> Iterator[Finding]:
        """Return every comment that breaks this rule.

        Args:
            file: Path of the module.
            ignores: Its comments, which know what they have allowed.
            known: Codes of all rules.
            applied: Codes of the rules that have been checked.
        """
        raise NotImplementedError

    def on(self, file: str, comment: Ignore, message: str) -> Finding:
        """Return a finding at a comment."""
        return Finding(file, comment.line, comment.column, self.code, message, comment.line)


class UnknownIgnore(CommentRule):
    """PF901."""

    code = "PF901"
    title = "ignore without a known code"
    why = "it allows nothing"
    instead = "name the codes, as in # pgflow: ignore[PF101]"
    bad = """import pgflow

@pgflow.workflow
async def greet(name: str) -> None:
    pgflow.logger.info("greeting %s", name)  # pgflow: ignore[PF1O1]
"""
    good = bad.replace(
        'pgflow.logger.info("greeting %s", name)  # pgflow: ignore[PF1O1]',
        "print(name)  # pgflow: ignore[PF110] the output is piped into a file",
    )

    def check_comments(
        self, file: str, ignores: Ignores, known: Collection[str], applied: Collection[str]
    ) -> Iterator[Finding]:
        """Comments that name no code, or one that no rule has."""
        del applied
        for comment in ignores.comments:
            if not comment.codes:
                yield self.on(
                    file, comment, f"this ignore names no code: {self.why}; {self.instead}"
                )
            for code in comment.codes:
                if code not in known:
                    yield self.on(
                        file,
                        comment,
                        f"no rule is called {code}: {self.why}; `pgflow check --rules` lists them",
                    )


class UnusedIgnore(CommentRule):
    """PF902."""

    code = "PF902"
    title = "ignore that is not needed"
    why = "it would hide what comes later"
    instead = "take it away"
    bad = """import pgflow

@pgflow.workflow
async def greet(name: str) -> None:
    pgflow.logger.info("greeting %s", name)  # pgflow: ignore[PF110]
"""
    good = bad.replace("name)  # pgflow: ignore[PF110]", "name)")

    def check_comments(
        self, file: str, ignores: Ignores, known: Collection[str], applied: Collection[str]
    ) -> Iterator[Finding]:
        """Codes of rules that have been checked and have found nothing there."""
        del known
        for comment in ignores.comments:
            for code in comment.codes:
                if code in applied and code not in comment.used:
                    yield self.on(
                        file, comment, f"{code} finds nothing here: {self.why}; {self.instead}"
                    )
