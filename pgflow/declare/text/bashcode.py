"""Programs to which a script passes a value as code: a shell, ``awk``, ``ssh``, ``python -c``.

Only a person can decide whether that is intended, so it gives a warning that names the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pgflow.declare.text.bash import text_of
from pgflow.declare.text.bashvalues import Values, command_name


@dataclass(frozen=True, slots=True)
class Finding:
    """A place of a script that is refused, or warned of: ``start`` is its byte."""

    start: int
    message: str
    is_error: bool = True


SHELLS: Final = frozenset(
    {
        "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash", "sh", "tcsh", "yash", "zsh",
    }
)  # fmt: skip
WRAPPERS: Final = frozenset(
    {
        "builtin", "chroot", "chrt", "command", "doas", "env", "exec", "flock", "gosu", "ionice",
        "ltrace", "nice", "nohup", "prlimit", "setpriv", "setsid", "stdbuf", "strace", "sudo",
        "taskset", "time", "timeout", "unshare",
    }
)  # fmt: skip
"""Commands that run a program, which is their first argument or the second."""
_ALL_IS_CODE: Final = frozenset(
    {
        ".", "alias", "at", "batch", "bind", "compgen", "complete", "crontab", "dc", "ed", "eval",
        "ex", "fc", "gdb", "history", "m4", "make", "parallel", "rsh", "source", "sqlite3", "ssh",
        "trap", "watch", "xargs",
    }
)  # fmt: skip
_PROGRAM_FIRST: Final = frozenset({"awk", "gawk", "mawk", "nawk", "sed", "gsed"})
"""Programs whose first argument is a program of theirs."""
_RUNNERS: Final = frozenset({"npm", "npx", "pnpm", "yarn"})
"""Programs that run others, and rarely code."""
_CODE_OPTIONS: Final = {
    **dict.fromkeys(SHELLS, r"-[a-zA-Z]*c"),
    **dict.fromkeys(("python", "python2", "python3", "pypy", "pypy3"), r"-[a-zA-Z]*c"),
    **dict.fromkeys(("perl", "ruby"), r"-[a-zA-Z]*[eE]"),
    **dict.fromkeys(("node", "nodejs", "bun", "tsx"), r"-[a-z]*[ep]|--eval|--print"),
    **dict.fromkeys(("lua", "Rscript", "osascript", "julia", "elixir", "groovy"), r"-e"),
    **dict.fromkeys(("su", "runuser", "flock", "script", "expect", "psql"), r"-[a-z]*c|--command"),
    **dict.fromkeys(("mysql", "mariadb"), r"-[a-z]*e|--execute"),
    **dict.fromkeys(("scp", "sftp"), r"-[oS]"),
    **dict.fromkeys(_RUNNERS, r"-c|--call|--shell-mode"),
    **dict.fromkeys(("guile", "irb", "racket", "tclsh", "wish"), r"-[ce]|--eval"),
    **dict.fromkeys(("pwsh", "powershell"), r"(?i:-c|-command)"),
    "php": r"-r",
    "deno": r"eval",
    "git": r"-c|--config-env",
    "env": r"-[a-zA-Z]*S|--split-string",
    "find": r"-exec|-execdir|-ok|-okdir",
    "tar": r"--to-command|--checkpoint-action|-I|--use-compress-program",
    "rsync": r"-e|--rsh",
    "split": r"--filter",
    **dict.fromkeys(("nvim", "vi", "view", "vim"), r"-c|--cmd"),
    "emacs": r"--eval|--execute",
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
_RUNS_PROGRAMS: Final = re.compile(
    r"\b(?:system|popen|exec\w*|eval|spawn\w*|subprocess|child_process|qx)\b|`"
)
"""Code of another language that runs programs."""
_READ_AT_START: Final = {
    "make": frozenset({"GNUmakefile", "Makefile", "makefile"}),
    "git": frozenset({".gitconfig"}),
} | dict.fromkeys(
    SHELLS, frozenset({".bash_login", ".bash_profile", ".bashrc", ".profile", ".zshenv", ".zshrc"})
)
"""Files that programs read their code from without being asked to."""
_READ_STDIN: Final = frozenset(_CODE_OPTIONS) - _RUNNERS - {
    "emacs", "env", "find", "flock", "git", "nvim", "rsync", "scp", "sftp", "tar", "vi", "view",
    "vim",
}  # fmt: skip
RUNS_CODE: Final = (SHELLS | _ALL_IS_CODE | frozenset(_CODE_OPTIONS) | _PROGRAM_FIRST) - _RUNNERS
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
        code = words if program in _ALL_IS_CODE and is_first else _code_in(program, words)
        found = next((word for word in code if self._says(word)), None)
        if found is not None:
            message = f"{program} takes {self._what(found)} for code of its own"
        elif program not in SHELLS and self._runs_data(command, code, words):
            message = f"{program} has code that runs programs, and is given a value"
        elif self._runs_file(command, program, words, is_first=is_first):
            message = f"{program} runs a file that a value was written to"
        elif self._reads_code(command, program, words, is_first=is_first):
            message = f"{program} takes its standard input for code, and a value is in it"
        else:
            return
        start = (found or command).start_byte
        yield Finding(
            start, f"{message}: hand it over as an argument or a variable", is_error=False
        )

    def _runs_file(self, command: Any, program: str, words: list[Any], *, is_first: bool) -> bool:
        """Return True if a program is a file with a value in it, or reads its code from one."""
        name = command.child_by_field_name("name")
        is_path = b"/" in name.text or b"$" in name.text or self._values.sets("PATH")
        if is_first and is_path and self._values.is_written(name):
            return True
        if self._values.has_written(_READ_AT_START.get(program, frozenset())):
            return True
        read = _behind(words, "-f") if program in {*_PROGRAM_FIRST, "make"} else words
        if not is_first and command_name(command) not in WRAPPERS | {"find", "xargs"}:
            return False
        runs = SHELLS | (_SOURCES if is_first else frozenset())
        file = next((word for word in words if text_of(word)[:1] not in "-+"), None)
        if program in runs and file is not None and self._values.may_be_written(file):
            return True
        return program in runs | _READ_STDIN | _PROGRAM_FIRST | {"make"} and any(
            map(self._values.is_written, read)
        )

    def _runs_data(self, command: Any, code: list[Any], words: list[Any]) -> bool:
        """Return True for code of another language that runs programs, and is given a value as an
        argument, a variable or its input.
        """
        text = " ".join(map(text_of, code))
        if not _RUNS_PROGRAMS.search(text):
            return False
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        return not names.isdisjoint(self._values.names) or any(
            self._says(one) if not isinstance(one, str) else one in self._values.names
            for one in [*words, *self._values.input_of(command)]
        )

    def _reads_code(self, command: Any, program: str, words: list[Any], *, is_first: bool) -> bool:
        """Return True if a program gets its code by its standard input, and a value is in it."""
        texts = [text_of(word) for word in words]
        if program == "xargs":
            programs = {text.rpartition("/")[2] for text in texts}
            is_program = not programs.isdisjoint(SHELLS | WRAPPERS) or _is_place(texts)
            reads = is_first and is_program
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
            reads = reads or any(text_of(word) in _STDIN for word in _behind(words, "-f"))
        else:
            reads = False
        if not reads:
            return False
        return any(
            self._says(one) if not isinstance(one, str) else one in self._values.names
            for one in self._values.input_of(command)
        )


_STDIN: Final = ("-", "/dev/stdin", "/dev/fd/0")


def _behind(words: list[Any], option: str) -> list[Any]:
    """Return the words behind an option, and those that begin with it."""
    found = [after for word, after in pairwise(words) if text_of(word) == option]
    return found + [word for word in words if re.match(rf"{option}.|--file=", text_of(word))]


def _is_place(texts: list[str]) -> bool:
    """Return True if xargs takes the name of a program from what it reads: ``-I{} {}``."""
    return re.search(r"(?:^| )-I ?(\S+) \1(?: |$)", " ".join(texts)) is not None


def _code_in(program: str, words: list[Any]) -> list[Any]:
    """Return the arguments of a program that are code."""
    code: list[Any] = []
    if program in _PROGRAM_FIRST:
        kind = "awk" if "awk" in program else "sed"
        code = _first_argument(words, _OF_AWK if kind == "awk" else _OF_SED)
        if any(_RUNS_DATA[kind].search(text_of(word)) for word in code):
            return words
        return [*code, *_behind(words, "-f")]
    option = re.compile(_CODE_OPTIONS.get(program, "(?!)"))
    for n, word in enumerate(words):
        text = text_of(word)
        if option.fullmatch(text):
            behind = words[n + 1 :]
            while program in SHELLS and behind and text_of(behind[0])[:1] in "-+":
                behind = behind[1:]
            code += behind if program == "find" else behind[:1]
        elif option.match(text) and text.startswith("-") and ("=" in text or '"' in text):
            code.append(word)
    return code


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
