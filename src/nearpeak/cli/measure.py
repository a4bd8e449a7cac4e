"""`nearpeak measure`: what this machine's devices can really sustain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from nearpeak.records.ceiling import Kind

if TYPE_CHECKING:
    from nearpeak.records.machine_profile import MachineProfile

KINDS: tuple[str, ...] = get_args(Kind)
A_CHECK_DID_NOT_HOLD = 3


@click.command("measure")
@click.option("--device", "wanted", multiple=True, help='"cpu", "gpu", or a device\'s id or its beginning; may repeat.')
@click.option("--only", "kinds", multiple=True, type=click.Choice(KINDS), help="Measure this kind only; may repeat.")
@click.option("--quick", is_flag=True, help="Bursts only: do not wait until the clock has settled.")
@click.option("--out", type=click.Path(path_type=Path), help="Save the machine profile here, not in its usual place.")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained page with charts.")
@click.option("--compare", "old_file", type=click.Path(path_type=Path), help="Say what changed since this profile.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as one JSON document.")
def measure(
    wanted: tuple[str, ...],
    kinds: tuple[str, ...],
    quick: bool,
    out: Path | None,
    html: Path | None,
    old_file: Path | None,
    as_json: bool,
) -> int:
    """Measure the ceilings of this machine: FLOP/s in every precision, memory, transfers, launches; with the error of
    each product, the energy, and the clock held meanwhile.

    Exit code 3: --compare found something worse than before by more than its spread.

    Example: nearpeak measure --html measure.html --compare last-month.json
    """
    from nearpeak.ceilings import comparison, profile_file
    from nearpeak.ceilings.measure import describe_machine, measure_machine
    from nearpeak.hardware.catalogue import find_spec
    from nearpeak.hardware.devices import find_devices, select_devices, sensors_of
    from nearpeak.records.errors import UserError
    from nearpeak.records.files import check_writable, make_folder, write_text_atomically
    from nearpeak.report.measure_page import page

    here = find_devices()
    chosen = select_devices(here, wanted)
    machine = describe_machine(here, command_line(), commit())
    target = out or profile_file.default_path(machine.id)
    if out is None:
        make_folder(target.parent)
    old = profile_file.load(old_file) if old_file else None
    # Whatever would fail after minutes of measuring fails now.
    if old:
        comparison.check_same_machine(old, chosen)
    for file in filter(None, (target, html)):
        check_writable(file)
    if html and html.resolve() == target.resolve():
        raise UserError(f"the page and the machine profile would both be written to {html}. Name two files.")

    work = [(device, sensors_of(device), find_spec(device)) for device in chosen]
    with progress_line() as progress:
        profile = measure_machine(work, kinds or KINDS, quick, machine, progress)
    changes = comparison.compare(old, profile) if old else ()
    try:
        print(_keep(profile, target, asked=out is not None), file=sys.stderr)
        if html:
            write_text_atomically(html, page(profile))
            print(f"Page: {html}", file=sys.stderr)
    finally:  # a disk that has filled up meanwhile must not cost what took minutes to measure
        _show(profile, as_json)
    if old:
        from nearpeak.report import comparison_table

        comparison_table.render(changes, _console(stderr=as_json))
    return A_CHECK_DID_NOT_HOLD if comparison.regressed(changes) else 0


def _keep(profile: MachineProfile, target: Path, asked: bool) -> str:
    """Save the profile. In its usual place what it holds of other devices, or more of these, is kept (see coverage)."""
    from nearpeak.ceilings import profile_file
    from nearpeak.ceilings.coverage import merged
    from nearpeak.records.errors import UserError

    if not asked and target.exists():
        # a file that is damaged, or of an older schema, is of no use to anyone
        with suppress(UserError):
            both, kept = merged(profile_file.load(target), profile)
            if all(device.id in kept for device in profile.devices):
                return f"{target} holds a fuller profile and is kept; --out FILE saves this one"
            profile = both
    profile_file.save(profile, target)
    return f"Machine profile: {target}"


def _show(profile: MachineProfile, as_json: bool) -> None:
    if as_json:
        from nearpeak.ceilings.profile_file import to_json

        print(to_json(profile), end="")
        return
    from nearpeak.report import measure_table

    measure_table.render(profile, _console())


def _console(stderr: bool = False):  # type: ignore[no-untyped-def]
    from rich.console import Console

    # A pipe has no width; a fixed one keeps the tables readable there.
    narrow = not (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=110 if narrow else None, highlight=False)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A live line on a terminal, plain lines elsewhere; on standard error: standard output holds the result alone."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True).status("measuring") as status:
        yield lambda text: status.update(f"measuring: {text}")


def command_line() -> str:
    """The command as it was typed, without the program's folder."""
    return " ".join(["nearpeak", *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the checkout that nearpeak runs from, "-dirty" where files differ; None where it is installed."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists():
        return None
    call = ["git", "-c", "safe.directory=*", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(call, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
