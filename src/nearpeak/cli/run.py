"""`nearpeak run`: a local model answers, and the run is held against what the device could have given."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.inference.sampling import Sampling
    from nearpeak.inference.session import Session
    from nearpeak.models.tokenizer import Tokenizer
    from nearpeak.records.device import Device
    from nearpeak.records.machine_profile import DeviceProfile
    from nearpeak.records.outcome import Outcome

A_CHECK_DID_NOT_HOLD = 3
PRECISIONS = ("bf16", "fp16", "fp32", "int8", "int4")
CONVERSATION = 4096
"""Positions that a conversation has room for, where nothing else is asked and the model has so many."""


@click.command("run")
@click.argument("model", metavar="MODEL")
@click.argument("prompt", required=False)
@click.option("--chat", is_flag=True, help="Hold a conversation: one message a line, until end of file or Ctrl-C.")
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without the model's chat template.")
@click.option("--system", help="What the model is told before the conversation.")
@click.option("--max-tokens", type=int, default=512, show_default=True, help="The longest answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: always the likeliest token.")
@click.option("--top-k", type=int, default=0, help="Draw from the K likeliest tokens only; 0: from all.")
@click.option("--top-p", type=float, default=1.0, help="Draw from the likeliest tokens that together have P.")
@click.option("--min-p", type=float, default=0.0, help="Leave out tokens less likely than P times the likeliest.")
@click.option("--seed", type=int, help="The same draws again.")
@click.option("--stop", "stops", multiple=True, help="End the answer before this text; may repeat.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True, help="Of the weights.")
@click.option("--device", help='"cpu", "gpu", or a device\'s id or its beginning.')
@click.option("--context", type=int, help="Positions to make room for. Without it as many as prompt and answer need.")
@click.option("--logprobs", type=int, help="Tell each token's log-probability, and those of the K likeliest.")
@click.option("--lora", type=click.Path(path_type=Path), help="A peft adapter's folder, merged into the weights.")
@click.option("--profile", type=click.Path(path_type=Path), help="A machine profile, in place of the kept one.")
@click.option("--check", is_flag=True, help="Compare the logits with the reference path in fp32: do they agree?")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON document.")
def run(
    model: str,
    prompt: str | None,
    chat: bool,
    raw: bool,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    stops: tuple[str, ...],
    precision: str,
    device: str | None,
    context: int | None,
    logprobs: int | None,
    lora: Path | None,
    profile: Path | None,
    check: bool,
    as_json: bool,
) -> int:
    """Answer PROMPT with the model in a folder or a .gguf file, on this machine alone. The text goes to standard
    output; speed, energy and the share of the limit go to standard error.

    Exit code 3: --check found that the logits do not agree.

    Example: nearpeak run SmolLM2-135M-Instruct.Q4_1.gguf "What is the capital of France?"
    """
    from nearpeak.ceilings import profile_file
    from nearpeak.inference.sampling import Sampling
    from nearpeak.inference.stop_strings import StopStrings
    from nearpeak.models.read import read_model
    from nearpeak.records.errors import UserError

    # What can be refused without torch is refused first: importing it takes seconds.
    if temperature == 0 and (top_k or top_p != 1 or min_p):
        raise UserError("--top-k, --top-p and --min-p choose among draws; at --temperature 0 nothing is drawn.")
    sampling = Sampling(temperature, top_k, top_p, min_p, secrets.randbelow(1 << 32) if seed is None else seed)
    StopStrings(stops)
    if max_tokens < 1:
        raise UserError(f"--max-tokens is {max_tokens}; 1 is the least")
    if chat and as_json:
        raise UserError("--chat is a conversation on a terminal, --json one document. Leave one of them out.")
    if raw and (system is not None or chat):
        raise UserError("--raw leaves the chat template out, so it goes with neither --system nor --chat.")
    if logprobs is not None and not as_json:
        raise UserError("--logprobs are told in the JSON document: add --json.")
    if check and prompt is not None:
        raise UserError("--check compares logits of random tokens: it takes no prompt.")
    if lora is not None and not lora.is_dir():
        raise UserError(f"--lora {lora} is no folder. Name the folder of a peft adapter.")
    if not Path(model).expanduser().exists():
        read_model(model)  # says that it is not there; a known name is told below
    if prompt == "-" or (prompt is None and not chat and not check and not sys.stdin.isatty()):
        prompt = sys.stdin.read()
    if not prompt and not chat and not check:
        raise UserError('nothing is asked. Give a prompt: nearpeak run MODEL "What is the capital of France?"')
    if profile:
        profile_file.load(profile)  # what is wrong with it is told before the model is read
    # Threads that wait for each other sleep. Spinning, one that another process has displaced holds up all the rest:
    # seen with one busy process beside two threads: 1,176 ms a token against 19. Read when OpenMP is loaded, so now.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    wanted = (model, precision, device, context, lora)
    if check:
        return _check(wanted, as_json)
    request = _Request(sampling, max_tokens, stops, logprobs, profile)
    if chat:
        return _converse(wanted, prompt, system, request)
    return _once(wanted, prompt or "", system, raw, request, as_json)


@dataclass(frozen=True)
class _Request:
    """What stays the same from turn to turn."""

    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    logprobs: int | None
    profile: Path | None


def _once(wanted: tuple[Any, ...], prompt: str, system: str | None, raw: bool, request: _Request, as_json: bool) -> int:
    from nearpeak.inference.session import Wanted, open_session

    session, ids = open_session(Wanted(*wanted), lambda t: _ids(t, prompt, system, raw), request.max_tokens, _note)
    outcome = _answer(session, ids, request, None if as_json else _say)
    if as_json:
        print(json.dumps(asdict(outcome), ensure_ascii=False, allow_nan=False, indent=1))
    else:
        _show(outcome)
    return 0


def _ids(tokenizer: Tokenizer, prompt: str, system: str | None, raw: bool) -> list[int]:
    """Through the chat template where the model has one, and --raw does not leave it out."""
    from nearpeak.records.errors import UserError

    if raw or tokenizer.chat_template is None:
        if system is not None:
            raise UserError("this model has no chat template, so it has no place for --system.")
        if not raw:
            _note("this model has no chat template: the prompt is continued as text")
        return tokenizer.encode(prompt)
    return tokenizer.encode_chat([*_told(system), {"role": "user", "content": prompt}])


def _told(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _answer(session: Session, ids: Sequence[int], request: _Request, say: Callable[[str], None] | None) -> Outcome:
    """say None: the text is in the document alone."""
    from nearpeak.inference.engine import Asked
    from nearpeak.inference.outcome import outcome_of

    asked = Asked(tuple(ids), request.sampling, request.max_tokens, request.stops, request.logprobs)
    answer, ran, load = session.answer(asked, say or (lambda text: None))
    if say:
        say("\n")
    outcome = outcome_of(answer, ran, session.spec, _sustains(session.device, ran.compute, request.profile), load)
    outcome.result["sampling"] = asdict(request.sampling)
    if answer.logprobs:
        outcome.result["logprobs"] = [_told_token(session.tokenizer, one) for one in answer.logprobs]
    return outcome


def _told_token(tokenizer: Tokenizer, pairs: list[tuple[int, float]]) -> dict[str, object]:
    """The chosen token first, then the likeliest."""

    def one(token: int, logprob: float) -> dict[str, object]:
        text = tokenizer.token_bytes(token).decode("utf-8", "replace")
        return {"token": token, "text": text, "logprob": logprob if math.isfinite(logprob) else None}

    return {**one(*pairs[0]), "likeliest": [one(*pair) for pair in pairs[1:]]}


def _converse(wanted: tuple[Any, ...], first: str | None, system: str | None, request: _Request) -> int:
    """Message and answer in turn. The conversation so far stays in the cache."""
    from nearpeak.inference.session import Wanted, open_session
    from nearpeak.records.errors import UserError

    messages = _told(system)
    lines = iter(_read_line, None)
    message = first if first is not None else next(lines, None)
    session = None
    while message is not None:
        messages.append({"role": "user", "content": message})

        def ids_of(tokenizer: Tokenizer) -> list[int]:
            return tokenizer.encode_chat(messages)

        if session is None:
            session, ids = open_session(Wanted(*wanted), ids_of, request.max_tokens, _note, CONVERSATION)
        else:
            ids = tuple(ids_of(session.tokenizer))
        try:
            outcome = _answer(session, ids, request, _say)
        except UserError as error:  # one message that does not fit leaves the conversation as it was
            print(f"nearpeak: {error}", file=sys.stderr)
            messages.pop()
        else:
            _show(outcome)
            messages.append({"role": "assistant", "content": str(outcome.result["text"])})
        message = next(lines, None)
    return 0


def _read_line() -> str | None:
    """One message; None at the end of input. Empty lines are passed over."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return None
        if line.strip():
            return line.rstrip("\n")


def _check(wanted: tuple[Any, ...], as_json: bool) -> int:
    from nearpeak.inference.session import Wanted, check

    found = check(Wanted(*wanted), _note)
    if as_json:
        facts = {"schema": "nearpeak.check/1", "command": "run --check", "model": wanted[0], "precision": wanted[1]}
        print(json.dumps({**facts, **asdict(found)}, indent=1))
    else:
        from nearpeak.report.run_table import check_lines

        print("\n".join(check_lines(asdict(found))))
    return 0 if found.agree else A_CHECK_DID_NOT_HOLD


@cache  # a conversation asks each turn
def _sustains(device: Device, compute: str, profile: Path | None) -> DeviceProfile | None:
    """The device in the machine profile that is named, or kept; where there is none, the few ceilings that a run needs
    are measured now, after the answer, so that nobody waits for them."""
    import torch

    from nearpeak.ceilings import profile_file
    from nearpeak.ceilings.bench import Bench
    from nearpeak.ceilings.needed import measure_needed
    from nearpeak.hardware.catalogue import find_spec
    from nearpeak.hardware.devices import sensors_of
    from nearpeak.planning.machine import kept_profile
    from nearpeak.records.errors import UserError

    kept = profile_file.load(profile) if profile else kept_profile((device,) if device.kind == "gpu" else ())
    found = next((d for d in kept.devices if (d.id, d.name) == (device.id, device.name)), None) if kept else None
    if profile and found is None:
        raise UserError(
            f"{profile} has no ceilings of {device.name}, which the model ran on. Measure it, or leave it out."
        )
    if found is None:
        _note(f"measuring what {device.name} can give (`nearpeak measure` keeps it for the next time)")
        place = torch.device(device.torch_name or "cpu")
        bench = Bench(device, place, sensors_of(device), find_spec(device), True)
        found = measure_needed(bench, *((precision, "fp32") for precision in {compute, "fp32"}))
    return found


def _say(text: str) -> None:
    print(text, end="", flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(outcome: Outcome) -> None:
    from rich.console import Console

    from nearpeak.report.run_table import render

    narrow = not sys.stderr.isatty()
    render(asdict(outcome), Console(stderr=True, width=110 if narrow else None, highlight=False))
