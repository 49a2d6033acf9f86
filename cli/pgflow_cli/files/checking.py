"""``pgflow check``: a lint of workflow code.

Findings are lines, ``file:line:column CODE message``, into a pipe too: editors and other tools read
these. In GitHub Actions they are annotations at the lines as well.
"""

from __future__ import annotations

import difflib
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from pgflow.console.output import as_object, many, note, print_json_rows, say, shown
from pgflow_cli.look import github
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, USAGE, Ended, Mistake, mistaken

if TYPE_CHECKING:
    from pgflow.lint import Report, Rule

Targets = Annotated[
    list[str] | None, arg("Files, folders, or names of modules.", metavar="MODULE...")
]


def check(
    targets: Targets = None,
    *,
    select: Annotated[str, opt(metavar="CODES")] = "",
    ignore: Annotated[str, opt(metavar="CODES")] = "",
    imports: Annotated[bool, opt("--import")] = False,
    annotate: Annotated[bool, opt("--github")] = False,
    rules: bool = False,
    explain: Annotated[str, opt(metavar="CODE")] = "",
    as_json: Annotated[bool, opt("--json")] = False,
) -> None:
    """Finds code in workflows that a replay would not repeat.

    It reads the code and runs none of it. A finding that is well considered is allowed by a
    comment on its line: # pgflow: ignore[PF101]. Exit code 1 if something is found, 2 if a
    file cannot be read.

    Args:
        select: Only these rules: PF101,PF2.
        ignore: All rules but these.
        imports: Also import the modules, and ask for the codec of every annotation.
        annotate: Also annotate for GitHub; the default in GitHub Actions.
        rules: List the rules instead.
        explain: Explain one rule instead.
        as_json: Answer in JSON.
    """
    if rules or explain:
        _print_rules([explain] if explain else [], as_json=as_json)
        return
    if not targets:
        raise Mistake(
            "nothing to check: name files, folders or modules, as in `pgflow check flows.py`"
        )
    report = _checked(targets, _codes(select), _codes(ignore), imports=imports)
    _print(
        report, as_json=as_json, annotated=annotate or os.environ.get("GITHUB_ACTIONS") == "true"
    )
    if report.unreadable:
        raise Ended(USAGE)
    if report.findings:
        raise Ended(FAILED)


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]


def _checked(
    targets: Sequence[str], select: Sequence[str], ignore: Sequence[str], *, imports: bool
) -> Report:
    from pgflow.lint import UnknownTarget
    from pgflow.lint import check as find

    with mistaken(UnknownTarget), _known_codes():
        return find(*targets, select=select, ignore=ignore, load=_load if imports else None)


@contextmanager
def _known_codes() -> Iterator[None]:
    """Makes a mistake of a code that no rule has."""
    from pgflow.lint import BY_CODE, UnknownCode

    try:
        yield
    except UnknownCode as error:
        close = difflib.get_close_matches(str(error).upper(), BY_CODE, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise Mistake(
            f"no rule is called {error}{hint}: `pgflow check --rules` lists them"
        ) from error


def _load(path: Path) -> ModuleType:
    """Imports a file; another one of the same name may have been imported before."""
    from pgflow_cli.look.targets import load_module

    module = load_module(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links, and so find another name
    if module.__file__ is None or not os.path.samefile(module.__file__, path):  # noqa: PTH121
        raise Mistake(
            f"{path} is module {module.__name__}, and so is {module.__file__}: "
            "check them one by one"
        )
    return module


# ---------------------------------------------------------------- what is printed


def _print(report: Report, *, as_json: bool, annotated: bool) -> None:
    from pgflow.lint import BY_CODE

    names = ("file", "line", "column", "code", "message")
    rows = [{**as_object(one, names), "title": BY_CODE[one.code].title} for one in report.findings]
    if as_json:
        print_json_rows(rows)
    else:
        for one in report.findings:
            place = shown(f"{one.file}:{one.line}:{one.column}")
            say((place, "bold"), " ", (one.code, "red"), " ", shown(one.message))
    for line in report.unreadable:
        note(f"pgflow: {shown(line)}")
    if annotated:
        github.annotate_lines([{**row, "title": f"{row['code']} {row['title']}"} for row in rows])
    note(_summary(report))


def _summary(report: Report) -> str:
    looked = f"{many(report.workflows, 'workflow')} in {many(report.files, 'file')}"
    unread = f", {many(len(report.unreadable), 'file')} not read" if report.unreadable else ""
    found = many(len(report.findings), "finding") if report.findings else "nothing found"
    return f"{looked}: {found}{unread}"


def _print_rules(codes: Sequence[str], *, as_json: bool) -> None:
    """Print all rules, a line each; or those of some codes, each with its examples."""
    from pgflow.lint.checking import choose_rules

    with _known_codes():
        chosen = choose_rules(codes)
    if as_json:
        names = ("code", "title", "why", "instead", "bad", "good")
        print_json_rows([as_object(rule, names) for rule in chosen])
        return
    for rule in chosen:
        _print_rule(rule, with_examples=bool(codes))


def _print_rule(rule: Rule, *, with_examples: bool) -> None:
    say((rule.code, "bold"), f" {rule.title}: {rule.why}; {rule.instead}")
    bad, good = ("This has a finding:", "red"), ("This has none:", "green")
    for title, text in ((bad, rule.bad), (good, rule.good)) if with_examples else ():
        say("\n", title, "\n\n", textwrap.indent(text.rstrip(), "    "))
