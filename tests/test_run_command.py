"""`nearpeak run` as a whole: folders and GGUF files of tiny random models, refusals, conversations, --check, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from nearpeak.cli import run as run_module
from nearpeak.cli.main import cli
from nearpeak.records.errors import UserError
from profiles import cpu_only
from tiny_folders import save_tiny
from tokenizer_files import byte_level, save

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of three layers with a tokenizer of its own and a chat template."""
    torch.manual_seed(3)
    where = tmp_path_factory.mktemp("llama")
    write_tokenizer(where)
    save_tiny(where, "llama", more={"vocab_size": 512})
    return where


def write_tokenizer(where: Path) -> None:
    save(where, byte_level(specials=SPECIALS), {"chat_template": TEMPLATE, "eos_token": "<|im_end|>"})


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second of measuring for each test: one profile for all."""
    monkeypatch.setattr(run_module, "_sustains", lambda device, compute, profile: cpu_only().devices[0])


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, arguments)], input=stdin, standalone_mode=False)


def refused(*arguments: object) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


def document(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def test_an_answer_and_what_it_took(folder: Path) -> None:
    done = run(folder, "the quick brown fox", "--max-tokens", 12)
    assert done.exit_code == 0, done.output
    assert "tokens/s" not in done.stdout
    for word in ("prefill", "decode", "limit", "TTFT", "TPOT", "read a token", "ended by"):
        assert word in done.stderr


def test_the_document(folder: Path) -> None:
    body = document(folder, "the quick brown fox", "--max-tokens", 9, "--logprobs", 2)
    assert (body["schema"], body["command"]) == ("nearpeak.outcome/1", "run")
    assert set(body["got"]) == set(body["limit"]) == set(body["share"])
    result = body["result"]
    assert result["generated_tokens"] == len(result["logprobs"]) == 9 or result["stopped_by"] == "end of sequence"
    assert result["ttft_s"] > 0
    assert {"token", "text", "logprob", "likeliest"} == set(result["logprobs"][0])
    assert result["load"]["bytes"] > 0
    assert body["memory_bytes"] > 0


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "int8", "int4"])
def test_greedy_text_is_the_same_each_time(folder: Path, precision: str) -> None:
    first, second = (
        document(folder, "the user's text", "--max-tokens", 16, "--precision", precision)["result"]["text"]
        for _ in range(2)
    )
    assert first == second


def test_greedy_tokens_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    from nearpeak.models.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(folder)
    ids = torch.tensor([tokenizer.encode_chat([{"role": "user", "content": "the end of the tool"}])])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=list(tokenizer.ends))
    answer = document(folder, "the end of the tool", "--max-tokens", 24, "--precision", "fp32")["result"]
    assert answer["text"] == tokenizer.decode(theirs[0, ids.shape[1] :].tolist())


def test_a_seed_repeats_the_draws_and_another_does_not(folder: Path) -> None:
    def text(seed: int) -> str:
        options = ("--temperature", 1.5, "--top-p", 0.95, "--max-tokens", 20, "--seed", seed)
        return str(document(folder, "the quick", *options)["result"]["text"])

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(4)}) > 1


def test_a_drawn_seed_is_told_so_that_the_run_can_be_repeated(folder: Path) -> None:
    first = document(folder, "the quick", "--temperature", 1.5, "--max-tokens", 12)["result"]
    seed = first["sampling"]["seed"]
    assert (
        document(folder, "the quick", "--temperature", 1.5, "--max-tokens", 12, "--seed", seed)["result"]["text"]
        == first["text"]
    )


def test_a_prompt_may_come_from_standard_input(folder: Path) -> None:
    for arguments in (["-"], []):
        done = run(folder, *arguments, "--max-tokens", 2, stdin="the quick brown fox")
        assert done.exit_code == 0, done.output
    empty = run(folder, "-", stdin="")
    assert "nothing is asked" in str(empty.exception)


def test_raw_leaves_the_template_out(folder: Path) -> None:
    raw, chat = document(folder, "the fox", "--raw", "--max-tokens", 2), document(folder, "the fox", "--max-tokens", 2)
    assert raw["result"]["prompt_tokens"] < chat["result"]["prompt_tokens"]


def test_a_conversation_reads_only_what_is_new(folder: Path) -> None:
    done = run(folder, "--chat", "--max-tokens", 4, stdin="the quick brown fox\n\nthe lazy dog\n")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("ended by") == 2


def test_a_message_that_does_not_fit_leaves_the_conversation_as_it_was(folder: Path) -> None:
    done = run(folder, "--chat", "--context", 60, "--max-tokens", 4, stdin=f"the fox\n{'dog ' * 100}\nthe dog\n")
    assert done.exit_code == 0, done.output
    assert "60" in done.stderr
    assert done.stderr.count("ended by") == 2


def test_check_agrees(folder: Path) -> None:
    for precision in ("bf16", "int8"):
        done = run(folder, "--check", "--precision", precision)
        assert done.return_value == 0, done.output
        assert "the logits agree" in done.stdout


def test_check_finds_a_fast_path_that_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearpeak.kernels import cpu_decode

    right = cpu_decode.attend
    monkeypatch.setattr(cpu_decode, "attend", lambda *a: right(*a[:9], 3, *a[10:]))  # a window that nobody asked for
    done = run(folder, "--check")
    assert done.return_value == 3
    assert "DO NOT AGREE" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", 0], ["--max-tokens", "0"]),
        (["--temperature", -1], ["-1"]),
        (["--top-p", 0], ["0"]),
        (["--context", 4], ["4"]),
        (["--context", 10**6], ["1,000,000", "128"]),
        (["--raw", "--system", "x"], ["--raw"]),
        (["--top-k", 5], ["--top-k", "--temperature"]),
        (["--logprobs", 2], ["--logprobs", "--json"]),
        (["--check"], ["--check", "no prompt"]),
        (["--chat", "--json"], ["--chat"]),
        (["--device", "cuda:7"], ["cuda:7"]),
        (["--lora", "/dev/null/nowhere"], ["/dev/null/nowhere"]),
        (["--profile", "/dev/null/p.json"], ["/dev/null/p.json"]),
        (["--stop", ""], ["stop"]),
        (["--logprobs", -1, "--json"], ["-1"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_numbers(
    folder: Path, arguments: list[object], words: list[str]
) -> None:
    text = refused(folder, "the quick brown fox", *arguments)
    assert all(word in text for word in words), text


def test_a_prompt_over_the_context_is_refused_with_both_numbers_before_loading(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never cut silently, as others do: the model's 128 positions, the prompt's own count."""
    monkeypatch.setattr("nearpeak.inference.session.load_decoder", lambda *_: pytest.fail("weights were read"))
    text = refused(folder, "the dog " * 200)
    assert "128" in text
    assert any(int(word.replace(",", "")) > 200 for word in text.split() if word.replace(",", "").isdigit())


def test_nothing_asked_is_said(folder: Path) -> None:
    assert "nothing is asked" in refused(folder)
    assert "nothing is asked" in refused(folder, "")


def test_what_makes_no_sense_is_told_before_torch_is_imported() -> None:
    code = "import sys; from nearpeak.cli.main import cli\ntry: cli(['run', './no/such', 'hi'], standalone_mode=False)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nexcept Exception as e: print(e, 'torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().endswith("a .gguf file. False"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3.1-8b", ["known", "weights"]),
        ("bert-base", ["bert-base"]),
        ("no-such", ["no-such"]),
        ("./no/such", ["does not exist"]),
        ("x.gguf", ["does not exist"]),
    ],
)
def test_models_that_are_not_here(name: str, words: list[str]) -> None:
    text = refused(name, "hello")
    assert all(word in text for word in words), text


def test_a_family_without_a_network_runs_through_transformers_and_says_so(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=512, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128,
    )  # fmt: skip
    write_tokenizer(tmp_path)
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    done = run(tmp_path, "the quick brown fox", "--max-tokens", 5)
    assert done.exit_code == 0, done.output
    assert "transformers" in done.stderr
    assert "GPTNeoX" in done.stderr
    assert "int8" in refused(tmp_path, "the fox", "--precision", "int8")


def test_numbers_that_overflow_stop_the_run_and_name_the_place(folder: Path, tmp_path: Path) -> None:
    """Elsewhere "!!!!" at full speed."""
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"].fill_(float("inf"))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    text = refused(tmp_path, "the fox", "--precision", "bf16")
    assert "not finite" in text
    assert "layers.1" in text


def test_as_a_program_it_gives_the_text_alone_and_exit_codes(folder: Path) -> None:
    alone = {**os.environ, "XDG_DATA_HOME": "/dev/null/nowhere"}
    command = [sys.executable, "-m", "nearpeak", "run", str(folder)]
    wrong = subprocess.run([*command, "x" * 4000], capture_output=True, text=True, env=alone)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr
    assert "128" in wrong.stderr
