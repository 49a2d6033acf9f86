"""Keeper: the parent of every process that the nodes of a worker start, a program of its own.

A killed worker cannot clean up, and a second worker must not run a node beside the orphan of the
first. So the keeper forks the processes, each in a session of its own, and holds one socket for
each; the worker has the other end. When that closes, because the node was given up or the worker
died, the keeper kills the whole group. The kernel closes the socket however the worker died, and
the keeper knows every process from its start.

A process dies with the keeper too, even if that is killed. On Linux the process must ask for that
itself. `setpriv` does so, and is started without a copy of the keeper's memory, which costs more
than all that bash does to begin. Without `setpriv` the keeper forks.

It imports nothing of pgflow, and little else, so it starts in milliseconds, once a worker. What a
node leaves in the background goes on until the worker ends. What has left its group too becomes the
keeper's own child, and ends with it.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import struct
import sys
from typing import Any

LENGTH = struct.Struct("!Q")
"""Head of a request: the number of its bytes."""
HANDED = 4
"""Descriptors that come with a request: its socket, standard input, output and error."""

_SIGNALS = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)
"""Signals that this program or Python ignores, and a process does not."""

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # of prctl(2)
_LOOK_SECONDS = 1.0


class Kept:
    """One process: its socket, the request as far as it has come, and its group once it runs."""

    def __init__(self, control: socket.socket, handed: list[int]) -> None:
        self.control = control
        self.handed = handed
        self.request = bytearray()
        self.pid = 0


class Keeper:
    """The processes of one worker."""

    def __init__(self, worker: socket.socket) -> None:
        self.worker = worker
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, Kept] = {}
        self.left: set[int] = set()
        self.told, self.tell = socket.socketpair()
        """Woken by the ends of processes, also while the rest is killed."""
        self.prctl = _prctl()
        self.helper = _helper()
        self.prctl(_SUBREAPER, 1)

    def work(self) -> None:
        """Start, watch and kill, until the worker is gone."""
        for end in (self.told, self.tell):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.tell.fileno(), warn_on_full_buffer=False)
        self.selector.register(self.told, selectors.EVENT_READ, None)
        self.selector.register(self.worker, selectors.EVENT_READ, self.worker)
        while True:
            for key, _ in self.selector.select(_LOOK_SECONDS if self.left else None):
                if key.data is None:
                    self.told.recv(4096)
                    self.reap()
                elif key.data is self.worker:
                    if not self.accept():
                        return
                else:
                    self.hear(key.data)
            self.left = {group for group in self.left if _is_alive(group)}

    def accept(self) -> bool:
        """Take the descriptors of a new request; False if the worker is gone."""
        try:
            message, handed, _, _ = socket.recv_fds(self.worker, 1, HANDED)
        except OSError:
            return False
        if not message:
            return False
        for descriptor in handed:
            os.set_inheritable(descriptor, False)
        control = socket.socket(fileno=handed[0])
        self.selector.register(control, selectors.EVENT_READ, Kept(control, handed[1:]))
        return True

    def hear(self, kept: Kept) -> None:
        """Read more of a request, or what the worker says of a process that runs."""
        try:
            message = kept.control.recv(1 << 16)
        except OSError:
            message = b""
        if not message:
            self.give_up(kept)
        elif kept.pid:
            _kill(kept.pid)
        else:
            kept.request += message
            head = LENGTH.size
            if (
                len(kept.request) >= head
                and len(kept.request) >= head + LENGTH.unpack_from(kept.request)[0]
            ):
                self.start(kept, json.loads(kept.request[head:]))

    def start(self, kept: Kept, asked: dict[str, Any]) -> None:
        """Start the process, and report its pid, or the reason why it did not start."""
        pid, trouble = 0, ""
        try:
            if self.helper is None:
                pid, trouble = self.fork(kept, asked)
            else:
                pid = self.spawn(kept, asked, self.helper)
        except (OSError, ValueError) as error:
            trouble = _trouble(error)
        if pid:
            kept.pid = pid
            self.running[pid] = kept
        self.let_go(kept)
        self.say(kept, {"pid": pid, "error": trouble})

    def spawn(self, kept: Kept, asked: dict[str, Any], helper: tuple[str, ...]) -> int:
        """Start the process by the helper, which becomes it; return its pid.

        Raises:
            OSError: The program or folder does not exist, or may not be used.
        """
        argv, env = asked["argv"], asked["env"]
        streams = [(os.POSIX_SPAWN_DUP2, *pair) for pair in zip(kept.handed, range(3), strict=True)]
        os.chdir(asked["cwd"])
        try:
            found = _find(argv[0], env.get("PATH", os.defpath))
            # By default, what the keeper ignores would be ignored by the process.
            return os.posix_spawn(
                helper[0] if helper else found,
                [*helper, *argv],
                env,
                file_actions=streams,
                setsid=True,
                setsigdef=_SIGNALS,
            )
        finally:
            os.chdir("/")

    def fork(self, kept: Kept, asked: dict[str, Any]) -> tuple[int, str]:
        """Fork the process; answer its number, and why it has failed.

        Raises:
            OSError: There are too many processes.
        """
        told, tell = os.pipe()
        with os.fdopen(told, "rb") as reader:
            try:
                pid = os.fork()
                if pid == 0:
                    self.become(kept, asked, tell)
            finally:
                os.close(tell)
            return pid, reader.read().decode("utf-8", "replace")

    def become(self, kept: Kept, asked: dict[str, Any], tell: int) -> None:
        """Become the process that was asked for; in the child, never returns."""
        try:
            os.setsid()
            self.prctl(_DEATH_SIGNAL, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            for target, descriptor in enumerate(kept.handed):
                os.dup2(descriptor, target)
            os.chdir(asked["cwd"])
            program = _find(asked["argv"][0], asked["env"].get("PATH", os.defpath))
            os.execve(program, asked["argv"], asked["env"])  # noqa: S606 - its purpose
        except BaseException as error:  # noqa: BLE001 - every error is reported
            os.write(tell, _trouble(error).encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def reap(self) -> None:
        """Report the ends of processes to the worker. What is left of their groups goes on."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            kept = self.running.pop(pid, None)
            if kept is None:
                continue
            if _is_alive(pid):
                self.left.add(pid)
            self.say(kept, {"status": os.waitstatus_to_exitcode(status)})

    def say(self, kept: Kept, message: dict[str, Any]) -> None:
        """Send a message about a process to the worker, if it is still there."""
        try:
            kept.control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def give_up(self, kept: Kept) -> None:
        """Kill a process that is not needed any more."""
        self.selector.unregister(kept.control)
        kept.control.close()
        self.let_go(kept)
        if kept.pid in self.running:
            _kill(kept.pid)

    def let_go(self, kept: Kept) -> None:
        """Close the descriptors that are the process's alone."""
        for descriptor in kept.handed:
            os.close(descriptor)
        kept.handed = []

    def end(self) -> None:
        """Kill whatever there is of the worker's processes."""
        for group in (*self.running, *self.left):
            _kill(group)
        while True:
            for pid in _children():
                _kill(pid, group=False)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _find(name: str, path: str) -> str:
    """Return the file of a program's name in the folder of the process. `os.execvpe` would try to
    run one in each folder, and take longer than bash to begin.

    Raises:
        OSError: It does not exist, or may not be used.
    """
    folders = [""] if os.sep in name else path.split(os.pathsep)
    files = [os.path.join(folder, name) for folder in folders]  # noqa: PTH118
    there = [file for file in files if os.path.isfile(file)]  # noqa: PTH113
    for file in there:
        if os.access(file, os.X_OK):
            return file
    number = errno.EACCES if there else errno.ENOENT
    raise OSError(number, os.strerror(number), there[0] if there else None)


def _trouble(error: BaseException) -> str:
    """Return the reason why a process has not begun."""
    message = error.strerror if isinstance(error, OSError) else str(error)
    place = getattr(error, "filename", None)
    return f"{message}{f': {place}' if place else ''}"


def _is_alive(group: int) -> bool:
    """Return True if a group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kill(pid: int, *, group: bool = True) -> None:
    """Kill a process, or its group."""
    try:
        if group:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _children() -> list[int]:
    """Return the running children of this process, on kernels that list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listed:  # noqa: PTH123
            return [int(pid) for pid in listed.read().split()]
    except OSError:
        return []


def _prctl() -> Any:
    """Return Linux's prctl, which sets the parent of orphans; elsewhere a function that does
    nothing.
    """
    if not sys.platform.startswith("linux"):
        return lambda *_: None
    import ctypes

    return ctypes.CDLL(None).prctl


def _helper() -> tuple[str, ...] | None:
    """Return the command by which a process asks to end with the keeper; empty on other systems
    than Linux, None if the command is missing.
    """
    if not sys.platform.startswith("linux"):
        return ()
    command = ("/usr/bin/setpriv", "--pdeathsig", "KILL", "--")
    try:
        pid = os.posix_spawn(command[0], [*command, "/bin/true"], {})
    except OSError:
        return None
    return None if os.waitpid(pid, 0)[1] else command


def main() -> None:
    """Keep the processes of the worker whose socket is standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keeper = Keeper(socket.socket(fileno=os.dup(0)))
    try:
        keeper.work()
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
