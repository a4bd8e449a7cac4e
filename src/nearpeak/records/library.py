"""One library that GPU or CPU work can use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library, or one attention kernel of torch's.

    version        as it names itself; None where it is absent or does not say
    in_use         torch uses it in this process when there is work for it
    detail         one line: where it was found, or why it is not in use
    missing_costs  what its absence costs, in words; None where it is present
    """

    name: str
    version: str | None
    in_use: bool
    detail: str
    missing_costs: str | None = None
