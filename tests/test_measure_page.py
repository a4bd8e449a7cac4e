import dataclasses
import re
from html.parser import HTMLParser
from itertools import pairwise

import matplotlib
import pytest

from nearpeak.records.ceiling import Ceiling
from nearpeak.records.machine_profile import MachineProfile
from nearpeak.report.measure_charts import _apart
from nearpeak.report.measure_page import page
from profiles import bare_gpu, cpu_only, h200, h200_device, matmul, replace_ceilings, two_gpus

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Collects tags, ids and text; fails on a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.uses: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            assert not key.startswith("on"), key
            self.ids += [value or ""] if key == "id" else []
            self.uses += re.findall(r"#([\w-]+)", value or "") if key != "style" else []
            if key.split(":")[-1] in ("src", "href", "action", "data"):
                assert (value or "").startswith("#"), value

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def device(**changes: object) -> MachineProfile:
    return dataclasses.replace(h200(), devices=(dataclasses.replace(h200_device(), **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(("make", "charts"), [(h200, 4), (cpu_only, 3), (bare_gpu, 1), (two_gpus, 8)])
def test_the_page_is_whole_and_fetches_nothing(make, charts) -> None:
    text = page(make())
    found = Page(text)
    assert found.tags.count("svg") == charts
    assert not {"script", "link", "img", "iframe", "object", "embed", "image"} & set(found.tags)
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"url\((?!#)|@import|@font-face", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text
    assert len(found.ids) == len(set(found.ids))
    assert {u for u in found.uses if u} <= set(found.ids)


def test_the_page_holds_figures_conditions_and_sources() -> None:
    text = Page(page(h200())).text
    for part in (
        "bf16→fp32", "781", "663", "67 %", "2.4e-3", "1455 MHz", "690 W", "limited by power cap",
        "matmul/1 by torch.mm",
        "settled in 1.60 s", "8192 cubed", "throttle reasons: none", "other processes: none", "12.7 µs", "4.48 TB/s",
        "NVIDIA H200 data sheet, dense figures, page 2", "580.159.04", "torch 2.11.0+cu130", "2026-12-01", "unverified",
        "the window was shorter than 2 s", "device, NVML counter", "nvml: nvmlDeviceGetMemoryInfo", "PCIe 5.0 x16",
    ):  # fmt: skip
        assert part in text, part


HOSTILE = '</style><script>alert(1)</script><img src=x onerror="y">&amp;\x1b[31m\x00\ud800$\\frac{1}$'


def test_hostile_names_are_escaped_everywhere() -> None:
    def hostile(c: Ceiling) -> Ceiling:
        how = dataclasses.replace(
            c.conditions, how=HOSTILE, limited_by=HOSTILE, other_processes=(HOSTILE,), missing={HOSTILE: HOSTILE},
            emulated=HOSTILE,
        )  # fmt: skip
        return dataclasses.replace(c, precision=HOSTILE, accumulate=HOSTILE, conditions=how)

    profile = replace_ceilings(device(name=HOSTILE, skipped={HOSTILE: HOSTILE}), hostile)
    profile = dataclasses.replace(
        profile, machine=dataclasses.replace(profile.machine, cpu=HOSTILE, command=HOSTILE, versions={HOSTILE: HOSTILE})
    )
    text = page(profile)
    found = Page(text)
    assert not {"script", "img"} & set(found.tags)
    assert "<script" not in text
    assert text.count("</style>") == text.count("<style")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]", text)
    assert "<script>alert(1)</script>" in found.text


def test_a_precision_that_looks_like_mathematics_is_text() -> None:
    def odd(c: Ceiling) -> Ceiling:
        return dataclasses.replace(c, precision="$\\frac{1}$", accumulate="$x_1$") if c.kind == "matmul" else c

    assert Page(page(replace_ceilings(h200(), odd))).tags.count("svg") == 4


def test_absent_is_a_dash_and_the_reason_is_given() -> None:
    text = Page(page(bare_gpu())).text
    assert "No roofline: there is no valid memory read ceiling" in text
    assert "No catalogue entry for this device" in text
    assert "not supported by this driver" in text
    assert not re.search(r"(?<![\d.\w:])0(\.0+)? ?(W|MHz|GiB|B|s|°|TB|J|%)", text)


def test_an_invalid_ceiling_is_in_no_chart_but_its_reason_is_told() -> None:
    def broken(c: Ceiling) -> Ceiling:
        return dataclasses.replace(c, invalid="faster than the spec") if c.kind == "matmul" else c

    found = Page(page(replace_ceilings(h200(), broken)))
    assert found.tags.count("svg") == 0
    assert "invalid: faster than the spec" in found.text


def test_twelve_precisions_and_odd_values() -> None:
    more = tuple(matmul(f"fp{i}", "fp32", 10.0**i, 10.0**i / 2, 10.0**-i) for i in range(1, 13))
    assert Page(page(device(ceilings=more + h200_device().ceilings))).tags.count("svg") == 4
    assert Page(page(device(ceilings=()))).tags.count("svg") == 0
    for odd in (0.0, -1.0, 5e-324, 1e-200, 1.7e308):
        values = replace_ceilings(
            h200(),
            lambda c, odd=odd: dataclasses.replace(
                c, burst=odd, sustained=odd, error=odd, energy_per_unit=odd, spread=odd
            ) if c.precision == "bf16" else c,
        )  # fmt: skip
        Page(page(values))


def test_labels_are_kept_apart() -> None:
    heights = _apart([0.5, 0.5, 0.51, 0.9, 0.99, 0.99], 0.06)
    assert all(b - a > 0.0599 for a, b in pairwise(heights))
    assert max(heights) <= 1
    assert _apart([0.1, 0.9], 0.06) == [0.1, 0.9]


def test_the_page_is_the_same_twice_and_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    assert page(h200()) == page(h200())
    assert dict(matplotlib.rcParams) == before


def test_the_readers_matplotlib_settings_do_not_matter() -> None:
    plain = page(cpu_only())
    with matplotlib.rc_context({"text.usetex": True, "svg.fonttype": "none"}):
        assert page(cpu_only()) == plain
