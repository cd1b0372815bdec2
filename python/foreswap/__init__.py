"""Run programs in less memory than they want.

``foreswap.run(["sort", "big.txt"], memory="1G")`` runs a command under a memory limit and returns its exit status and
the statistics of the run. ``python -m foreswap --memory 1G script.py`` does it for a script, and after ``%load_ext
foreswap`` the cell magic ``%%foreswap 1G`` for a cell of a notebook. All of them call the command ``foreswap`` of this
package. It needs Linux 6.8 or newer on x86-64, and root or access to ``/dev/userfaultfd``.
"""

from ._command import Completed, NotStarted, command, run

__all__ = ["Completed", "NotStarted", "command", "load_ipython_extension", "run"]


def load_ipython_extension(ipython: object) -> None:
    """Adds the cell magic ``%%foreswap`` (``%load_ext foreswap``)."""
    from . import _magic

    _magic.register(ipython)
