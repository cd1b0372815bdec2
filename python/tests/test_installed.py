"""The installed package (scripts/test-wheel): each way to call it, on programs that want about 200 MiB and get 64."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import unittest

import foreswap

MIB = 1 << 20
# Bytes that do not compress, read in an order of their own. Prints a sum of them.
JOB = """
import random, sys
source = random.Random(7)
blocks = [source.randbytes(100_000) for _ in range(2000)]
source.shuffle(blocks)
print(sum(block[source.randrange(100_000)] for _ in range(3) for block in blocks), *sys.argv[1:])
"""


def script(folder):
    path = pathlib.Path(folder, "job.py")
    path.write_text(JOB)
    return str(path)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.script = script(folder.name)
        cls.bare = subprocess.check_output([sys.executable, cls.script, "a b"], text=True)

    def assert_swapped(self, stats):
        self.assertLessEqual(stats["peak_resident_bytes"], 64 * MIB)
        self.assertGreater(stats["swap_out_bytes"], 64 * MIB)

    def test_the_command_is_the_binary_of_the_environment(self):
        place = pathlib.Path(sysconfig.get_path("scripts"), "foreswap").resolve()
        self.assertEqual(foreswap.command(), str(place))
        self.assertEqual(place.read_bytes()[:4], b"\x7fELF")
        version = subprocess.check_output([place, "--version"], text=True)
        self.assertRegex(version, r"^foreswap \d")

    def test_run(self):
        done = foreswap.run([sys.executable, self.script, "a b"], memory="64M", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, self.bare, ""))
        self.assert_swapped(done.stats)

    def test_run_takes_bytes_areas_and_options(self):
        with tempfile.TemporaryDirectory() as area:
            done = foreswap.run(
                [sys.executable, pathlib.Path(self.script), "a b"],
                memory=64 * MIB,
                swap=["ram:16M", pathlib.Path(area)],
                options=["--thp=never"],
                quiet=False,
                capture_output=True,
            )
        self.assertEqual(done.stdout, self.bare.encode())
        self.assertIn(b"foreswap", done.stderr)
        self.assertEqual(done.stats["memory_limit_bytes"], 64 * MIB)

    def test_exit_status_and_signals_are_those_of_the_command(self):
        self.assertEqual(foreswap.run(["sh", "-c", "exit 7"], memory="64M").returncode, 7)
        with self.assertRaises(subprocess.CalledProcessError):
            foreswap.run(["false"], memory="64M", check=True)
        self.assertEqual(foreswap.run(["sh", "-c", "kill -9 $$"], memory="64M").returncode, -9)

    def test_what_cannot_start_is_an_error_with_the_message(self):
        with self.assertRaises(foreswap.NotStarted) as caught:
            foreswap.run(["no-such-program"], memory="64M", capture_output=True)
        self.assertEqual(caught.exception.returncode, 127)
        self.assertIn("no-such-program", str(caught.exception))
        with self.assertRaises(foreswap.NotStarted) as caught:
            foreswap.run(["true"], memory="lots", capture_output=True)
        self.assertEqual(caught.exception.returncode, 2)

    def test_a_timeout_ends_the_command(self):
        with self.assertRaises(subprocess.TimeoutExpired):
            foreswap.run(["sleep", "60"], memory="64M", timeout=0.5)

    def test_module(self):
        with tempfile.TemporaryDirectory() as folder:
            stats = pathlib.Path(folder, "stats.json")
            line = [sys.executable, "-m", "foreswap", "--memory", "64M", "--stats", str(stats), "-q", self.script, "a b"]
            self.assertEqual(subprocess.check_output(line, text=True), self.bare)
            self.assert_swapped(json.loads(stats.read_text()))
        line = [sys.executable, "-m", "foreswap", "-m64M", "-q", "--", "-m", "platform"]
        self.assertIn("Linux", subprocess.check_output(line, text=True))
        wrong = subprocess.run([sys.executable, "-m", "foreswap", "-m64M"], stderr=subprocess.PIPE, text=True)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("usage", wrong.stderr)

    def test_cell_magic(self):
        from IPython.core.interactiveshell import InteractiveShell
        from IPython.utils.capture import capture_output

        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "foreswap")
        with capture_output() as output:
            shell.run_cell_magic("foreswap", "64M --thp=never", JOB)
        lines = output.stdout.splitlines()
        self.assertEqual(lines[0], self.bare.split()[0])
        self.assertRegex(lines[1], r"^foreswap: \d+ of 64 MiB, swapped \d+ MiB out and \d+ MiB in$")
        with capture_output(), self.assertRaisesRegex(RuntimeError, "exit status 3"):
            shell.run_cell_magic("foreswap", "64M", "import sys; sys.exit(3)")
        with self.assertRaisesRegex(ValueError, "%%foreswap 1G"):
            shell.run_cell_magic("foreswap", "--quiet", "pass")

    def test_is_typed(self):
        self.assertTrue((pathlib.Path(foreswap.__file__).parent / "py.typed").exists())
        with tempfile.TemporaryDirectory() as folder:
            user = pathlib.Path(folder, "user.py")
            user.write_text("import foreswap\nstatus: int = foreswap.run(['ls'], memory='1G').returncode\n")
            checked = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={folder}/cache", "-p", "foreswap"]
            for line in (checked, [*checked[:-2], str(user)]):
                done = subprocess.run(line, cwd=folder, stdout=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    os.chdir("/")
    unittest.main()
