"""Starts the program and reports how it ended. Run as a script, by the profiler or without one; imports no package.

The profiler is not trusted: it may fail before it starts anything, or crash while the program runs. So the program is a
child of this process, which claims the start (a file that only one process can create), passes on how the program
ended, and kills it if the process that attached is killed itself.

    python start_program.py FOLDER MARK PROGRAM ARGUMENT...

FOLDER holds the pipes ``out``, ``err`` (left out where both go to the same place) and ``liveness``. MARK is the name of
the file in it whose creation claims the start; it then holds the ids of this process and of the program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

ENDED, OUT, ERR, LIVENESS = "ended", "out", "err", "liveness"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a program that does not exist, and for one that cannot be run."""
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that the attached process sends to the program. Those that reach this process are ignored."""


def main() -> None:
    folder, mark, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        claim = os.open(os.path.join(folder, mark), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)  # noqa: PTH118
    except FileExistsError:
        sys.exit(f"three-walls attach: {command[0]} was started without the profiler")
    liveness = os.open(os.path.join(folder, LIVENESS), os.O_RDONLY)  # noqa: PTH118
    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:  # an ignored signal stays ignored in the program
            signal.signal(number, lambda *_: None)  # a handler, unlike SIG_IGN, does not reach the program
    code = _run(folder, command, claim, liveness)
    ended = os.path.join(folder, ENDED)  # noqa: PTH118
    with open(f"{ended}.new", "w") as file:  # noqa: PTH123
        file.write(str(code))
    os.replace(f"{ended}.new", ended)  # noqa: PTH105
    os._exit(code if code >= 0 else 128 - code)


def _run(folder: str, command: list[str], claim: int, liveness: int) -> int:
    out = os.open(os.path.join(folder, OUT), os.O_WRONLY)  # noqa: PTH118
    err_path = os.path.join(folder, ERR)  # noqa: PTH118
    err = os.open(err_path, os.O_WRONLY) if os.path.exists(err_path) else out  # noqa: PTH110
    try:
        # The descriptors that the launcher passes on (PMI_FD of srun and mpirun) stay open.
        program = subprocess.Popen(command, stdout=out, stderr=err, close_fds=False, start_new_session=True)
    except OSError as error:
        os.write(err, f"three-walls attach: {command[0]}: {error.strerror}\n".encode())
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    finally:
        os.close(out)
        if err != out:
            os.close(err)
    os.write(claim, f"{os.getpid()} {program.pid}\n".encode())
    threading.Thread(target=_kill_when_let_go, args=(liveness, program.pid), daemon=True).start()
    return program.wait()


def _kill_when_let_go(liveness: int, group: int) -> None:
    """Waits until no process holds the other end of ``liveness``, then kills the process group ``group``."""
    os.read(liveness, 1)
    os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
