"""foreswap.open: in the installed package (scripts/test-wheel), and from the source with FORESWAP_LIBRARY (crates/e2e). The cache is
one for the process, of 2 MiB here, and the file is larger."""

import concurrent.futures
import io
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import textwrap
import unittest

import foreswap

CACHE = 2 << 20
CONTENT = random.Random(1).randbytes(5 * (1 << 20) + 321)


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"))
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name, "content")
        cls.path.write_bytes(CONTENT)

    def open(self):
        file = foreswap.open(self.path, memory=CACHE)
        self.addCleanup(file.close)
        return file

    def test_reads_are_those_of_a_file(self):
        ours = self.open()
        with open(self.path, "rb") as theirs:
            self.assertEqual((ours.readable(), ours.seekable(), ours.writable(), ours.closed), (True, True, False, False))
            choose = random.Random(2)
            for _ in range(300):
                if choose.random() < 0.5:
                    to = choose.choice([(choose.randrange(len(CONTENT) + 9), 0), (-choose.randrange(9999), 2)])
                    self.assertEqual(ours.seek(*to), theirs.seek(*to))
                size = choose.choice([0, 1, 17, 4096, 70_000])
                self.assertEqual(ours.read(size), theirs.read(size))
                self.assertEqual(ours.tell(), theirs.tell())
            for file in (ours, theirs):
                file.seek(len(CONTENT) - 100_000)
            self.assertEqual(ours.readlines(), theirs.readlines())
        ours.seek(0)
        self.assertEqual(ours.read(), CONTENT)
        self.assertEqual((ours.read(1), ours.read()), (b"", b""))
        self.assertEqual(io.BufferedReader(self.open()).read(), CONTENT)

    def test_any_writable_buffer(self):
        file = self.open()
        numpy = __import__("numpy")
        array = numpy.zeros((10, 100), "u4")
        self.assertEqual(file.readinto_at(array, 12_345), 4000)
        self.assertEqual(array.tobytes(), CONTENT[12_345:16_345])
        some = bytearray(1000)
        self.assertEqual(file.readinto(memoryview(some)[100:200]), 100)
        self.assertEqual((some[:100], some[100:200]), (bytes(100), CONTENT[:100]))
        words = __import__("array").array("I", [0] * 10)
        self.assertEqual((file.readinto_at(words, 5), words.tobytes()), (40, CONTENT[5:45]))
        self.assertEqual(file.readinto(bytearray()), 0)
        self.assertEqual(file.readinto_at(some, len(CONTENT) - 10), 10)
        for wrong in (bytes(10), array[:, ::2], "text"):
            with self.assertRaises((TypeError, BufferError)):
                file.readinto_at(wrong, 0)

    def test_it_is_the_cache_that_is_read(self):
        file = self.open()
        file.advise("random")
        file.readinto_at(bytearray(4096), 3 << 20)
        before = foreswap.file_stats()
        file.readinto_at(bytearray(4096), 3 << 20)
        after = foreswap.file_stats()
        self.assertEqual((after["hits"], after["pages_read"]), (before["hits"] + 1, before["pages_read"]))
        self.assertLessEqual(after["free_pages"], CACHE // 4096)
        file.prefetch(4 << 20, 1 << 16)

    def test_threads(self):
        file = self.open()

        def check(seed):
            choose, buffer = random.Random(seed), bytearray(3000)
            for _ in range(500):
                at = choose.randrange(len(CONTENT) - len(buffer))
                file.readinto_at(buffer, at)
                if buffer != CONTENT[at : at + len(buffer)]:
                    return False
            return True

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(check, range(4))), [True] * 4)
            # Closed under the readers: an error, and no crash.
            readers = [pool.submit(check, seed) for seed in range(4)]
            file.close()
            for reader in readers:
                self.assertIsInstance(reader.exception() or reader.result(), (bool, ValueError, OSError))

    def test_errors_name_what_is_wrong(self):
        with self.assertRaises(FileNotFoundError) as caught:
            foreswap.open("/nonexistent", CACHE)
        self.assertEqual(caught.exception.filename, "/nonexistent")
        with self.assertRaisesRegex(OSError, "regular file"):
            foreswap.open("/dev/null", CACHE)
        file = self.open()
        for kind, words, call in [
            (ValueError, "'1M'.*already", lambda: foreswap.open(self.path, memory="1M")),
            (ValueError, "'lots'.*such as", lambda: foreswap.open(self.path, memory="lots")),
            (ValueError, "'backwards'.*sequential", lambda: file.advise("backwards")),
            (ValueError, "offset=-1", lambda: file.readinto_at(bytearray(1), -1)),
            (ValueError, "no position", lambda: file.seek(-1)),
            (ValueError, "whence=9", lambda: file.seek(0, 9)),
        ]:
            with self.assertRaisesRegex(kind, words):
                call()
        self.assertEqual(foreswap.open(self.path, memory="2M").size(), len(CONTENT))
        file.close()
        file.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            file.read(1)

    def test_a_forked_child_is_refused(self):
        code = """
        import os, sys, foreswap
        file = foreswap.open(sys.argv[1])
        file.read(10)
        if (child := os.fork()) == 0:
            for call in (lambda: file.read(1), lambda: foreswap.open(sys.argv[1])):
                try:
                    call()
                    os._exit(1)
                except RuntimeError as error:
                    assert "fork" in str(error)
            file.close()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        file.read(1)
        """
        done = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code), self.path], timeout=60, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
