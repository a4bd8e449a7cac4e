"""What a compiled CUDA image (an ELF file) says of its kernels: registers, memory, sizes of the parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Attributes of the .nv.info sections, by number. NVIDIA documents them nowhere; a test holds them against cuobjdump.
_KPARAM_INFO, _KPARAM_INFO_V2 = 0x17, 0x45
_MAX_THREADS, _FRAME_SIZE, _REGCOUNT = 0x05, 0x11, 0x2F
_RESERVED_SYMBOL = ".nv.reservedSmem.offset0"
RESERVED_SHARED = (
    1024  # bytes of each block that the system keeps for itself, counted in the section where the symbol is
)
_SIZED = 4  # the format of an attribute whose data follow it


@dataclass(frozen=True)
class Resources:
    """What one thread or block of a kernel takes; None where `reason` says why.

    registers a thread; shared_bytes a block, without dynamic shared memory; local_bytes a thread (spills and arrays
    that are indexed by a variable); max_threads a block may have. how: "driver" or "cubin".
    """

    registers: int | None
    shared_bytes: int | None
    local_bytes: int | None
    max_threads: int | None
    how: str
    reason: str | None = None


def resources(image: bytes, symbol: str) -> Resources:
    """Read from the image. max_threads is what __launch_bounds__ says, else what the registers allow."""
    try:
        sections = list(_sections(image))
        symbols = _symbol_numbers(sections)
        number = symbols[symbol]
        numbers = {}
        for attribute, payload in _attributes(_content(sections, ".nv.info")):
            if len(payload) == 8:
                index, value = struct.unpack("<II", payload)
                if index == number:
                    numbers[attribute] = value
        registers = numbers.get(_REGCOUNT)
        own = dict(_attributes(_content(sections, f".nv.info.{symbol}")))
        bounds = own.get(_MAX_THREADS)
    except (struct.error, KeyError, ValueError, IndexError, UnicodeDecodeError) as error:
        return Resources(None, None, None, None, "cubin", f"the compiled image cannot be read: {error!r}")
    shared = sum(size for name, _, size, _ in sections if name == f".nv.shared.{symbol}")
    if _RESERVED_SYMBOL in symbols:
        shared = max(0, shared - RESERVED_SHARED)
    threads = 1
    if bounds is not None:
        for value in struct.unpack("<III", bounds[:12]):
            threads *= max(1, value)
    return Resources(
        registers=registers,
        shared_bytes=shared,
        local_bytes=numbers.get(_FRAME_SIZE),
        max_threads=threads if bounds is not None else _threads_by_registers(registers),
        how="cubin",
        reason=None if registers is not None else "the compiled image names no register count",
    )


def parameter_sizes(image: bytes, symbol: str) -> tuple[int, ...] | None:
    """Bytes of each parameter in order; None where the image does not say."""
    try:
        found = {}
        for attribute, payload in _attributes(_content(list(_sections(image)), f".nv.info.{symbol}")):
            if attribute == _KPARAM_INFO and len(payload) == 12:
                _, ordinal, _, packed = struct.unpack("<IHHI", payload)
                found[ordinal] = packed >> 18
            elif attribute == _KPARAM_INFO_V2 and len(payload) >= 12:
                return None
    except (struct.error, KeyError, ValueError, IndexError):
        return None
    return tuple(found[i] for i in sorted(found)) if sorted(found) == list(range(len(found))) else None


def _threads_by_registers(registers: int | None) -> int | None:
    """Threads of the largest block that 65 536 registers hold, given out 256 a warp at a time, four warps at a time."""
    if not registers:
        return None
    warps = 65536 // (-(-registers * 32 // 256) * 256) // 4 * 4
    return min(1024, warps * 32)


_Section = tuple[str, bytes, int, int]  # name, content, size, kind


def _sections(image: bytes) -> Iterator[_Section]:
    if image[:4] != b"\x7fELF" or image[4] != 2:
        raise ValueError("no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", image, 40)
    entry, count, names_at = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * entry) for i in range(count)]
    strings = headers[names_at]
    names = image[strings[4] : strings[4] + strings[5]]
    for name_at, kind, _, _, offset, size in headers:
        name = names[name_at : names.index(b"\0", name_at)].decode()
        yield name, b"" if kind == 8 else image[offset : offset + size], size, kind


def _content(sections: list[_Section], name: str) -> bytes:
    return next(content for other, content, _, _ in sections if other == name)


def _symbol_numbers(sections: list[_Section]) -> dict[str, int]:
    table, names = _content(sections, ".symtab"), _content(sections, ".strtab")
    numbers = {}
    for number in range(len(table) // 24):
        (at,) = struct.unpack_from("<I", table, number * 24)
        numbers[names[at : names.index(b"\0", at)].decode()] = number
    return numbers


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Attribute number and data of each entry. Entries of other formats carry two bytes in their own header."""
    place = 0
    while place + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, place)
        place += 4
        if form == _SIZED:
            yield attribute, content[place : place + size]
            place += size
        else:
            yield attribute, struct.pack("<H", size)
