"""Run programs in less memory than they want.

``foreswap.run(["sort", "big.txt"], memory="1G")`` runs a command under a memory limit and returns its exit status and
the statistics of the run. ``python -m foreswap --memory 1G script.py`` does it for a script, and after ``%load_ext
foreswap`` the cell magic ``%%foreswap 1G`` for a cell of a notebook. All of them call the command ``foreswap`` of this
package.

``foreswap.empty((100_000, 100_000), memory="1G")`` makes a NumPy array in the running Python that may be larger than RAM; so do
``zeros``, ``full`` and ``load``. ``foreswap.open`` reads a file through a page cache in this process.

foreswap needs Linux 6.8 or newer on x86-64, and (all but ``foreswap.open``) root or access to ``/dev/userfaultfd``.
"""

from ._arrays import advise, empty, full, load, zeros
from ._command import Completed, NotStarted, command, run
from ._files import File, file_stats, open
from ._library import ArrayError, limit, memory_stats

__all__ = [
    "ArrayError",
    "Completed",
    "File",
    "NotStarted",
    "advise",
    "command",
    "empty",
    "file_stats",
    "full",
    "limit",
    "load",
    "load_ipython_extension",
    "memory_stats",
    "open",
    "run",
    "zeros",
]


def load_ipython_extension(ipython: object) -> None:
    """Adds the cell magic ``%%foreswap`` (``%load_ext foreswap``)."""
    from . import _magic

    _magic.register(ipython)
