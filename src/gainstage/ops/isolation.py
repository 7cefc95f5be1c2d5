"""Linux namespaces, mounts and capabilities through the C library: what a sandbox process does to itself.

Only the standard library is imported, so that a sandbox starts fast.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys
import sysconfig

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_ATIME = {"noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_LOCKED = {"nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC} | _ATIME
NOBODY = 65534


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object) -> None:
    if getattr(_libc(), name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter_user_namespace(flags: int) -> None:
    """New user namespace together with the given others, mapped to an unprivileged user where that is possible.

    Raises:
        OSError: the kernel does not permit it.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and _readable_by_all(sysconfig.get_paths()["stdlib"]):
        # a root process keeps root's rights on files and no limit on processes, unless another user stands behind it
        _enter_as(flags, NOBODY)
        return
    _call("unshare", NEWUSER | flags)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _enter_as(flags: int, user: int) -> None:
    """The parent namespace's root writes the map, so a forked helper does it."""
    ask, asked = os.pipe()
    target = os.getpid()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(asked)
            os.read(ask, 1)
            _write(f"/proc/{target}/setgroups", "deny")
            _write(f"/proc/{target}/uid_map", f"{user} {user} 1")
            _write(f"/proc/{target}/gid_map", f"{user} {user} 1")
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(ask)
    try:
        _call("unshare", NEWUSER | flags)
    finally:
        os.close(asked)
        _, status = os.waitpid(helper, 0)
    if status != 0:
        raise OSError("uid_map cannot be written")
    os.setresgid(user, user, user)
    _call("prctl", 8, 1, 0, 0, 0)  # keep capabilities over the change of user: the mounts still need them
    os.setresuid(user, user, user)
    _set_capabilities((1 << 41) - 1)


def _readable_by_all(path: str) -> bool:
    for folder in (path, sys.prefix):
        while True:
            if not os.stat(folder).st_mode & stat.S_IXOTH:
                return False
            if folder == os.path.dirname(folder):
                break
            folder = os.path.dirname(folder)
    return True


def close_file_system(folder: str, megabytes: int) -> None:
    """Everything read-only but one memory-backed folder, and a `/proc` of one's own; in a new mount namespace.

    Raises:
        OSError: the kernel does not permit it.
    """
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"size={megabytes}m,mode=700")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        mounts = [line.split() for line in lines]
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for fields in mounts:
        place = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal.group(1), 8)), fields[4])
        options = fields[5].split(",")
        if place == folder or place.startswith("/proc") or "ro" in options:
            continue
        flags = sum(_LOCKED[option] for option in options if option in _LOCKED)
        try:
            _mount("none", place, None, _REMOUNT | _BIND | _RDONLY | flags)
        except OSError:
            if os.access(place, os.W_OK):
                raise


def drop_capabilities() -> None:
    """No capability now, and none to be had by running another program."""
    for capability in range(64):
        if _libc().prctl(24, capability, 0, 0, 0) != 0:
            break
    _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    _set_capabilities(0)


def die_with_parent() -> None:
    """SIGKILL when the parent process ends."""
    _call("prctl", 1, 9, 0, 0, 0)


def limit_processes(count: int) -> bool:
    """An upper bound on process ids of this process namespace (Linux 6.14 and later)."""
    try:
        _write("/proc/sys/kernel/pid_max", str(max(count, 301)))
    except OSError:
        return False
    return True


def _set_capabilities(bits: int) -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _call("capset", ctypes.byref(header), ctypes.byref(data))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if part is None else os.fsencode(part) for part in (source, target, kind, options)]
    _call("mount", encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
