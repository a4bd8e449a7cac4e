"""What takes minutes: `make test-long`. Its last result is in benchmarks/results/."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import profiles
from nearpeak.ceilings import profile_file
from nearpeak.records.errors import UserError

pytestmark = pytest.mark.long


def test_two_quick_runs_on_this_cpu_agree_within_15_percent(tmp_path: Path) -> None:
    """On a machine that does nothing else. What is compared are medians, so that a short disturbance does not count."""
    runs = []
    for name in ("first.json", "second.json"):
        command = [sys.executable, "-m", "nearpeak", "measure", "--quick", "--device", "cpu", "--out", tmp_path / name]
        subprocess.run(command, check=True, capture_output=True)
        runs.append(json.loads((tmp_path / name).read_text())["devices"][0]["ceilings"])
    apart = {
        f"{a['kind']} {a['precision'] or ''}": round(b["burst"] / a["burst"] - 1, 3) for a, b in zip(*runs, strict=True)
    }
    print(apart)
    assert all(abs(change) <= 0.15 for change in apart.values()), apart


def test_ten_thousand_damaged_profiles_end_in_a_user_error_or_a_profile(tmp_path: Path) -> None:
    whole = profile_file.to_json(profiles.two_gpus()).encode()
    file, dice, refused = tmp_path / "profile.json", random.Random(), 0
    texts = set()
    for _ in range(10_000):
        damaged = bytearray(whole)
        for _ in range(dice.choice((1, 1, 3, 20))):
            at = dice.randrange(len(damaged))
            if dice.random() < 0.2:
                del damaged[at : at + dice.randrange(200)]
            else:
                damaged[at] ^= 1 << dice.randrange(8)
        file.write_bytes(damaged)
        try:
            profile_file.load(file)
        except UserError as error:
            refused += 1
            texts.add(str(error))
    print(refused, "of 10000 refused")
    assert refused > 5_000
    assert all("\n" not in text and str(file) in text for text in texts)
