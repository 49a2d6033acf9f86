"""Python programs as processes of their own that begin in milliseconds.

Each of the hundreds of commands and workers that the tests start would import pgflow anew, which
takes more processor time than what most of them are for. One process a run of the tests imports
everything once (`python -m forked`), holds no connection and no thread, and forks a child for each
program: it has the arguments, the environment, the folder and the streams that it would have, and
signals reach it alone. What an interpreter reads from its environment only when it begins is
respected: with other such variables a program is started as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from _pytest.config import default_plugins

IMPORTED = (
    "pgflow._surface", "pgflow.embedded", "pgflow.inspect", "psycopg_pool", "pydantic.type_adapter",
    "pgflow_cli.commands", "pgflow_cli.look.logs", "pgflow_cli.look.selection",
    "pgflow_cli.look.targets", "pgflow.app.draining", "pgflow_cli.ops.serving",
    "pgflow_cli.ops.workers",
)  # fmt: skip
OF_EXTRAS = ("pgflow.web", "pgflow.web.console", "pgflow.web.serving", "uvicorn")
WANTED = "FORKED_IMPORTS"
"""Variable with further modules that are worth to be imported once."""
OF_PYTEST = tuple(f"_pytest.{name}" for name in default_plugins)
SETTABLE = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
"""Variables for an interpreter that count for a child too."""
EARLY = {signal.SIGINT, signal.SIGTERM}
"""Signals that a child gets only when it is what it is to be."""
_SIZE = struct.Struct("!I")
_STATUS = struct.Struct("!i")


def start(arguments: list[str], *, env: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    """Start ``python ARGUMENTS``: ``-m`` and a module, or a file, and words for it.

    Args:
        arguments: Words behind ``python``.
        env: The whole environment.
        **options: Streams and the folder, as `subprocess.Popen` takes them.
    """
    command = [sys.executable, *arguments]
    is_plain = (arguments[0] == "-m" or arguments[0].endswith(".py")) and _of_interpreter(
        env
    ) == _of_interpreter(_nest().environment)
    made = _Forked if is_plain else subprocess.Popen
    return made(command, env=env, text=True, **options)


def _of_interpreter(env: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(("PYTHON", "LC_", "LANG")) and name not in SETTABLE
    }


class _Forked(subprocess.Popen[str]):
    """A child of the nest, of which a socket tells how it ended."""

    _told: socket.socket

    def _execute_child(  # type: ignore[override]  # as subprocess calls it
        self,
        args,
        executable,
        preexec_fn,
        close_fds,
        pass_fds,
        cwd,
        env,
        startupinfo,
        creationflags,
        shell,
        p2cread,
        p2cwrite,
        c2pread,
        c2pwrite,
        errread,
        errwrite,
        *_rest,
    ) -> None:
        self._told, theirs = socket.socketpair()
        streams = [
            n if given == -1 else given for n, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        with theirs:
            request = [args[1:], str(cwd or Path.cwd()), env]
            _nest().ask(request, [*streams, theirs.fileno()])
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        (self.pid,) = _STATUS.unpack(self._told.recv(_STATUS.size, socket.MSG_WAITALL))
        self._child_created = True

    def _internal_poll(self, _deadstate: int | None = None, *_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid and self.returncode is None:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        said = self._told.recv(_STATUS.size, socket.MSG_WAITALL)
        self._told.close()
        return self.pid, _STATUS.unpack(said)[0] if said else signal.SIGKILL


class _Nest:
    """The process that forks children, as the tests see it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forked", str(theirs.fileno())],
                cwd=Path(__file__).parent,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._control.close()
        self._process.wait()

    def ask(self, request: object, descriptors: list[int]) -> None:
        """Send a request, and the files that go with it."""
        text = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._control, [_SIZE.pack(len(text))], descriptors)
            self._control.sendall(text)


@functools.cache
def _nest() -> _Nest:
    return _Nest()


def main() -> None:
    """Fork a child for each request, until there is nobody who asks."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for name in (*IMPORTED, *OF_PYTEST):
        importlib.import_module(name)
    for name in (*OF_EXTRAS, *os.environ.get(WANTED, "").split()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    own = set(os.environ.get("PYTHONPATH", "").split(os.pathsep)) | {sys.path[0]}
    rest = [path for path in sys.path if path not in own]
    # those who watch over children are not waited for
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, EARLY)
    gc.freeze()
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, _SIZE.size, 4)
        if not head:
            return
        request = json.loads(control.recv(_SIZE.unpack(head)[0], socket.MSG_WAITALL))
        if os.fork() == 0:
            control.close()
            _watch_over(request, descriptors, rest)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch_over(request: list[Any], descriptors: list[int], rest: list[str]) -> None:
    """Fork the child, and tell how it ends; returns in the child alone, which has run by then."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, told = descriptors
    if (pid := os.fork()) == 0:
        os.close(told)
        _become(*request, streams, rest)
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(OSError):  # nobody waits for it any more
        os.write(told, _STATUS.pack(pid))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.write(told, _STATUS.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(
    arguments: list[str], folder: str, env: dict[str, str], streams: list[int], rest: list[str]
) -> NoReturn:
    """Be ``python ARGUMENTS``, in this folder, with these variables and streams."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in {*streams} - {0, 1, 2}:
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin, sys.stdout, sys.stderr = (
        _open(number, stream) for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))
    )
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    is_module = arguments[0] == "-m"
    name, *words = arguments[is_module:]
    sys.path[:] = [folder if is_module else str(Path(name).resolve().parent), *paths, *rest]
    sys.argv[:] = [name, *words]
    importlib.invalidate_caches()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EARLY)
    run = runpy.run_module if is_module else runpy.run_path
    run(name, run_name="__main__", **({"alter_sys": True} if is_module else {}))  # type: ignore[operator]
    sys.exit()


def _open(number: int, like: Any) -> Any:
    """A stream as the interpreter makes it."""
    made = open(  # noqa: SIM115  for as long as the process lives
        number, "w" if number else "r", encoding=like.encoding, errors=like.errors, closefd=False
    )
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    made.reconfigure(
        line_buffering=not is_unbuffered and (number == 2 or made.isatty()),
        write_through=is_unbuffered,
    )
    return made


if __name__ == "__main__":
    main()
