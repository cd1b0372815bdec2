"""Builds the command and its objects (scripts/build-portable) and puts them into the wheel as files of the environment:
bin/foreswap, where the shell finds it without Python in between, and the objects in lib/foreswap, where the command and
the Python module find them."""

import pathlib
import re
import shutil
import subprocess

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BUILT = HERE / "build/native"
# The C library that scripts/build-portable promises.
PLATFORM = "manylinux_2_28_x86_64"


def version():
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "(.*)"$', text, re.MULTILINE).group(1)


class Wheel(bdist_wheel):
    """A wheel of one platform for every Python 3."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", PLATFORM

    def run(self):
        output = subprocess.run([ROOT / "scripts/build-portable"], check=True, stdout=subprocess.PIPE, text=True).stdout
        shutil.rmtree(BUILT, ignore_errors=True)
        BUILT.mkdir(parents=True)
        for file in re.findall(r"^(/.*) needs glibc [\d.]+$", output, re.MULTILINE):
            packed = BUILT / pathlib.Path(file).name
            shutil.copy(file, packed)
            subprocess.run(["strip", "--strip-unneeded", packed], check=True)
        licences = subprocess.check_output([ROOT / "scripts/third-party-licences"])
        (BUILT / "third-party").write_bytes(licences)
        super().run()


setup(
    version=version(),
    cmdclass={"bdist_wheel": Wheel},
    data_files=[
        ("bin", ["build/native/foreswap"]),
        ("lib/foreswap", [f"build/native/libforeswap_{name}.so" for name in ("preload", "capi", "files_py")]),
        ("share/foreswap", ["build/native/third-party", "../LICENSE-MIT", "../LICENSE-APACHE"]),
    ],
)
