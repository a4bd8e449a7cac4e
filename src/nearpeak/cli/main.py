"""The `nearpeak` command: finds the subcommand's file, which parses, calls one function and renders."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback

import click

from nearpeak import __version__

# name: (module, what it does). A command's module is imported when it is asked for, so that --help stays instant.
COMMANDS = {
    "measure": ("nearpeak.cli.measure", "Measure what this machine's devices can really sustain."),
    "plan": ("nearpeak.cli.plan", "Which cards fit a model, how fast, at what cost."),
    "run": ("nearpeak.cli.run", "Answer with a local model, and say what the device could have given."),
    "train": ("nearpeak.cli.train", "Train a model on local data, and say what the device could have given."),
    "kernel": ("nearpeak.cli.kernel", "Check a GPU kernel: right, fast, and why not."),
    "devices": ("nearpeak.cli.devices", "List the devices and GPU libraries that are here."),
}


class LazyGroup(click.Group):
    """Lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nearpeak")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; may stand anywhere.")
def cli(debug: bool) -> None:
    """What your devices can sustain, and how close each run came to it. No network is used.

    Example: nearpeak measure --quick
    """


def main() -> None:
    """Exit codes: 0 done; 1 the tool failed; 2 the user's input is wrong; 3 done, but a check did not hold."""
    from nearpeak.records.errors import UserError

    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    debug = arguments != sys.argv[1:]
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # "?" for what a terminal's encoding lacks, and no traceback
    try:
        code = cli.main(arguments, prog_name="nearpeak", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("stopped by Ctrl-C", 130)
    except SystemExit:  # click and rich end so, with code 1, where the reader has had enough: `nearpeak … | head -1`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.exit(0)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, click.ClickException):
            error.show()
            sys.exit(2)
        if isinstance(error, UserError):
            _fail(str(error), 2)
        _fail(f"{type(error).__name__}: {error} (--debug shows where)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> None:
    print(f"nearpeak: {text}", file=sys.stderr)
    sys.exit(code)
