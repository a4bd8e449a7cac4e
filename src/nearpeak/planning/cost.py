"""Dollars: of cards, of an hour, of a million tokens."""

from __future__ import annotations

from nearpeak.records.spec import Spec

DATED = "2026-12"
YEARS = 3  # over which a bought card is written off, running all the time
HOURS = YEARS * 8766.0


def card_price(spec: Spec | None, given: float | None) -> float | None:
    """US dollars for one card: what the person gives, else the middle of what the catalogue saw in the street."""
    if given is not None:
        return given
    if spec is None or spec.price is None:
        return None
    return (spec.price.low + spec.price.high) / 2


def dollars_an_hour(price: float | None, rented: float | None, watts: float | None, electricity: float) -> float | None:
    """Of one card: the rent, which includes electricity; else its price over YEARS and what it draws."""
    if rented is not None:
        return rented
    if price is None:
        return None
    return price / HOURS + (watts or 0.0) / 1000 * electricity


def cost_per_million(hourly: float | None, count: int, tokens_per_s: float | None) -> float | None:
    """US dollars for a million tokens at a speed that is kept up all the time."""
    if hourly is None or not tokens_per_s:
        return None
    return hourly * count / 3600 / tokens_per_s * 1e6


def assumptions(rented: float | None, given: float | None, electricity: float) -> str:
    """What a cost rests on, in one line."""
    if rented is not None:
        return f"cost: {rented:g} US$ a card and hour, busy all the time"
    price = (
        f"{given:g} US$ a card" if given is not None else f"the catalogue's street prices ({DATED}, middle of range)"
    )
    return f"cost: {price} over {YEARS} years of running all the time, electricity {electricity:g} US$ a kWh"
