"""Runs a command from an interactive shell on a terminal of its own: Ctrl-Z once it says "ready",
then `fg`, then the file "go-on". Prints what happened, a line each."""

import os
import pty
import select
import shlex
import sys
import time

command = " ".join(shlex.quote(word) for word in sys.argv[1:])
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
shown = b""


def wait_for(text, seconds=20):
    global shown
    deadline = time.monotonic() + seconds
    while text not in shown:
        if time.monotonic() > deadline:
            print(f"no {text!r} in {shown!r}", file=sys.stderr)
            os.kill(pid, 9)
            sys.exit(1)
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 4096)
            except OSError:
                shown += b"<end>"
    shown = shown[shown.index(text) + len(text) :]


def states():
    """The states of all processes on our terminal but the shell."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == pid:
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        # Its session is the shell's.
        if int(fields[3]) == pid:
            found.add(fields[0])
    return "".join(sorted(found))


os.write(terminal, b"PS1=''; bind 'set enable-bracketed-paste off'; stty -echo; echo s''tarted\n")
wait_for(b"started\r\n")
os.write(terminal, command.encode() + b"; echo ended $?\n")
wait_for(b"ready\r\n")
print("ready")
time.sleep(0.2)
os.write(terminal, b"\x1a")
wait_for(b"Stopped")
deadline = time.monotonic() + 5
while states() != "T" and time.monotonic() < deadline:
    time.sleep(0.05)
print("stopped", states())
os.write(terminal, b"fg\n")
time.sleep(0.3)
open("go-on", "w").close()
wait_for(b"went on\r\n")
print("went on")
# `fg` ends with the command's status; the list after the stopped command is gone.
os.write(terminal, b"echo ended $?\n")
wait_for(b"ended 0\r\n")
print("ended 0")
os.write(terminal, b"exit\n")
wait_for(b"<end>")
os.waitpid(pid, 0)
