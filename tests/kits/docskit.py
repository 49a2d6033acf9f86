"""Runs the code blocks of a Markdown page, in their order, in a folder and a database of the page's
own.

- ``python``: run in one namespace. A block whose first line is ``# name.py`` is written to that
  file instead; ``# test_name.py`` is then run by pytest.
- ``sql``: run as it stands.
- ``console``: each line after ``$`` is run; what follows is compared with what it says, with times,
  durations, numbers of processes and the bars of a timeline masked, and ``...`` standing for
  anything. A command that only looks is asked again until it says so: a worker needs its time.
  ``&`` runs it in the background.
- ``yaml``, ``ini``, ``toml``: must parse, and the command lines of ``pgflow`` in them too. YAML
  whose first line is ``# name.yaml``, and ``markdown`` whose first line is ``<!-- name.md -->``, is
  written to that file.
- ``text``: what somebody else says. Any other language is a mistake.
"""

from __future__ import annotations

import configparser
import contextlib
import importlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import psycopg
import servers
from clikit import ANSI, environment, finish, pgflow
from pgflow_cli.commands import app
from psycopg.conninfo import conninfo_to_dict
from ruamel.yaml import YAML
from typer.main import get_command

from pgflow.embedded._binaries import find_programs

ONLY_READ = (
    "pip install", "pytest", "python -m venv", "cd ", "git ", "pgflow demo", "pgflow pg",
    "pgflow web", "pgflow serve", "pgflow import", "granian", "kubectl", "sudo", "journalctl",
)  # fmt: skip
"""Command lines that are tested elsewhere, or speak with something that is not here."""

SKILL = servers.REPOSITORY / "cli" / "pgflow_cli" / "skill" / "SKILL.md"
FINDS = ("pgflow doctor", "pgflow check")
"""Ends with 1 if it finds something: a server for tests may not sync what it writes, and a page may
show what is wrong.
"""
LOOKS = ("list", "show", "timeline", "queues", "sql", "workers")
OWN_PROCESS = ("run", "tick", "workers")


@dataclass(frozen=True)
class Block:
    """A code block: where it begins, in which language it is, and what it says."""

    line: int
    language: str
    text: str


def pages() -> list[Path]:
    """README, the skill, and every page of docs/."""
    return [
        servers.REPOSITORY / "README.md",
        SKILL,
        *sorted((servers.REPOSITORY / "docs").rglob("*.md")),
    ]


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, also where they are indented in a list."""
    found, opened, indent, lines = [], None, "", []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"( *)```(.*)$", line)
        if fence and opened is None:
            opened, indent, lines = (number, fence[2].strip()), fence[1], []
        elif fence and fence[1] == indent and not fence[2]:
            found.append(Block(opened[0], opened[1], "".join(f"{text}\n" for text in lines)))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(indent))
    assert opened is None, f"{page}:{opened[0]}: this block has no end"
    return found


def understood(line: str) -> None:
    """Raises if a command line of ``pgflow`` is none."""
    words = shlex.split(line)[1:]
    command = get_command(app)
    context = command.make_context("pgflow", list(words), resilient_parsing=True)
    while hasattr(command, "resolve_command") and words:
        name, inner, rest = command.resolve_command(context, words)
        assert inner is not None, line
        context, command, words = (
            inner.make_context(name, list(rest), parent=context),
            inner,
            [word for word in rest if not word.startswith("-")],
        )


MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\+\d\d(:\d\d)?)?"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\+?\b\d+(\.\d+)?(ms|s|m|h|d)\b"), "AGE"),
    (re.compile(r"[▒─█◆✗▸…]+"), ""),
    (re.compile(r"-{3,}"), "---"),
    (re.compile(r"[ \t]+"), " "),
]


def masked(text: str) -> str:
    """A text without what differs from day to day."""
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def fits(expected: str, said: str) -> bool:
    """Return True if a command has said what the page says it does."""
    pattern = re.escape(masked(expected)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, masked(said), re.DOTALL) is not None


class Reader:
    """Somebody who follows a page to the letter."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._files: set[str] = set()
        self._jobs: list[subprocess.Popen[str]] = []
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), str(find_programs()), os.environ["PATH"]]
        )
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in ("DATABASE_URL", "GITHUB_ACTIONS", "COLUMNS", "PGFLOW_TEST_DSN")
        }
        self._auditor = servers.as_auditor(dsn)
        named = {"PGFLOW_DSN": dsn, "PGFLOW_AUDITOR_DSN": self._auditor}
        self._env = {**env, **named, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self.done = 0

    def follow(self, page: Path) -> None:
        """Does what every block of a page says."""
        where, before = Path.cwd(), list(sys.path)
        os.chdir(self._folder)
        sys.path.insert(0, str(self._folder))
        try:
            with environment(
                PGFLOW_DSN=self._dsn, PGFLOW_AUDITOR_DSN=self._auditor, DATABASE_URL=None
            ):
                for block in blocks(page):
                    try:
                        getattr(self, f"_{block.language}")(block.text)
                    except BaseException as error:
                        error.add_note(f"in the block at {page}:{block.line}")
                        raise
                    self.done += 1
        finally:
            os.chdir(where)
            sys.path[:] = before
            for job in self._jobs:
                job.kill()
                job.communicate()
            self._forget()

    def _forget(self) -> None:
        for name in self._files:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    # ------------------------------------------------------------ languages

    def _python(self, text: str) -> None:
        named = re.match(r"# (\w+)\.py\n", text)
        if named is None:
            exec(compile(text, "<a page>", "exec"), self._names)
            return
        (self._folder / f"{named[1]}.py").write_text(text)
        self._files.add(named[1])
        self._forget()
        compile(text, f"{named[1]}.py", "exec")
        if named[1].startswith("test_"):
            self._pytest(f"{named[1]}.py")

    def _pytest(self, name: str) -> None:
        """With nothing but our plugin, on copies of the page's database, which costs less than
        another installation.
        """
        database = conninfo_to_dict(self._dsn)["dbname"]
        (self._folder / "conftest.py").write_text(
            "import pytest\n@pytest.fixture(scope='session')\ndef pgflow_template():\n    return "
            f"{database!r}\n"
        )
        options = [
            "-q",
            "-p",
            "pgflow.testing",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            f"--rootdir={self._folder}",
        ]
        env = {
            **self._env,
            "PGFLOW_TEST_DSN": servers.dsn_of(self._dsn, "postgres"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        done = finish(
            forked.start(
                ["-m", "pytest", *options, name],
                env=env,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        assert done.code == 0, done.out + done.err
        assert " passed" in done.out

    def _sql(self, text: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(text)

    def _yaml(self, text: str) -> None:
        if named := re.match(r"# ([\w.-]+\.yaml)\n", text):
            (self._folder / named[1]).write_text(text)
        for document in YAML(typ="safe").load_all(text):
            self._commands_in(document)

    def _markdown(self, text: str) -> None:
        named = re.match(r"<!-- ([\w.-]+\.md) -->\n", text)
        assert named is not None, "nobody would know whether it is right"
        (self._folder / named[1]).write_text(text)

    def _commands_in(self, part: Any) -> None:
        """Command lines of ours anywhere in a document, as a text or as a list of words."""
        if isinstance(part, str):
            self._command_lines(part)
        elif isinstance(part, list) and part[:1] == ["pgflow"]:
            understood(shlex.join(part))
        elif isinstance(part, (list, dict)):
            for inner in part.values() if isinstance(part, dict) else part:
                self._commands_in(inner)

    def _ini(self, text: str) -> None:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        for section in parser.sections():
            for value in parser[section].values():
                self._command_lines(value)

    def _toml(self, text: str) -> None:
        assert tomllib.loads(text)

    def _text(self, text: str) -> None:
        """Nothing to do."""

    @staticmethod
    def _command_lines(text: str) -> None:
        for line in re.findall(r"^(?:\S*/)?(pgflow .*)$", text, re.MULTILINE):
            understood(line)

    def _console(self, text: str) -> None:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            self._run(line.partition("  #")[0].strip(), expected)

    # ------------------------------------------------------------ command lines

    def _run(self, line: str, expected: str) -> None:
        if line.startswith(ONLY_READ):
            if line.startswith("pgflow"):
                understood(line)
            return
        if line.endswith("&"):
            self._jobs.append(self._start(line[:-1].strip()))
        elif killed := re.fullmatch(r"kill (-9 )?%(\d)", line):
            self._kill(self._jobs[int(killed[2]) - 1], by_force=bool(killed[1]))
        else:
            self._answer(line, expected)

    @staticmethod
    def _kill(job: subprocess.Popen[str], *, by_force: bool) -> None:
        job.send_signal(signal.SIGKILL if by_force else signal.SIGTERM)
        answer = finish(job)
        assert by_force or answer.code == 0, answer.err

    def _start(self, line: str) -> subprocess.Popen[str]:
        words = shlex.split(line)
        options: dict[str, Any] = {
            "env": self._env,
            "cwd": self._folder,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        if words[0] == "pgflow":
            return forked.start(["-m", "pgflow_cli", *words[1:]], **options)
        if words[0] == "python":
            return forked.start(words[1:], **options)
        return subprocess.Popen(words, text=True, **options)

    def _answer(self, line: str, expected: str) -> None:
        deadline = time.monotonic() + servers.HANG_SECONDS
        looks = line.startswith(tuple(f"pgflow {name}" for name in LOOKS))
        while True:
            code, said = self._ask(line)
            fine = (0, 1) if line.startswith(FINDS) else (0,)
            if code in fine and (not expected or fits(expected, said)):
                return
            assert looks and code == 0 and time.monotonic() < deadline, (
                f"{line} ended with {code} and said:\n{said}\nthe page "
                f"says:\n{expected}\nmasked:\n{masked(said)}"
            )
            time.sleep(0.1)

    def _at_terminal(self, words: list[str]) -> tuple[int, str]:
        """Return the exit code and the screen of a command that ends its own process."""
        ours, theirs = pty.openpty()
        env = {**self._env, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "xterm"}
        done = forked.start(
            ["-m", "pgflow_cli", *words],
            env=env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65536):
                said += part
        os.close(ours)
        return done.wait(), ANSI.sub("", said.decode()).replace("\r\n", "\n").rpartition("\r")[2]

    def _ask(self, line: str) -> tuple[int, str]:
        words = shlex.split(line, comments=True)
        if (
            words[0] == "pgflow"
            and ">" not in words
            and (words[1] not in OWN_PROCESS or line == "pgflow workers")
        ):
            answer = pgflow(self._dsn, *words[1:], tty=True, width=100)
        elif words[0] == "pgflow" and ">" not in words:
            return self._at_terminal(words[1:])
        elif words[0] == "python":
            answer = finish(self._start(line))
        else:
            done = subprocess.run(
                ["bash", "-c", line],
                env=self._env,
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=servers.HANG_SECONDS,
            )
            return done.returncode, done.stdout + done.stderr
        return answer.code, answer.out + answer.err
