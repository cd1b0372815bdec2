"""Runs a command under a seccomp profile in the format of container engines, by libseccomp, as an engine would.

    under_seccomp.py PROFILE COMMAND [ARGUMENT]...

What the format allows and this does not read is an error."""

import ctypes
import json
import os
import sys

seccomp = ctypes.CDLL("libseccomp.so.2")
seccomp.seccomp_init.restype = ctypes.c_void_p
COMPARE = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
SHAPE = {"names", "action", "args", "errnoRet"}


class Condition(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("operation", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def action(name, errno=1):
    return {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000 | errno}[name]


def checked(result, what):
    if result < 0:
        sys.exit(f"under_seccomp: {what}: {os.strerror(-result)}")


profile = json.load(open(sys.argv[1]))
default = action(profile["defaultAction"], profile["defaultErrnoRet"])
context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(default)))
for rule in profile["syscalls"]:
    assert set(rule) <= SHAPE, rule
    taken = ctypes.c_uint32(action(rule["action"], rule.get("errnoRet", 1)))
    conditions = [Condition(c["index"], COMPARE[c["op"]], c["value"], c["valueTwo"]) for c in rule.get("args", [])]
    array = (Condition * len(conditions))(*conditions)
    for name in rule["names"]:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            continue  # Newer than this libseccomp: refused, as by an engine of its age.
        checked(seccomp.seccomp_rule_add_array(context, taken, number, len(conditions), array), name)
checked(seccomp.seccomp_load(context), "the filter cannot be loaded")
os.execvp(sys.argv[2], sys.argv[2:])
