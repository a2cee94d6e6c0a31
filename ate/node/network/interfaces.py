"""The few kernel calls of a worker's network that must be quick: addresses, link state, neighbours, namespaces.

ioctl and unshare through ctypes take microseconds where a command takes milliseconds; everything that is not on the
path of a resume is left to ip(8) in `pool.py`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
MS_RDONLY: Final = 1
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
MNT_DETACH: Final = 2

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSARP = 0x8913, 0x8914, 0x8916, 0x891C, 0x8955
_IFF_UP: Final = 1
_ATF_COM, _ATF_PERM = 2, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """unshare(2) for the calling thread."""
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); OSError names the target."""
    _check(
        _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, options.encode()),
        f"mounting {kind or source} at {target}",
    )


def unmount(target: Path | str, flags: int = MNT_DETACH) -> None:
    """umount2(2), lazily unless told otherwise."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), f"unmounting {target}")


def set_up(name: str) -> None:
    """Brings a link up."""
    _set_flags(name, _IFF_UP, 0)


def set_down(name: str) -> None:
    """Takes a link down, and its routes with it."""
    _set_flags(name, 0, _IFF_UP)


def _set_flags(name: str, on: int, off: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", name.encode(), 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), (flags | on) & ~off))


def set_address(name: str, address: str, netmask: str) -> None:
    """Gives a link its IPv4 address and mask."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for code, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, netmask)):
            fcntl.ioctl(control, code, struct.pack("16s", name.encode()) + _inet(value) + bytes(8))


def remove_address(name: str) -> None:
    """Takes a link's IPv4 address away."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFADDR, struct.pack("16s", name.encode()) + _inet("0.0.0.0") + bytes(8))


def set_neighbour(name: str, address: str, mac: str) -> None:
    """A permanent ARP entry, so that no packet ever waits for address resolution (a lost answer costs a second)."""
    hardware = struct.pack("H6s8x", 1, bytes.fromhex(mac.replace(":", "")))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        entry = _inet(address) + hardware + struct.pack("i", _ATF_COM | _ATF_PERM) + bytes(16)
        fcntl.ioctl(control, _SIOCSARP, entry + struct.pack("16s", name.encode()))


def _inet(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
