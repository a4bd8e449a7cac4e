"""Strings that end an answer, found wherever tokens happen to break them."""

from __future__ import annotations

from collections.abc import Sequence

from nearpeak.records.errors import UserError

MOST = 64
LONGEST = 4096


class StopStrings:
    """Takes text in pieces, gives back what surely belongs to the answer.

    The stop string that is complete first ends the text; of several that are complete at the same character, the
    longest. So the result does not depend on how the text was cut into pieces. Raises UserError: an empty stop string,
    more than 64, or one of more than 4,096 characters.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str):
            raise TypeError("stops is one text; a sequence of texts is expected")
        if len(stops) > MOST:
            raise UserError(f"{len(stops)} stop strings are given; at most {MOST} are possible.")
        for stop in stops:
            if not 0 < len(stop) <= LONGEST:
                raise UserError(f"a stop string has {len(stop):,} characters; from 1 to {LONGEST:,} are possible.")
        self.stops = tuple(dict.fromkeys(stops))
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """What may be shown now: all but the longest end that could begin a stop string. Nothing after a stop."""
        if self.found is not None:
            return ""
        held = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self.stops if (at := held.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return held[:at]
        kept = max((_begun(held, stop) for stop in self.stops), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def finish(self) -> str:
        """What was held back; there is no more to come."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop`, without completing it."""
    for count in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:count]):
            return count
    return 0
