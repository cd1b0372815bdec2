"""NumPy arrays that live beyond RAM, in a Python that foreswap did not start.

Each array has a region of memory of its own (``libforeswap_capi.so``), which is unmapped when the last view of it has gone.
NumPy is imported by the first call.
"""

import os
import weakref
from typing import TYPE_CHECKING, Any, Sequence, Tuple, Union

from ._command import Word
from ._library import library, open_engine, region

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, numpy.dtype[Any]]

Shape = Union[int, Sequence[int]]
Memory = Union[None, str, int]
Swap = Union[None, Word, Sequence[Word]]

_ADVICE = {"normal": 0, "random": 1, "sequential": 2, "willneed": 3, "cold": 4, "pageout": 5}


def empty(
    shape: Shape,
    dtype: Any = float,
    order: str = "C",
    *,
    memory: Memory = None,
    swap: Swap = None,
    options: Sequence[str] = (),
) -> "Array":
    """An array of zeros that may be larger than RAM, as ``numpy.empty(shape, dtype, order)`` otherwise.

    ``memory`` is how much of it and of all other such arrays of this process together may be in RAM: ``"1G"``, ``"40%"``,
    ``"auto"`` (the default: what the machine can spare). The first array sets it; a later one may repeat it or leave it
    out, and :func:`foreswap.limit` changes it. ``swap`` and ``options`` are those of :func:`foreswap.limit`, and count with the
    first array only.

    Any code may use the array: NumPy, other libraries, threads, files. Forked children (``multiprocessing``) have it as it
    was, and share the limit. Other memory of the process is untouched and does not count.

    Raises :class:`foreswap.ArrayError` if the engine does not start or the address space has no room for the array,
    ``ValueError`` for another ``memory`` than before, ``TypeError`` for arrays of Python objects.
    """
    import numpy

    # Its signatures differ from version to version.
    np: Any = numpy
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} has Python objects, and those are not in the array; use numpy.empty for it")
    dimensions = _dimensions(shape)
    if order not in ("C", "F"):
        raise ValueError(f"order={order!r}; expected 'C' or 'F'")
    lib = open_engine(memory, swap, options)
    size = kind.itemsize
    for dimension in dimensions:
        size *= dimension
    if size == 0:
        nothing: "Array" = np.empty(dimensions, kind, order)
        return nothing
    address, buffer = region(lib, size)
    # Each view holds the buffer. Where the interpreter ends, threads may still use arrays: they end with the process.
    weakref.finalize(buffer, lib.foreswap_unmap, address).atexit = False
    array: "Array" = np.ndarray(dimensions, kind, buffer, order=order)
    return array


#: New regions are zero.
zeros = empty


def _dimensions(shape: Shape) -> Tuple[int, ...]:
    import operator

    try:
        dimensions: Tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        dimensions = tuple(operator.index(dimension) for dimension in shape)  # type: ignore[union-attr]
    if min(dimensions, default=0) < 0:
        raise ValueError(f"shape={shape!r}; a dimension cannot be negative")
    return dimensions


def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    order: str = "C",
    *,
    memory: Memory = None,
    swap: Swap = None,
    options: Sequence[str] = (),
) -> "Array":
    """As :func:`foreswap.empty`, filled with ``fill_value``; a page of equal words takes no room on the swap area."""
    import numpy

    kind = numpy.asarray(fill_value).dtype if dtype is None else dtype
    array = empty(shape, kind, order, memory=memory, swap=swap, options=options)
    array[...] = fill_value
    return array


def load(file: Word, *, memory: Memory = None, swap: Swap = None, options: Sequence[str] = ()) -> "Array":
    """Reads a ``.npy`` file into an array as of :func:`foreswap.empty`.

    Unlike ``numpy.load(file, mmap_mode="r+")``, changes do not reach the file. Raises ``ValueError`` if the file is none of
    this format or ends too early, and what :func:`foreswap.empty` raises: ``TypeError`` if the file has Python objects.
    """
    from numpy.lib import format

    npy: Any = format
    with open(file, "rb") as source:
        try:
            version = npy.read_magic(source)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, fortran, dtype = read(source)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{os.fspath(file)!r} is not a .npy file of version 1 or 2: {error}") from None
        array = empty(shape, dtype, "F" if fortran else "C", memory=memory, swap=swap, options=options)
        content: Any = array.reshape(-1, order="A").view("u1") if array.size else b""
        rest = memoryview(content)
        while rest.nbytes:
            got = source.readinto(rest[: 64 << 20])
            if not got:
                raise ValueError(f"{os.fspath(file)!r} ends {rest.nbytes} bytes before the array does")
            rest = rest[got:]
    return array


def advise(array: "Array", advice: str) -> None:
    """Says how an array (or a contiguous part of it) will be used: ``"sequential"``, ``"random"``, ``"normal"`` (foreswap
    finds out, the default), ``"willneed"`` (read it now), ``"cold"`` or ``"pageout"`` (evict it).

    Raises ``ValueError`` for another word, or an array that is not contiguous; :class:`foreswap.ArrayError` if it is none of
    this module's.
    """
    from ._library import failed

    if advice not in _ADVICE:
        raise ValueError(f"advice={advice!r}; expected one of {', '.join(_ADVICE)}")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError("the array is not contiguous; give the one that it is a view of, or a contiguous part")
    lib = library()
    if array.nbytes and lib.foreswap_advise(array.ctypes.data, array.nbytes, _ADVICE[advice]) != 0:
        raise failed(lib)
