"""Files through foreswap's page cache (``lib/foreswap/libforeswap_files_py.so``): ``foreswap.open``.

The cache is one for the process, of a fixed size, and beside the kernel's: reads that miss go past that (O_DIRECT).
"""

import ctypes
import errno
import io
import os
import re
import threading
from typing import Any, Dict, Optional, Union

from ._library import object_path

#: The size of the cache if the program gives none, in bytes.
DEFAULT = 64 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_PATTERNS = {"normal": 0, "random": 1, "sequential": 2}
_COUNTS = ("hits", "misses", "pages_read", "transfers", "free_pages")

_byref, _first = ctypes.byref, ctypes.c_char.from_buffer

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class _State:
    """What this module keeps. ``bytes`` is the size of the cache, once it is there."""

    library: Optional[ctypes.CDLL] = None
    bytes: Optional[int] = None
    is_child = False


_lock = threading.RLock()


def _in_child() -> None:
    # The cache has no I/O thread here, and another thread may have had the lock.
    globals().update(_lock=threading.RLock())
    _State.is_child = _State.bytes is not None


os.register_at_fork(after_in_child=_in_child)


def _size(memory: Union[str, int]) -> int:
    """Bytes of ``"256M"``, ``"1.5G"``, ``4096`` or ``"4096"``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", str(memory), re.IGNORECASE)
    if found is None:
        raise ValueError(f"memory={memory!r}: expected a size such as '256M', or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _library() -> ctypes.CDLL:
    if _State.library is None:
        lib = ctypes.CDLL(object_path("libforeswap_files_py.so"))
        u64, i64 = ctypes.c_uint64, ctypes.c_int64
        for name, types in {
            "cache": [u64],
            "open": [ctypes.c_char_p],
            "close": [i64],
            "read": [i64, ctypes.c_void_p, ctypes.c_size_t, u64],
            "size": [i64],
            "advise": [i64, ctypes.c_int],
            "prefetch": [i64, u64, u64],
            "stats": [ctypes.POINTER(u64)],
        }.items():
            function = getattr(lib, f"foreswap_files_{name}")
            function.argtypes, function.restype = types, i64
        _State.library = lib
    return _State.library


def _checked(result: int, path: object) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result), path)
    return result


def _cache(memory: Union[None, str, int]) -> ctypes.CDLL:
    """The library, with the cache of this process, whose size must be ``memory``."""
    wanted = None if memory is None else _size(memory)
    with _lock:
        if _State.is_child:
            raise RuntimeError("foreswap.open: this process was forked after its parent had opened a file; open files in it by spawn")
        lib = _library()
        if _State.bytes is None:
            size = DEFAULT if wanted is None else wanted
            result = lib.foreswap_files_cache(size)
            if result == -errno.EINVAL:
                raise ValueError(f"memory={memory!r}: a cache has 1 MiB to 1 TiB")
            _checked(result, None)
            _State.bytes = size
        elif wanted is not None and wanted != _State.bytes:
            raise ValueError(
                f"memory={memory!r}: the files of this process share a cache of {_State.bytes} bytes already; leave memory out"
            )
        return lib


class File(io.RawIOBase):
    """A file that is read through foreswap's page cache, in binary. :func:`open` makes it.

    It has what binary files have (``read``, ``readinto``, ``seek``, ``tell``, iteration, ``with``), and is not buffered: the cache is
    the buffer. Threads that share it should use ``readinto_at``, which has no position.
    """

    def __init__(self, path: Path, memory: Union[None, str, int] = None) -> None:
        self._number = -1
        self._lib = _cache(memory)
        self._read = self._lib.foreswap_files_read
        self.name = path
        self.mode = "rb"
        self._at = 0
        number = self._lib.foreswap_files_open(os.fsencode(path))
        if number == -errno.EINVAL:
            raise OSError(errno.EINVAL, "neither a regular file nor a block device: read it by the builtin open", path)
        self._number = _checked(number, path)

    def _usable(self) -> None:
        if _State.is_child:
            raise RuntimeError(f"{self.name!r}: a forked child cannot use a file of foreswap.open; open it there by spawn")
        if self.closed:
            raise ValueError(f"{self.name!r}: the file is closed")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto_at(self, buffer: Any, offset: int) -> int:
        """Reads from ``offset`` on to ``buffer`` and returns how many bytes: fewer than it has only at the end of the file.

        ``buffer`` is any writable object with the buffer protocol, contiguous: a NumPy array, a ``bytearray``, a ``memoryview``.
        Other threads run meanwhile.
        """
        if offset < 0 or self.closed or _State.is_child:
            self._usable()
            raise ValueError(f"offset={offset}: expected 0 or more")
        size = len(buffer) if type(buffer) is bytearray else memoryview(buffer).nbytes
        if size == 0:
            return 0
        # Its first byte, which is refused unless the buffer is writable and contiguous, and holds it until the end of the call.
        done: int = self._read(self._number, _byref(_first(buffer)), size, offset)
        return done if done >= 0 else _checked(done, self.name)

    def readinto(self, buffer: Any) -> int:
        """The same from the position of the file, which moves on."""
        done = self.readinto_at(buffer, self._at)
        self._at += done
        return done

    def read(self, size: Optional[int] = -1) -> bytes:
        """Reads ``size`` bytes, or all that follow if it is negative or None."""
        if size is None or size < 0:
            size = max(self.size() - self._at, 0)
        buffer = bytearray(size)
        del buffer[self.readinto(buffer) :]
        return bytes(buffer)

    def readall(self) -> bytes:
        return self.read()

    def size(self) -> int:
        """Bytes of the file, as far as it is known: growth by others is seen by a read at the end."""
        self._usable()
        return _checked(self._lib.foreswap_files_size(self._number), self.name)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._usable()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence={whence}: expected 0, 1 or 2")
        base = 0 if whence == io.SEEK_SET else self._at if whence == io.SEEK_CUR else self.size()
        if base + offset < 0:
            raise ValueError(f"{base + offset} is no position; expected 0 or more")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        self._usable()
        return self._at

    def advise(self, pattern: str) -> None:
        """How the file will be read: ``"sequential"``, ``"random"``, or ``"normal"``, the default, for foreswap to find out."""
        self._usable()
        if pattern not in _PATTERNS:
            raise ValueError(f"{pattern!r}: expected one of {', '.join(_PATTERNS)}")
        _checked(self._lib.foreswap_files_advise(self._number, _PATTERNS[pattern]), self.name)

    def prefetch(self, offset: int, size: int) -> None:
        """Starts to read ``size`` bytes from ``offset`` on, as far as there is room, and does not wait."""
        self._usable()
        if offset < 0 or size < 0:
            raise ValueError(f"offset={offset}, size={size}: expected 0 or more")
        _checked(self._lib.foreswap_files_prefetch(self._number, offset, size), self.name)

    def close(self) -> None:
        """Closes it. A read of another thread that is under way ends as it would."""
        if not self.closed and self._number >= 0 and not _State.is_child:
            self._lib.foreswap_files_close(self._number)
        super().close()


def open(path: Path, memory: Union[None, str, int] = None) -> File:  # noqa: A001
    """Opens a file for reading through foreswap's page cache.

    ``memory`` is the size of the cache, for all such files of the process together: ``"256M"`` or a number of bytes, 64 MiB if
    nothing is said. The first file sets it; a later one may repeat it or leave it out. Raises OSError as the builtin ``open`` does, and
    ValueError for another size.
    """
    return File(path, memory)


def file_stats() -> Dict[str, int]:
    """What the cache has done: pages of 4 KiB that reads found (``hits``), and had to wait for (``misses``), ``pages_read`` with
    readahead, ``transfers``, ``free_pages``. All zero before the first file."""
    counts = (ctypes.c_uint64 * len(_COUNTS))()
    if _State.bytes is not None and not _State.is_child:
        _checked(_library().foreswap_files_stats(counts), None)
    return dict(zip(_COUNTS, counts))
