"""The cell magic ``%%foreswap 1G [OPTION of foreswap run]...``: the cell runs in a Python of its own under the limit.

It shares no variables with the notebook: a limit holds for a process, and the notebook's process already has its memory.
What the cell prints appears while it runs, and a line says at the end what it took.
"""

import codecs
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
from typing import Any

from ._command import command

MIB = 1 << 20


def register(ipython: Any) -> None:
    """Makes the magic known to a shell."""
    ipython.register_magic_function(foreswap, magic_kind="cell", magic_name="foreswap")


def foreswap(line: str, cell: str) -> None:
    """%%foreswap SIZE [OPTION]...: run the cell in a Python of its own that has at most SIZE of memory."""
    memory, *options = shlex.split(line) or [""]
    if not memory or memory.startswith("-"):
        raise ValueError("expected a size first, such as: %%foreswap 1G")
    with tempfile.TemporaryDirectory(prefix="foreswap-") as folder:
        script = pathlib.Path(folder, "cell.py")
        script.write_text(cell)
        file = pathlib.Path(folder, "stats.json")
        words = [command(), "run", f"--memory={memory}", *options, f"--stats={file}", "--quiet", "--"]
        # By -c, modules are searched in the notebook's folder; by a file's name, a traceback has its lines.
        code = f"exec(compile(open({str(script)!r}).read(), {str(script)!r}, 'exec'))"
        status = _show([*words, sys.executable, "-u", "-c", code])
        stats = json.loads(file.read_text()) if file.exists() else None
    if stats is None:
        raise RuntimeError(f"foreswap did not start the cell (exit status {status}); its message is above")
    peak, limit, out, back = (
        stats[key] / MIB for key in ("peak_resident_bytes", "memory_limit_bytes", "swap_out_bytes", "swap_in_bytes")
    )
    print(f"foreswap: {peak:.0f} of {limit:.0f} MiB, swapped {out:.0f} MiB out and {back:.0f} MiB in")
    if status != 0:
        raise RuntimeError(f"the cell ended with exit status {status}")


def _show(words: "list[str]") -> int:
    """Runs a command and prints what it prints, as it comes. An interrupt ends it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            while True:
                some = process.stdout.read1(65536)  # type: ignore[attr-defined]
                sys.stdout.write(decoder.decode(some, final=not some))
                sys.stdout.flush()
                if not some:
                    break
        except BaseException:
            process.terminate()
            raise
    return process.returncode
