"""Finds the command of this package, and runs programs under it.

The command is a file of the environment (``bin/foreswap``), which the installer lists in the package's record. It may
not be on PATH, and another one may be.
"""

import json
import os
import pathlib
import subprocess
import tempfile
from importlib import metadata
from typing import Any, Dict, IO, Mapping, Optional, Sequence, Tuple, Union

Word = Union[str, "os.PathLike[str]"]


class NotStarted(RuntimeError):
    """foreswap did not start the command. Its message is on standard error, and here if that was captured.

    ``returncode`` is 2 when an option is wrong, 125 when foreswap cannot work here, 126 when the command cannot be
    executed or managed, and 127 when it is not found.
    """

    def __init__(self, returncode: int, message: Optional[str]) -> None:
        super().__init__(message or f"foreswap did not start the command (exit status {returncode}); see standard error")
        self.returncode = returncode


class Completed(subprocess.CompletedProcess):  # type: ignore[type-arg]
    """A command that has ended, as ``subprocess.run`` returns it, with the statistics of its run.

    ``returncode`` is the command's own: negative if a signal ended it. ``stats`` has the keys of ``foreswap run
    --stats``, among them ``peak_resident_bytes``, ``memory_limit_bytes``, ``swap_in_bytes``, ``swap_out_bytes``,
    ``faults_major`` and ``elapsed_s``.
    """

    stats: Dict[str, Any]

    def __init__(self, args: Any, returncode: int, stdout: Any, stderr: Any, stats: Dict[str, Any]) -> None:
        super().__init__(args, returncode, stdout, stderr)
        self.stats = stats


def command() -> str:
    """The path of the command ``foreswap`` of this package."""
    for file in metadata.files("foreswap") or ():
        if file.name == "foreswap" and file.parent.name == "bin":
            return str(pathlib.Path(str(file.locate())).resolve())
    raise FileNotFoundError("the package foreswap lacks its command bin/foreswap: install it again from a wheel")


def words(memory: Union[str, int], swap: Union[None, Word, Sequence[Word]], more: Sequence[str]) -> Sequence[str]:
    """The words of ``foreswap run`` for the arguments of :func:`run`."""
    areas: Sequence[Word] = () if swap is None else (swap,) if isinstance(swap, (str, os.PathLike)) else swap
    return [f"--memory={memory}", *(f"--swap={os.fspath(area)}" for area in areas), *more]


def run(
    args: Sequence[Word],
    memory: Union[str, int],
    *,
    swap: Union[None, Word, Sequence[Word]] = None,
    options: Sequence[str] = (),
    quiet: bool = True,
    check: bool = False,
    capture_output: bool = False,
    text: bool = False,
    input: Union[None, str, bytes] = None,
    timeout: Optional[float] = None,
    cwd: Optional[Word] = None,
    env: Optional[Mapping[str, str]] = None,
    stdin: Union[None, int, IO[Any]] = None,
    stdout: Union[None, int, IO[Any]] = None,
    stderr: Union[None, int, IO[Any]] = None,
) -> Completed:
    """Runs a command in at most ``memory`` and waits for its end.

    ``memory`` is what ``--memory`` takes: ``"512M"``, ``"1.5G"``, ``"40%"``, ``"auto"``, ``"512M..8G"``, or a number of
    bytes. It holds for the command and its descendants together. ``swap`` names the places for the rest, one or several
    (``--swap``); ``options`` are further words of ``foreswap run``, such as ``["--thp=never"]``. ``quiet`` leaves out
    the block that foreswap prints at the end. The other arguments are those of ``subprocess.run``.

    Raises :class:`NotStarted` if the command was not started, ``subprocess.CalledProcessError`` if ``check`` is given
    and its exit status is not 0, ``subprocess.TimeoutExpired`` after ``timeout`` seconds; the command then gets SIGTERM,
    and SIGKILL if it goes on for five seconds more.
    """
    if capture_output:
        stdout = stderr = subprocess.PIPE
    if input is not None:
        stdin = subprocess.PIPE
    with tempfile.TemporaryDirectory(prefix="foreswap-") as folder:
        file = pathlib.Path(folder, "stats.json")
        line = [command(), "run", *words(memory, swap, options), f"--stats={file}"]
        line += ["--quiet"] * quiet + ["--", *(os.fspath(word) for word in args)]
        with subprocess.Popen(
            line, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, text=text
        ) as process:
            out, err = _until_end(process, input, timeout)
        stats = json.loads(file.read_text()) if file.exists() else None
    if stats is None:
        raise NotStarted(process.returncode, _message(err))
    done = Completed(list(args), process.returncode, out, err, stats)
    if check:
        done.check_returncode()
    return done


def _until_end(process: "subprocess.Popen[Any]", input: Any, timeout: Optional[float]) -> Tuple[Any, Any]:
    """What the process printed where it was to be captured. Whatever happens, the process has ended."""
    try:
        return process.communicate(input, timeout)
    except BaseException:
        process.terminate()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise


def _message(captured: Union[None, str, bytes]) -> Optional[str]:
    if isinstance(captured, bytes):
        captured = captured.decode(errors="replace")
    return captured.strip() if captured else None
