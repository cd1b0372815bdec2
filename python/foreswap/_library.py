"""The library of this package (``lib/foreswap/libforeswap_capi.so`` of the environment), and calls of its functions.

``crates/capi/include/foreswap.h`` documents them. The engine of a process is one, whoever opens it.
"""

import ctypes
import json
import os
import pathlib
import sys
import threading
from importlib import metadata
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._command import Word, words

#: The limit if the program gives none.
DEFAULT = "auto"


class ArrayError(RuntimeError):
    """The engine does not start, or there is no room for an array. The message says why, and what to do."""


class _State:
    """What this module keeps. ``options`` are those with which the engine was opened, ``memory`` is the limit."""

    library: Optional[ctypes.CDLL] = None
    options: Optional[List[str]] = None
    memory: Optional[str] = None


_lock = threading.RLock()
# A child that forks while another thread has the lock would wait for ever.
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


def object_path(name: str) -> str:
    """The path of an object: beside that which the variable ``FORESWAP_LIBRARY`` names, or the file of this package."""
    named = os.environ.get("FORESWAP_LIBRARY")
    if named:
        return os.path.join(os.path.dirname(named), name)
    try:
        files = metadata.files("foreswap") or ()
    except metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == name:
            return str(pathlib.Path(str(file.locate())).resolve())
    raise ArrayError(f"the package foreswap lacks its library {name}: install it again from a wheel")


def _path() -> str:
    """The variable ``FORESWAP_LIBRARY``, or the file of this package."""
    return os.environ.get("FORESWAP_LIBRARY") or object_path("libforeswap_capi.so")


def library() -> ctypes.CDLL:
    """The library, loaded."""
    if _State.library is None:
        try:
            lib = ctypes.CDLL(_path())
        except OSError as error:
            raise ArrayError(f"the library of foreswap cannot be loaded: {error}") from None
        lib.foreswap_open.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
        lib.foreswap_map.argtypes = [ctypes.c_size_t]
        lib.foreswap_map.restype = ctypes.c_void_p
        lib.foreswap_unmap.argtypes = [ctypes.c_void_p]
        lib.foreswap_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        lib.foreswap_set_memory.argtypes = [ctypes.c_char_p]
        lib.foreswap_stats.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        lib.foreswap_stats.restype = ctypes.c_ssize_t
        lib.foreswap_error.restype = ctypes.c_char_p
        _State.library = lib
    return _State.library


def failed(lib: ctypes.CDLL) -> ArrayError:
    """The error of this thread's last call."""
    return ArrayError(lib.foreswap_error().decode(errors="replace"))


def open_engine(memory: Union[None, str, int], swap: Union[None, Word, Sequence[Word]], options: Sequence[str]) -> ctypes.CDLL:
    """Opens the engine of this process unless it is open, and checks that ``memory`` is its limit."""
    with _lock:
        lib = library()
        if _State.options is None:
            line = list(words(DEFAULT if memory is None else memory, swap, options))
            array = (ctypes.c_char_p * (len(line) + 1))(*(os.fsencode(word) for word in line), None)
            if lib.foreswap_open(array) != 0:
                raise failed(lib)
            _State.options, _State.memory = line, line[0].partition("=")[2]
        elif memory is not None and str(memory) != _State.memory:
            raise ValueError(
                f"memory={memory!r}: the arrays of this process together have memory={_State.memory!r} already; leave memory "
                f"out, or change it for all of them by foreswap.limit({memory!r})"
            )
        return lib


def limit(
    memory: Union[str, int],
    *,
    swap: Union[None, Word, Sequence[Word]] = None,
    options: Sequence[str] = (),
) -> None:
    """Sets how much memory all arrays of this process together may keep in RAM.

    ``memory`` is what ``foreswap run --memory`` takes: ``"512M"``, ``"40%"``, ``"auto"``, ``"512M..8G"``, or a number of
    bytes. The first call of this module with a size starts the engine; ``swap`` names the places for the rest and
    ``options`` are further words of ``foreswap run``, which cannot be changed later. Raises :class:`ArrayError` if a value is
    wrong, or foreswap does not work here (``foreswap doctor`` says why).
    """
    with _lock:
        if _State.options is None:
            open_engine(memory, swap, options)
            return
        if (swap is not None or options) and list(words(memory, swap, options))[1:] != _State.options[1:]:
            raise ValueError(
                f"the engine of this process runs with {_State.options[1:]} already: swap and options hold from its first use "
                f"on; `foreswap swapon {os.getpid()} AREA` adds an area"
            )
        lib = library()
        if lib.foreswap_set_memory(str(memory).encode()) != 0:
            raise failed(lib)
        _State.memory = str(memory)


def memory_stats() -> Dict[str, Any]:
    """Figures of the arrays of this process and of its children, in bytes, with the keys of ``foreswap ps --json``.

    Among them ``limit_bytes``, ``resident_bytes``, ``processes``, ``areas`` and ``totals`` (``swap_in_bytes``,
    ``swap_out_bytes``, ``faults_major``). Raises :class:`ArrayError` before the first array, and under ``foreswap run``.
    """
    lib = library()
    text = ctypes.create_string_buffer(64 << 10)
    while True:
        length = lib.foreswap_stats(text, len(text))
        if length < 0:
            raise failed(lib)
        if length < len(text):
            figures: Dict[str, Any] = json.loads(text.value)
            figures.pop("is", None)
            return figures
        text = ctypes.create_string_buffer(length + 4096)


def region(lib: ctypes.CDLL, size: int) -> Tuple[int, Any]:
    """Maps at least ``size`` bytes of zeros: the address, and a buffer without an owner."""
    if size > sys.maxsize:
        # ctypes would pass the lower bits.
        raise ArrayError(f"an array of {size} bytes is not possible; expected at most 64 TiB")
    address = lib.foreswap_map(size)
    if not address:
        raise failed(lib)
    return address, (ctypes.c_char * size).from_address(address)
