"""A family's name for a card: "A100" is sold in four forms, and one of them is meant most often."""

from __future__ import annotations

import re

from nearpeak.hardware.catalogue import find_by_name
from nearpeak.records.errors import UserError
from nearpeak.records.spec import Spec

DATED = "2026-12"
# what people say (letters and digits alone): the form that they mostly mean. Of the data-centre cards: the one that
# most of the collected measurements name (A100: SXM4 80 GB in 106 of 132 rows; H100: SXM5 in 52 of 59). Of the others:
# the one that came first under the name, or that replaced it.
COMMONEST = {
    "a100": "A100 SXM4 80 GB", "a10080gb": "A100 SXM4 80 GB", "a100sxm": "A100 SXM4 80 GB",
    "a100sxm4": "A100 SXM4 80 GB", "a10040gb": "A100 SXM4 40 GB", "a100pcie": "A100 PCIe 80 GB",
    "h100": "H100 SXM5 80 GB", "h10080gb": "H100 SXM5 80 GB", "mi300": "MI300X",
    "v100": "V100 SXM2 16GB", "v100sxm2": "V100 SXM2 16GB", "v10016gb": "V100 SXM2 16GB",
    "2060": "GeForce RTX 2060", "rtx2060": "GeForce RTX 2060", "3080": "GeForce RTX 3080",
    "rtx3080": "GeForce RTX 3080", "pro6000": "RTX PRO 6000 Blackwell", "rtxpro6000": "RTX PRO 6000 Blackwell",
    "agxorin": "Jetson AGX Orin 64 GB", "jetsonagxorin": "Jetson AGX Orin 64 GB",
    "orinnano": "Jetson Orin Nano Super", "jetsonorinnano": "Jetson Orin Nano Super",
}  # fmt: skip


def card_named(text: str) -> tuple[Spec, str | None]:
    """The card that a name means; where it is sold in several forms, the commonest, with a line that says so.

    Raises UserError with the candidates where none of them is the common one, with the nearest names where none fits.
    """
    try:
        return find_by_name(text), None
    except UserError:
        said = re.sub(r"nvidia|amd|[^a-z0-9]", "", text.lower())
        if said not in COMMONEST:
            raise
        name = COMMONEST[said]
        return find_by_name(name), f"{text!r} is sold in several forms: {name} is taken, the commonest one ({DATED})"
