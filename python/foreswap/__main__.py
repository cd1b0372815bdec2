"""``python -m foreswap --memory 1G script.py``: the options of ``foreswap run``, then what ``python`` takes (a script, or
``-- -m module``). This process becomes the command."""

import os
import sys
from typing import List, Sequence, Tuple

from ._command import command

# The options of `foreswap run` without a value.
ALONE = {"--strict", "--other-users", "--quiet", "-q", "--help", "-h"}


def split(words: Sequence[str]) -> Tuple[List[str], List[str]]:
    """The options before the script, and the script with its arguments."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        has_value = word in ALONE or "=" in word or (not word.startswith("--") and len(word) > 2)
        at += 1 if has_value else 2
    rest = list(words[at:])
    return list(words[:at]), rest[1:] if rest[:1] == ["--"] else rest


def main() -> None:
    options, script = split(sys.argv[1:])
    if not script and not {"--help", "-h"} & set(options):
        sys.exit("usage: python -m foreswap --memory SIZE [OPTION of `foreswap run`]... SCRIPT [ARGUMENT]...")
    foreswap = command()
    sys.stdout.flush()
    os.execv(foreswap, [foreswap, "run", *options, "--", sys.executable, *script])


main()
