"""Types of the standard library that Django developers meet now and then, as registrations.

They show what `register` is for; a project registers its own (a Point, a Money) in the same way.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath

from rivet_workflows.codec.names import register


def register_extras() -> None:
    """Called once, when the codec is imported."""
    for address in (
        ipaddress.IPv4Address,
        ipaddress.IPv6Address,
        ipaddress.IPv4Network,
        ipaddress.IPv6Network,
        ipaddress.IPv4Interface,
        ipaddress.IPv6Interface,
    ):
        register(address, name=f"ipaddress:{address.__name__}", encode=str, decode=address)
    register(type(Path()), name="pathlib:Path", encode=str, decode=Path)
    register(PurePosixPath, name="pathlib:PurePosixPath", encode=str, decode=PurePosixPath)
    register(PureWindowsPath, name="pathlib:PureWindowsPath", encode=str, decode=PureWindowsPath)
    register(Fraction, name="fractions:Fraction", encode=str, decode=Fraction)
    register(bytearray, name="builtins:bytearray", encode=bytes, decode=bytearray)
    register(
        complex,
        name="builtins:complex",
        encode=lambda z: [z.real, z.imag],
        decode=lambda parts: complex(*parts),
    )
    register(
        range,
        name="builtins:range",
        encode=lambda r: [r.start, r.stop, r.step],
        decode=lambda parts: range(*parts),
    )
    register(
        deque,
        name="collections:deque",
        encode=lambda queue: [list(queue), queue.maxlen],
        decode=lambda parts: deque(*parts),
    )
