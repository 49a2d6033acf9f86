"""Programs to which a script passes a value as code: a shell, ``awk``, ``ssh``, ``python -c``.

Only a person can decide whether that is intended, so it gives a warning that names the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pgflow.declare.text.bash import text_of
from pgflow.declare.text.bashvalues import Values


@dataclass(frozen=True, slots=True)
class Finding:
    """A place of a script that is refused, or warned of: ``start`` is its byte."""

    start: int
    message: str
    is_error: bool = True


SHELLS: Final = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"})
_ALL_IS_CODE: Final = frozenset(
    {
        ".", "alias", "at", "batch", "bind", "compgen", "complete", "crontab", "dc", "ed", "eval",
        "ex", "fc", "gdb", "m4", "make", "parallel", "rsh", "source", "sqlite3", "ssh",
        "trap", "watch", "xargs",
    }
)  # fmt: skip
_PROGRAM_FIRST: Final = frozenset({"awk", "gawk", "mawk", "nawk", "sed", "gsed"})
"""Programs whose first argument is a program of theirs."""
_CODE_OPTIONS: Final = {
    **dict.fromkeys(SHELLS, r"-[a-zA-Z]*c"),
    **dict.fromkeys(("python", "python2", "python3", "pypy", "pypy3"), r"-[a-zA-Z]*c"),
    **dict.fromkeys(("perl", "ruby"), r"-[a-zA-Z]*[eE]"),
    **dict.fromkeys(("node", "nodejs", "bun", "tsx"), r"-[a-z]*[ep]|--eval|--print"),
    **dict.fromkeys(("lua", "Rscript", "osascript", "julia", "elixir", "groovy"), r"-e"),
    **dict.fromkeys(("su", "runuser", "flock", "script", "expect", "psql"), r"-[a-z]*c|--command"),
    **dict.fromkeys(("mysql", "mariadb"), r"-[a-z]*e|--execute"),
    **dict.fromkeys(("pwsh", "powershell"), r"(?i:-c|-command)"),
    "php": r"-r",
    "deno": r"eval",
    "git": r"-c|--config-env",
    "env": r"-[a-zA-Z]*S|--split-string",
    "find": r"-exec|-execdir|-ok|-okdir",
    "tar": r"--to-command|--checkpoint-action|-I|--use-compress-program",
    "rsync": r"-e|--rsh",
    "split": r"--filter",
    "vim": r"-c|--cmd",
}
"""Options whose argument is code, by program."""
_ALWAYS_READ_STDIN: Final = frozenset(
    {
        "at", "batch", "crontab", "dc", "ed", "ex", "m4", "make", "mariadb", "mysql", "psql",
        "sqlite3", "ssh",
    }
)  # fmt: skip
_SOURCES: Final = frozenset({".", "source"})
_RUNS_DATA: Final = {
    "awk": re.compile(r"\bsystem\s*\(|\|\s*getline|\bprintf?\b[^;}\n]*\|"),
    "sed": re.compile(r"^[\"']?[0-9$]*e\b|s(\W).*\1.*\1\w*e"),
}
"""Programs of awk and sed that run what they read."""
_READ_STDIN: Final = frozenset(_CODE_OPTIONS) - {"git", "env", "find", "tar", "rsync", "flock"}
RUNS_CODE: Final = SHELLS | _ALL_IS_CODE | frozenset(_CODE_OPTIONS) | _PROGRAM_FIRST
"""Programs that run a text that they are given."""
SAY: Final = frozenset({"echo", "printf", "test", "[", ":", "true", "false"})


class Code:
    """The rules on code.

    Args:
        values: Values of the script.
        what: Says which value a part of it has.
    """

    def __init__(self, values: Values, what: Callable[[Any], str]) -> None:
        self._values, self._what = values, what
        self._says = values.carried_by

    def findings(self, command: Any, name: str, words: list[Any]) -> Iterator[Finding]:
        if not name or name in SAY:
            return
        for n, program in enumerate([name, *(text_of(word).rpartition("/")[2] for word in words)]):
            yield from self._of_program(command, program, words[n:], is_first=n == 0)

    def _of_program(
        self, command: Any, program: str, words: list[Any], *, is_first: bool
    ) -> Iterator[Finding]:
        """Code of a program, which another may start."""
        code: list[Any] = []
        if program in _ALL_IS_CODE and is_first:
            code = words
        elif program in _PROGRAM_FIRST:
            kind = "awk" if "awk" in program else "sed"
            code = _first_argument(words, _OF_AWK if kind == "awk" else _OF_SED)
            if any(_RUNS_DATA[kind].search(text_of(word)) for word in code):
                code = words
        elif program in _CODE_OPTIONS:
            option = re.compile(_CODE_OPTIONS[program])
            for n, word in enumerate(words):
                text = text_of(word)
                if option.fullmatch(text):
                    behind = words[n + 1 :]
                    while program in SHELLS and behind and text_of(behind[0])[:1] in "-+":
                        behind = behind[1:]
                    code += behind if program == "find" else behind[:1]
                elif option.match(text) and text.startswith("-") and ("=" in text or '"' in text):
                    code.append(word)
        found = next((word for word in code if self._says(word)), None)
        if found is not None:
            message = f"{program} takes {self._what(found)} for code of its own"
        elif is_first and self._runs_file(command, program, words):
            message = f"{program} runs a file that a value was written to"
        elif self._reads_code(command, program, words, is_first=is_first):
            message = f"{program} takes its standard input for code, and a value is in it"
        else:
            return
        start = (found or command).start_byte
        yield Finding(
            start, f"{message}: hand it over as an argument or a variable", is_error=False
        )

    def _runs_file(self, command: Any, program: str, words: list[Any]) -> bool:
        """Return True if a program is a file with a value in it, or reads its code from one."""
        name = command.child_by_field_name("name")
        if b"/" in name.text and self._values.is_written(name):
            return True
        return program in SHELLS | _SOURCES | _READ_STDIN and any(
            map(self._values.is_written, words)
        )

    def _reads_code(self, command: Any, program: str, words: list[Any], *, is_first: bool) -> bool:
        """Return True if a program gets its code by its standard input, and a value is in it."""
        texts = [text_of(word) for word in words]
        if program == "xargs":
            reads = is_first and not SHELLS.isdisjoint(text.rpartition("/")[2] for text in texts)
        elif program in _ALWAYS_READ_STDIN:
            reads = True
        elif program in _READ_STDIN:
            given = [text for text in texts if text not in ("-", "-s")]
            reads = (program in SHELLS and len(given) < len(texts)) or not any(
                text[:1] != "-" or re.fullmatch(_CODE_OPTIONS[program], text) for text in given
            )
        elif program in _SOURCES:
            reads = any("/dev/" in text for text in texts)
        elif program in _PROGRAM_FIRST:
            reads = any(one.search(text) for one in _RUNS_DATA.values() for text in texts)
        else:
            reads = False
        if not reads:
            return False
        return any(
            self._says(one) if not isinstance(one, str) else one in self._values.names
            for one in self._values.input_of(command)
        )


_OF_AWK: Final = ("-v", "-F", "-f", "-e", "--source", "-i", "-l")
_OF_SED: Final = ("-e", "--expression", "-f", "-l")


def _first_argument(words: list[Any], options: tuple[str, ...]) -> list[Any]:
    """Return the program of awk or sed: its first argument, and those of ``-e``.

    Args:
        words: All of its arguments.
        options: Options that have an argument.
    """
    found: list[Any] = []
    before = ""
    for word in words:
        text = text_of(word)
        if before in ("-e", "--expression", "--source"):
            found.append(word)
        elif before not in options and not text.startswith("-"):
            return found or [word]
        before = text if before not in options else ""
    return found
