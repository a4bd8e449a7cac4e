"""Cards that a person adds in a file of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogue_help import (
    GIB,
    MIB,
    _no_own_catalogue,  # noqa: F401 (a fixture that acts by being here)
    catalogue,
    found,
    gpu,
    rates,
)
from nearpeak.hardware.catalogue import COLUMNS, find_by_name, find_spec, load_catalogue
from nearpeak.records.errors import UserError

HEADER = (
    "vendor,name,year,device_names,memory_gb,bandwidth_gb_per_s,bf16_tflops,provenance,provenance_exceptions,source"
)
ROW = "NVIDIA,RTX 4500 Ada,2023,NVIDIA RTX 4500 Ada Generation,24,432,158.6,sheet,bf16_tflops=unverified,data sheet"


def own(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "gpus.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_own_row_is_added_last(tmp_path: Path) -> None:
    file = own(tmp_path, HEADER, ROW)
    specs = load_catalogue(file)
    assert len(specs) == 140
    assert specs[-1].name == "RTX 4500 Ada"
    assert specs[:-1] == load_catalogue()
    spec = find_spec(gpu("NVIDIA RTX 4500 Ada Generation", 24570 * MIB), file)
    assert spec is not None
    assert spec == specs[-1]
    assert spec.memory_bandwidth is not None
    assert (spec.memory_bandwidth.value, spec.memory_bandwidth.provenance) == (432e9, "sheet")
    rate = spec.rate("bf16", "fp32")
    assert rate is not None
    assert (rate.figure.value, rate.figure.provenance, rate.figure.source) == (158.6e12, "unverified", "data sheet")
    assert spec.architecture is spec.power is spec.price is None
    assert find_by_name("4500 ada", file) == spec
    assert found("NVIDIA RTX 4500 Ada Generation") is None  # only through the file


def test_own_row_replaces_the_packaged_one_of_that_name(tmp_path: Path) -> None:
    file = own(tmp_path, HEADER, "NVIDIA,l40s,2022,NVIDIA L40S,48,864,361,sheet,,my own sheet")
    specs = {spec.name: spec for spec in load_catalogue(file)}
    assert len(specs) == 139
    assert "L40S" not in specs
    assert rates(specs["l40s"]) == {"bf16_tflops": 361}
    assert rates(catalogue()["L40S"])["bf16_tflops"] == 362


def test_own_row_wins_a_device_name_from_a_packaged_row(tmp_path: Path) -> None:
    file = own(tmp_path, HEADER, "NVIDIA,my 3090,2020,NVIDIA GeForce RTX 3090,24,936.2,70,unverified,,measured")
    spec = find_spec(gpu("NVIDIA GeForce RTX 3090", 24 * GIB), file)
    assert spec is not None
    assert spec.name == "my 3090"


def test_the_default_file_is_in_the_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path)
    assert len(load_catalogue()) == 139  # no file, no complaint
    own(tmp_path, HEADER, ROW)
    assert len(load_catalogue()) == 140
    assert found("NVIDIA RTX 4500 Ada Generation", 24570 * MIB) == "RTX 4500 Ada"


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "catalogue.md").read_text("utf-8")
    example = text.split("```csv\n")[1].split("```")[0]
    added = load_catalogue(own(tmp_path, *example.splitlines()))[139:]
    assert added
    missing_columns = [column for column in COLUMNS if f"`{column}`" not in text]
    assert not missing_columns


def test_spreadsheet_files_with_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "gpus.csv"
    file.write_bytes(f"\ufeff{HEADER}\r\n{ROW}\r\n".encode())
    assert load_catalogue(file)[-1].name == "RTX 4500 Ada"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([""], "line 1: column 'vendor' is missing"),
        ([HEADER.replace("provenance,", ""), ROW], "line 1: column 'provenance' is missing"),
        ([HEADER.replace("bf16_tflops", "bf16_tflop"), ROW], "'bf16_tflop' is unknown (meant: 'bf16_tflops'?)"),
        ([HEADER + ",memory_gb", ROW + ",24"], "line 1: column 'memory_gb' is there twice"),
        ([HEADER.replace(",", ";"), ROW.replace(",", ";")], "line 1: column 'vendor' is missing"),
        ([HEADER, ROW, ROW.replace("432", "fast")], "line 3, column bandwidth_gb_per_s: 'fast' is no number above 0"),
        ([HEADER, ROW.replace("432", "0")], "line 2, column bandwidth_gb_per_s: '0' is no number above 0"),
        ([HEADER, ROW.replace("432", "-432")], "line 2, column bandwidth_gb_per_s: '-432' is no number above 0"),
        ([HEADER, ROW.replace("432", "nan")], "line 2, column bandwidth_gb_per_s: 'nan' is no number above 0"),
        ([HEADER, ROW.replace("432", "inf")], "line 2, column bandwidth_gb_per_s: 'inf' is no number above 0"),
        ([HEADER, ROW.replace("158.6", "1,586")], "line 2: more fields than columns"),
        ([HEADER, ROW.removesuffix(",data sheet")], "line 2: fewer fields than columns"),
        ([HEADER, ROW.replace("data sheet", "")], "line 2, column source: must not be empty"),
        ([HEADER, ROW.replace("RTX 4500 Ada,", ",")], "line 2, column name: must not be empty"),
        ([HEADER, ROW.replace(",sheet,", ",brochure,")], "column provenance: 'brochure' is none of sheet, derived"),
        ([HEADER, ROW.replace("=unverified", "=maybe")], "line 2, column provenance_exceptions: 'maybe' is none of"),
        ([HEADER, ROW.replace("bf16_tflops=", "bf16=")], "line 2, column provenance_exceptions: 'bf16=unverified'"),
        ([HEADER, ROW.replace("158.6", "")], "column provenance_exceptions: 'bf16_tflops=unverified' names no figure"),
        ([HEADER, ROW.replace("2023", "last year")], "line 2, column year: 'last year' is no year"),
        ([HEADER, ROW, ROW.replace("RTX", "rtx")], "line 3, column name: 'rtx 4500 Ada' is already in line 2"),
        ([HEADER, ROW.replace("data sheet", '"data sheet')], "from line 2 on: no valid CSV"),
        ([HEADER + ",memory_shared", ROW + ",perhaps"], "line 2, column memory_shared: 'perhaps' is neither"),
        ([HEADER + ",price_low_usd", ROW + ",100"], "line 2, column price_low_usd: a price needs"),
        (
            [HEADER + ",price_low_usd,price_high_usd,price_source", ROW + ",900,100,shop"],
            "line 2, column price_low_usd: 900 is above price_high_usd, 100",
        ),
    ],
)
def test_a_damaged_file_gives_one_clear_error(tmp_path: Path, lines: list[str], said: str) -> None:
    file = own(tmp_path, *lines)
    for ask in (
        lambda: load_catalogue(file), lambda: find_spec(gpu("NVIDIA L4"), file), lambda: find_by_name("L4", file)
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            ask()
        assert said in str(error.value)
        assert str(error.value).startswith(str(file))
        assert "\n" not in str(error.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_catalogue(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="cannot be read"):
        load_catalogue(tmp_path)
    file = tmp_path / "latin.csv"
    file.write_bytes((HEADER + "\n" + ROW.replace("data sheet", "Datenblätter")).encode("latin-1"))
    with pytest.raises(UserError, match="no UTF-8"):
        load_catalogue(file)
    file.write_bytes(b"\x00\x01\x02")
    with pytest.raises(UserError, match="line 1"):
        load_catalogue(file)
