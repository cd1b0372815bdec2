"""Runs a command on a terminal of its own, presses Ctrl-C once it says "ready", and prints what the
terminal showed and the status, as a shell would tell it."""

import os
import pty
import select
import sys
import time

command = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
shown = b""
pressed = False
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    if select.select([terminal], [], [], 0.2)[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    if b"ready" in shown and not pressed:
        time.sleep(0.1)
        os.write(terminal, b"\x03")
        pressed = True
else:
    os.kill(pid, 9)
status = os.waitpid(pid, 0)[1]
print(shown.replace(b"\r\n", b"\n").decode(errors="replace"), end="")
print("status", os.waitstatus_to_exitcode(status))
