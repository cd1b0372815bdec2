"""Arrays beyond RAM: in the installed package (scripts/test-wheel), and from the source with FORESWAP_LIBRARY (crates/e2e).
Each test is a Python of its own, as a process has one engine."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = pathlib.Path(__file__).resolve().parent

BEGIN = """
import gc, multiprocessing, os, subprocess, sys, threading, time
import numpy as np
import foreswap
MIB = 1 << 20
def absent(array):
    # Pages that are not in memory, by the kernel's pagemap.
    first, pages = array.ctypes.data // 4096, array.nbytes // 4096
    with open("/proc/self/pagemap", "rb") as map:
        map.seek(first * 8)
        return pages - int((np.frombuffer(map.read(pages * 8), "u8") >> 63).sum())
def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")
"""


class Arrays(unittest.TestCase):
    def run_python(self, code, *arguments, returncode=0, may_say="", **more):
        line = [sys.executable, "-W", "error", "-c", BEGIN + textwrap.dedent(code), *map(str, arguments)]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, **more)
        said = [line for line in done.stderr.splitlines() if not may_say or may_say not in line]
        self.assertEqual((done.returncode, said), (returncode, []), done.stdout)
        return done.stdout

    def test_an_array_of_four_times_the_memory(self):
        self.run_python(
            """
            a = foreswap.empty((32, MIB // 4), "u8", memory="16M")
            assert a.shape == (32, MIB // 4) and a.dtype == np.uint64 and a.flags.c_contiguous
            assert a[5, 7] == 0
            a[...] = np.arange(a.size, dtype="u8").reshape(a.shape)
            assert absent(a) >= 48 * MIB // 4096
            assert a.sum() == a.size * (a.size - 1) // 2
            a += 1
            order = np.random.default_rng(1).permutation(a.size)[:5000]
            assert (a.reshape(-1)[order] == order + 1).all()
            stats = foreswap.memory_stats()
            assert stats["limit_bytes"] == 16 * MIB >= stats["resident_bytes"]
            assert stats["totals"]["swap_out_bytes"] > 40 * MIB
            """
        )

    def test_views_keep_the_region_and_nothing_else_does(self):
        self.run_python(
            """
            def mappings():
                with open("/proc/self/maps") as maps:
                    return {line.split("-")[0] for line in maps}
            a = foreswap.full((8, MIB), 3, "u1", memory="16M")
            at = f"{a.ctypes.data:x}"
            view = a[3].view("u4")[10:20]
            del a
            gc.collect()
            assert at in mappings() and view.sum() == 10 * 0x03030303
            del view
            gc.collect()
            assert at not in mappings()
            for turn in range(20):
                b = foreswap.empty(MIB)
                assert not b.any()
                b[:] = turn
            """
        )

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_python(
                """
                path = sys.argv[1] + "/x.npy"
                for array in (np.arange(3e6).reshape(1000, 3000), np.arange(3e6).reshape(1000, 3000).T,
                              np.array(5), np.zeros((0, 3)), np.array(["a", "bcd"]), np.array([(1, 2.5)], "i2,f8")):
                    np.save(path, array)
                    loaded = foreswap.load(path, memory="16M")
                    assert loaded.shape == array.shape and loaded.dtype == array.dtype and (loaded == array).all()
                    assert loaded.flags.f_contiguous == array.flags.f_contiguous
                np.save(path, np.arange(100))
                os.truncate(path, 500)
                raises(ValueError, "428 bytes before", lambda: foreswap.load(path))
                np.save(path, np.array([{}], object), allow_pickle=True)
                raises(TypeError, "Python objects", lambda: foreswap.load(path))
                with open(path, "w") as file:
                    file.write("text")
                raises(ValueError, ".npy", lambda: foreswap.load(path))
                # System calls write from absent pages and read into them.
                a = foreswap.empty(6 * MIB)
                a[:] = np.arange(a.size)
                a.tofile(path)
                b = foreswap.empty(6 * MIB)
                with open(path, "rb", buffering=0) as file:
                    assert file.readinto(b) == b.nbytes
                assert (b == np.arange(b.size)).all()
                """,
                folder,
            )

    def test_children(self):
        self.run_python(
            """
            a = foreswap.empty(6 * MIB, memory="16M")
            a[:] = np.arange(a.size)
            def part(n):
                mine = a[n * MIB : (n + 1) * MIB]
                right = bool((mine == np.arange(n * MIB, (n + 1) * MIB)).all())
                mine[:] = -1
                other = foreswap.full(MIB, n)
                return right and (mine == -1).all() and (other == n).all()
            stop = threading.Event()
            b = foreswap.empty(MIB)
            def write():
                while not stop.is_set():
                    b[:] = time.monotonic()
            thread = threading.Thread(target=write)
            thread.start()
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert all(pool.map(part, range(6)))
            assert subprocess.run(["echo", "x"], stdout=subprocess.PIPE).stdout == b"x\\n"
            assert subprocess.run(["true"], preexec_fn=lambda: None).returncode == 0
            assert os.system("exit 3") == 3 << 8
            stop.set()
            thread.join()
            assert (a == np.arange(a.size)).all()
            """,
            # Pages that a fork shares cannot be moved out at once, and on a busy machine the limit passes meanwhile.
            may_say="shared with forked processes",
        )

    def test_the_limit(self):
        self.run_python(
            """
            raises(foreswap.ArrayError, "foreswap_open", foreswap.memory_stats)
            raises(foreswap.ArrayError, "'lots'", lambda: foreswap.empty(5, memory="lots"))
            raises(foreswap.ArrayError, "/no/such", lambda: foreswap.empty(5, memory="16M", swap="/no/such"))
            foreswap.limit("16M", options=["--thp=never"])
            a = foreswap.empty(5, memory="16M")
            raises(ValueError, "foreswap.limit('1G')", lambda: foreswap.empty(5, memory="1G"))
            raises(ValueError, "swapon", lambda: foreswap.limit("1G", swap="/tmp"))
            foreswap.limit(32 * MIB)
            assert foreswap.memory_stats()["limit_bytes"] == 32 * MIB
            b = foreswap.zeros((2, 3), memory=32 * MIB)
            raises(foreswap.ArrayError, "expected a size", lambda: foreswap.limit("x"))
            """
        )

    def test_what_cannot_be_an_array(self):
        self.run_python(
            """
            raises(TypeError, "Python objects", lambda: foreswap.empty(5, object))
            raises(ValueError, "negative", lambda: foreswap.empty((3, -1)))
            raises(ValueError, "order", lambda: foreswap.empty(3, order="X"))
            raises(foreswap.ArrayError, "64 TiB", lambda: foreswap.empty(1 << 60, memory="16M"))
            raises(foreswap.ArrayError, "147573952589676412936 bytes", lambda: foreswap.empty((1 << 64) + 1))
            # More dimensions than NumPy has. The region that was mapped for them goes.
            def mapped():
                with open("/proc/self/statm") as numbers:
                    return int(numbers.read().split()[0]) * 4096
            before = mapped()
            raises(ValueError, "dimension", lambda: foreswap.empty((1,) * 70 + (1 << 34,), "u1"))
            assert mapped() < before + (1 << 33)
            a = foreswap.empty((MIB, 2))
            raises(ValueError, "willneed", lambda: foreswap.advise(a, "soon"))
            raises(ValueError, "contiguous", lambda: foreswap.advise(a[:, 0], "cold"))
            raises(foreswap.ArrayError, "region", lambda: foreswap.advise(np.zeros(5), "cold"))
            for word in ("sequential", "random", "cold", "pageout", "willneed", "normal"):
                foreswap.advise(a, word)
            assert foreswap.empty(0).shape == (0,) and foreswap.full((), 7).item() == 7
            assert foreswap.full(3, 1.5).dtype == float
            """
        )

    def test_the_interpreter_ends_with_arrays_in_use(self):
        self.run_python(
            """
            a = foreswap.empty(6 * MIB, memory="16M")
            def use():
                while True:
                    a[:] = 1
            threading.Thread(target=use, daemon=True).start()
            time.sleep(0.2)
            """
        )

    def test_the_examples_run(self):
        folders = (HERE, HERE.parent / "examples")
        paths = [path for folder in folders for path in folder.glob("*.ipynb")]
        self.assertEqual([path.name for path in paths], ["arrays.ipynb"])
        try:
            import nbclient
            import nbformat
        except ImportError:
            # scripts/test-wheel installs it. Here the cells are run without a notebook.
            cells = json.loads(paths[0].read_text())["cells"]
            code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
            said = self.run_python(code)
        else:
            book = nbformat.read(paths[0], as_version=4)
            nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
            said = str([cell.get("outputs") for cell in book.cells])
        self.assertIn("sum is right: True", said)


if __name__ == "__main__":
    os.chdir("/")
    unittest.main()
