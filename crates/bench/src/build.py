"""`make -jJOBS` of eight C++ files whose compilers need 320 to 360 MiB each (measured with GCC 12).

Prints one JSON object. Nothing here knows of swap: g++ and make are those of the system. The sources are written below
DIRECTORY, into a folder that is removed at the end. The object files of all turns must be equal: `digest` is of them.

Arguments: DIRECTORY JOBS SOURCE, the last of which is `programs/templates.cc`.
"""

import hashlib
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

FILES = 8
RULES = """
all: {objects}
%.o: %.cc
\tg++ -std=c++20 -O2 -c -o $@ $<
"""


def main(directory, jobs, source):
    source = pathlib.Path(source).read_text()
    with tempfile.TemporaryDirectory(prefix="foreswap-bench-build-", dir=directory) as folder:
        folder = pathlib.Path(folder)
        for n in range(FILES):
            numbers = {"SEED": n + 2, "DEPTH": 60 + 2 * n, "KINDS": 10 + n % 3}
            defines = "".join(f"#define {name} {value}\n" for name, value in numbers.items())
            (folder / f"f{n}.cc").write_text(defines + source)
        objects = [f"f{n}.o" for n in range(FILES)]
        (folder / "Makefile").write_text(RULES.format(objects=" ".join(objects)))
        start = time.monotonic_ns()
        subprocess.run(["make", "-s", f"-j{jobs}", "-C", folder], check=True, stdout=subprocess.DEVNULL)
        elapsed = time.monotonic_ns() - start
        digest = hashlib.sha256()
        for name in objects:
            digest.update((folder / name).read_bytes())
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"build_ns": elapsed, "largest_bytes": largest, "digest": digest.hexdigest()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
