import dataclasses
import errno
import json
import math
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearpeak.ceilings import profile_file
from nearpeak.ceilings.profile_file import default_path, load, save, to_json
from nearpeak.records import files
from nearpeak.records.ceiling import Ceiling
from nearpeak.records.device import Device
from nearpeak.records.errors import UserError
from nearpeak.records.files import write_text_atomically
from nearpeak.records.machine_profile import SCHEMA, DeviceProfile, Machine, MachineProfile
from nearpeak.records.reading import Reading
from nearpeak.records.spec import Spec
from profiles import bare_gpu, cpu_only, h200, replace_ceilings, two_gpus

values = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
readings = st.builds(Reading, value=values | st.lists(st.text()).map(tuple), reason=st.none())
readings |= st.builds(Reading, value=st.none(), reason=st.text())
reading_fields = {f.name: readings for f in dataclasses.fields(Device) if f.type == "Reading"}


def finite(value: object) -> object:
    """The record with 1.5 for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else 1.5
    if isinstance(value, tuple):
        return tuple(map(finite, value))
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{f.name: finite(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value


device_profiles = st.builds(
    DeviceProfile,
    device=st.builds(Device, **reading_fields),
    spec=st.none() | st.builds(Spec),
    ceilings=st.lists(st.builds(Ceiling), max_size=2).map(tuple),
)
made_profiles = st.builds(
    MachineProfile,
    schema=st.just(SCHEMA),
    machine=st.builds(Machine),
    devices=st.lists(device_profiles, max_size=2).map(tuple),
).map(finite)


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 500 + len(str(path))
    return text


def edited(path: Path, change) -> Path:
    document = json.loads(to_json(h200()))
    document = change(document) or document
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_name_longer_than_the_file_system_takes(tmp_path) -> None:
    with pytest.raises(UserError, match="too long"):
        files.check_writable(tmp_path / ("x" * 300))


@pytest.mark.parametrize("make", [h200, cpu_only, bare_gpu, two_gpus])
def test_round_trip(make, tmp_path) -> None:
    save(make(), tmp_path / "profile.json")
    assert load(tmp_path / "profile.json") == make()
    assert os.listdir(tmp_path) == ["profile.json"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(made_profiles)
def test_round_trip_of_any_profile(tmp_path_factory, profile) -> None:
    path = tmp_path_factory.mktemp("made") / "profile.json"
    save(profile, path)
    again = load(path)
    assert again == profile
    assert to_json(again) == to_json(profile)  # so that 1, 1.0 and True stay what they were


def test_numbers_are_numbers_and_absent_is_null() -> None:
    document = json.loads(to_json(bare_gpu()))
    ceiling = document["devices"][0]["ceilings"][0]
    assert ceiling["burst"] == 10.1e12
    assert ceiling["sustained"] is None
    assert document["schema"] == SCHEMA


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_is_not_written(bad, tmp_path) -> None:
    profile = replace_ceilings(h200(), lambda c: dataclasses.replace(c, spread=bad))
    with pytest.raises(ValueError, match=r"devices\[0\]\.ceilings\[0\]\.spread"):
        save(profile, tmp_path / "profile.json")
    assert os.listdir(tmp_path) == []


def ceiling(document):
    return document["devices"][0]["ceilings"][3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: ceiling(d).update(burst="781e12"), "devices[0].ceilings[3].burst"),
        (lambda d: ceiling(d).update(burst=True), "devices[0].ceilings[3].burst"),
        (lambda d: ceiling(d).update(burst=float("nan")), "devices[0].ceilings[3].burst is no finite number"),
        (lambda d: ceiling(d).update(burst=10**400), "devices[0].ceilings[3].burst"),
        (lambda d: ceiling(d).update(kind="matmull"), "devices[0].ceilings[3].kind"),
        (lambda d: ceiling(d).update(speed=1), "[0].ceilings[3].speed is a key that this nearpeak does not know"),
        (lambda d: ceiling(d)["conditions"].update(speed=1), "conditions.speed is a key"),
        (lambda d: ceiling(d)["conditions"]["burst"].update(speed=1), "conditions.burst.speed is a key"),
        (lambda d: d["devices"][0]["device"]["memory"].update(speed=1), "device.memory.speed is a key"),
        (lambda d: d.update(speed=1), "speed is a key"),
        (lambda d: ceiling(d).__delitem__("unit"), "devices[0].ceilings[3].unit is missing"),
        (lambda d: d.__delitem__("machine"), "machine is missing"),
        (lambda d: d["devices"][0]["device"]["memory"].update(value=None), "devices[0].device.memory"),
        (lambda d: d["devices"][0]["device"]["memory"].update(value={}), "memory.value has a value of the wrong type"),
        (lambda d: d.update(schema="nearpeak.machine-profile/2"), "schema is nearpeak.machine-profile/2"),
        (lambda d: d.update(schema=None), "is no nearpeak machine profile"),
        (lambda d: {"schema": "other/1"}, "is no nearpeak machine profile"),
        (lambda d: [d], "is no nearpeak machine profile"),
        (lambda d: d["machine"].update(id="\ud800"), "wrong value"),
    ],
)
def test_a_wrong_document_names_file_and_key(change, said, tmp_path) -> None:
    assert said in refused(edited(tmp_path / "p.json", change))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"hello", b"\xff\xfe\x00", b"null", b"3", b"[" * 200_000, b"1" * 10_000, b'{"a":1} {}']
)
def test_not_json(content, tmp_path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(content)
    refused(path)


def test_missing_file_folder_and_device(tmp_path) -> None:
    assert "No such file" in refused(tmp_path / "none.json")
    refused(tmp_path)
    if os.path.exists("/dev/zero"):
        refused(Path("/dev/zero"))


def test_too_large_a_file(tmp_path, monkeypatch) -> None:
    save(h200(), tmp_path / "p.json")
    monkeypatch.setattr(profile_file, "LARGEST_FILE", 1000)
    assert "too large" in refused(tmp_path / "p.json")


def test_any_cut_is_refused_and_any_flip_refused_or_read_whole(tmp_path) -> None:
    """A flipped digit is another number, which no reader can tell; all else must be an equal profile or a UserError."""
    save(h200(), tmp_path / "p.json")
    whole, path, dice = (tmp_path / "p.json").read_bytes(), tmp_path / "q.json", random.Random(7)
    read = 0
    for _ in range(250):
        path.write_bytes(whole[: dice.randrange(len(whole) - 2)])
        refused(path)
    for _ in range(350):
        broken = bytearray(whole)
        broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
        path.write_bytes(broken)
        try:
            found = load(path)
        except UserError:
            refused(path)  # in one line that names the file
            continue
        read += 1
        before, after = whole.decode().splitlines(), to_json(found).splitlines()
        assert len(before) == len(after)
        assert sum(a != b for a, b in zip(before, after, strict=True)) <= 1  # only the flipped value, if any
        save(found, path)
        assert load(path) == found
    assert 0 < read < 350


def test_the_default_path_stays_in_its_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path("3f9a2c41d0b7").name == "machine-3f9a2c41d0b7.json"
    folder = default_path("x").parent
    for hostile in ("../../etc/passwd", "/etc/passwd", "", "a" * 5000, "a\x00b"):
        assert default_path(hostile).parent == folder
        assert len(default_path(hostile).name) < 150


def test_pydantic_is_imported_only_to_load() -> None:
    code = "import sys, nearpeak.ceilings.profile_file; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": "src"}).returncode == 0


def test_write_replaces_whole_and_keeps_a_link(tmp_path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_text_atomically(link, "new ÷ \ud800")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new ÷ ?"
    assert sorted(os.listdir(tmp_path)) == ["link.txt", "target.txt"]
    assert not stat.S_IMODE(target.stat().st_mode) & 0o111


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(step, failure, tmp_path, monkeypatch) -> None:
    path = tmp_path / "p.json"
    save(cpu_only(), path)

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(files.os, step, fail)
    expected = UserError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        save(h200(), path)
    monkeypatch.undo()
    if expected is UserError:
        assert str(path) in str(caught.value)
        assert "No space left" in str(caught.value)
    assert load(path) == cpu_only()
    assert os.listdir(tmp_path) == ["p.json"]


def test_unwritable_places(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "p.json", Path("/dev/null"), Path("/proc/none/p.json")):
        with pytest.raises(UserError, match=str(path)):
            save(h200(), path)
    assert os.path.exists("/dev/null")
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            save(h200(), tmp_path / "p.json")
    finally:
        tmp_path.chmod(0o700)
