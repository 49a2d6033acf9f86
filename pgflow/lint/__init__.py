"""A lint of workflow code: finds code that a replay would not repeat, before it happens.

Workflow code is replayed, so it must do the same again: no clock, no chance, nothing from outside
except through steps. The engine refuses what it can see (sockets, threads); the rest is found here,
in the text. Nothing is imported or run: names are followed by Python's rules of scopes (`names`),
functions under ``@workflow`` and what they use of the same module are workflow code (`module`), and
each rule (`rules`) finds where that code breaks it. Where the text does not show it, a rule keeps
quiet.

``pgflow check`` is the command line of it.
"""

from pgflow.lint.checking import Report, UnknownCode, check, check_source
from pgflow.lint.findings import Finding, Unreadable
from pgflow.lint.rules import BY_CODE, RULES, Rule
from pgflow.lint.sources import Source, UnknownTarget

__all__ = [
    "BY_CODE", "RULES", "Finding", "Report", "Rule", "Source", "UnknownCode", "UnknownTarget",
    "Unreadable", "check", "check_source",
]  # fmt: skip
