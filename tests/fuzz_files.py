"""Damaged models: one random change or a few to a good folder or GGUF file, of bytes, keys, entries or lengths."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    0, 1, -1, 2, 3, 64, 65, 2**31, 2**63, 10**30, 0.5, 1e308, True, False, None, "", "x", "gelu", [], {}, [1, 2], [[]],
    {"a": 1}, "9" * 300, -0.0, 1e-30,
]  # fmt: skip
NAMES = ["head_dim", "rope_scaling", "sliding_window", "layer_types", "num_experts", "quantization_config",
         "text_config", "partial_rotary_factor", "attention_bias", "mystery"]  # fmt: skip


def damage_bytes(raw: bytes, head: int, draw: random.Random) -> bytes:
    """One to four changes, nearly all of them in the first `head` bytes; or a cut, or something behind the end."""
    data = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(head if draw.random() < 0.9 else len(data))
        kind = draw.choice(["byte", "byte", "bit", "u32", "u64", "cut", "insert", "remove", "zeros", "longer"])
        if kind == "byte":
            data[at] = draw.randrange(256)
        elif kind == "bit":
            data[at] ^= 1 << draw.randrange(8)
        elif kind in ("u32", "u64"):
            code = "<I" if kind == "u32" else "<Q"
            size = struct.calcsize(code)
            value = draw.choice([0, 1, 2, 255, 1 << 20, (1 << 8 * size) - 1, 1 << (8 * size - 1), draw.randrange(1000)])
            data[at : at + size] = struct.pack(code, value)
        elif kind == "cut":
            del data[draw.choice([at, draw.randrange(len(data)), len(data) - draw.randrange(1, 100)]) :]
        elif kind == "insert":
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == "remove":
            del data[at : at + draw.randrange(1, 9)]
        elif kind == "zeros":
            data[at : at + draw.randrange(1, 200)] = b""
        else:
            data += draw.randbytes(draw.randrange(1, 64))
        if len(data) < 2:
            break
        head = min(head, len(data))
    return bytes(data)


def damage_json(value: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One to three entries changed, at any depth: another value, a near one, gone, twice as long, new."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.randint(1, 3)):
        place: Any = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw.choice(keys)
            old = place[key]
            if isinstance(old, (dict, list)) and old and draw.random() < 0.7:
                place = old
                continue
            kind = draw.choice(["value", "near", "gone", "new", "swap"])
            if kind == "value":
                place[key] = draw.choice(VALUES)
            elif kind == "near" and isinstance(old, (int, float)) and not isinstance(old, bool):
                place[key] = draw.choice([old + 1, old - 1, old * 2, -old, old / 2, old * 10**6])
            elif kind == "gone":
                del place[key]
            elif kind == "new" and isinstance(place, dict):
                place[draw.choice(NAMES)] = draw.choice(VALUES)
            else:
                other = draw.choice(keys)
                place[key], place[other] = place[other], place[key]
            break
    return value


class Damaged:
    """Good folders and GGUF files, and damaged copies of them."""

    def __init__(self, good: list[Path], work: Path, seed: int) -> None:
        self.good, self.work, self.draw = good, work, random.Random(seed)

    def next(self) -> Path:
        """The next damaged one; the one before is gone."""
        draw, good = self.draw, self.draw.choice(self.good)
        if good.is_file():
            path = self.work / "x.gguf"
            raw = good.read_bytes()
            path.write_bytes(damage_bytes(raw, min(len(raw), 4000), draw))
            return path
        folder = self.work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        files = sorted(folder.glob("*.safetensors"))
        what = draw.choice(["config", "config", "header", "entries", "entries", "file", "index"])
        index = folder / "model.safetensors.index.json"
        if what == "index" and index.exists():
            index.write_text(json.dumps(damage_json(json.loads(index.read_text()), draw)))
        elif what in ("config", "index"):
            path = folder / "config.json"
            if draw.random() < 0.1:
                path.write_bytes(damage_bytes(path.read_bytes(), path.stat().st_size, draw))
            else:
                path.write_text(json.dumps(damage_json(json.loads(path.read_text()), draw)))
        else:
            path = draw.choice(files)
            raw = path.read_bytes()
            (length,) = struct.unpack("<Q", raw[:8])
            if what == "header":
                path.write_bytes(damage_bytes(raw, 8 + length, draw))
            elif what == "entries":
                header = json.dumps(damage_json(json.loads(raw[8 : 8 + length]), draw)).encode()
                path.write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + length :])
            else:
                draw.choice(
                    [path.unlink, lambda: path.write_bytes(b""), lambda: path.write_bytes(raw[: len(raw) // 2])]
                )()
        return folder
