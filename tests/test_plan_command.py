"""`nearpeak plan` as a whole: what is asked, what is refused, and what comes out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import FakeCard, FakeNvml
from nearpeak.ceilings import profile_file
from nearpeak.cli.plan import axes, document, drawn_of, question_of
from nearpeak.hardware.catalogue import find_by_name
from nearpeak.hardware.nvml import Nvml
from nearpeak.models.read import read_model
from nearpeak.planning import machine
from nearpeak.planning.machine import cards_here, devices_here, kept_profile
from nearpeak.planning.neighbours import curves, more_cards, steps, variations
from nearpeak.planning.question import Question
from nearpeak.planning.variants import COMMONEST, card_named
from nearpeak.records.errors import UserError
from nearpeak.records.plan import Plan
from plans import infer_plan, nowhere_plan, one_3090, train_plan
from profiles import cpu_only, h200

ROOT = Path(__file__).resolve().parent.parent
LLAMA = read_model("llama-3.1-8b")


def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearpeak", "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **more)


# --- which cards ---


def test_a_family_takes_its_commonest_form_and_says_which() -> None:
    card, note = card_named("a100")
    assert card.name == "A100 SXM4 80 GB"
    assert note is not None
    assert "A100 SXM4 80 GB is taken" in note
    assert "2026-12" in note
    assert card_named("NVIDIA A100 40GB")[0].name == "A100 SXM4 40 GB"
    assert card_named("RTX 4090") == (find_by_name("RTX 4090"), None)


@pytest.mark.parametrize("text", ["RTX", "80 GB", "SXM", "RTX 6000", "GeForce"])
def test_words_that_fit_different_cards_stay_a_question(text: str) -> None:
    with pytest.raises(UserError, match=r"fits \d+ cards"):
        card_named(text)


def test_an_unknown_card_lists_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Nearest names: .*4090"):
        card_named("RTX 4091")


@pytest.mark.parametrize("name", sorted(set(COMMONEST.values())))
def test_every_common_form_is_in_the_catalogue(name: str) -> None:
    assert find_by_name(name).name == name


def nvml(*cards: FakeCard) -> Nvml:
    return Nvml(FakeNvml(*cards), Path("/nowhere"))


TWO = (FakeCard(), FakeCard(uuid="GPU-11111111-aaaa-bbbb-cccc-000000000002", pci=(0, 2, 0)))


def test_the_cards_of_this_machine_are_found_without_torch() -> None:
    here = cards_here(devices_here(nvml(*TWO), {}))
    assert (here.gpu, here.count) == ("H200 SXM 141 GB", 2)
    assert here.notes == ("the cards of this machine: 2 × H200 SXM 141 GB",)


def test_hidden_cards_are_not_of_this_plan() -> None:
    uuid = "GPU-11111111-aaaa-bbbb-cccc-000000000002"
    assert cards_here(devices_here(nvml(*TWO), {"CUDA_VISIBLE_DEVICES": uuid})).count == 1
    assert cards_here(devices_here(nvml(*TWO), {"CUDA_VISIBLE_DEVICES": ""})).gpu is None


def test_a_second_kind_of_card_is_left_out_by_name() -> None:
    small = FakeCard(
        uuid="GPU-11111111-aaaa-bbbb-cccc-000000000003", pci=(0, 3, 0), name="Tesla T4",
        says={"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=16_106_127_360, free=1, used=1),
              "nvmlDeviceGetCudaComputeCapability": (7, 5)},
    )  # fmt: skip
    here = cards_here(devices_here(nvml(*TWO, small), {}))
    assert (here.gpu, here.count) == ("H200 SXM 141 GB", 2)
    assert "left out: 1 × Tesla T4, since a plan's cards are all alike" in here.notes


def test_a_card_outside_the_catalogue_leads_to_all_cards_and_says_so() -> None:
    here = cards_here(devices_here(nvml(FakeCard(name="NVIDIA Nonesuch 9")), {}))
    assert here.gpu is None
    assert any("Nonesuch 9" in note for note in here.notes)


def test_the_kept_profile_is_the_one_of_these_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_file.save(h200(), tmp_path / "machine-a.json")
    profile_file.save(cpu_only(), tmp_path / "machine-b.json")
    (tmp_path / "machine-c.json").write_text("{cut")
    (device,) = devices_here(nvml(FakeCard()), {})
    same = dataclasses.replace(device, id=h200().devices[0].id)
    assert kept_profile((same,), tmp_path) == h200()
    assert kept_profile((device,), tmp_path) is None
    cpu = dataclasses.replace(device, name=cpu_only().devices[0].name)
    monkeypatch.setattr(machine, "cpu_device", lambda: cpu)
    assert kept_profile((), tmp_path) == cpu_only()
    assert kept_profile((), tmp_path / "none") is None
    poor = dataclasses.replace(h200().devices[0], ceilings=h200().devices[0].ceilings[:1])
    profile_file.save(dataclasses.replace(h200(), devices=(poor,)), tmp_path / "machine-a.json")
    assert kept_profile((same,), tmp_path) is None, "no memory ceiling to plan with"


# --- the question ---


def test_the_command_line_becomes_a_question() -> None:
    question, said = question_of(LLAMA, "A100", False, None, {"task": "lora", "count": 2, "context": 8192, "batch": 16})
    assert (question.gpu, question.count, question.task, question.context) == ("A100 SXM4 80 GB", 2, "lora", 8192)
    assert any("A100 SXM4 80 GB is taken" in line for line in said)


def test_without_cards_all_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "devices_here", lambda: ())
    question, said = question_of(LLAMA, None, False, None, {"task": "infer"})
    assert question.any
    assert question.gpu is None
    assert any("all cards of the catalogue" in line for line in said)


def test_a_named_profile_is_the_machine(tmp_path: Path) -> None:
    profile_file.save(h200(), tmp_path / "p.json")
    question, _ = question_of(LLAMA, None, False, tmp_path / "p.json", {"task": "infer"})
    assert (question.gpu, question.any, question.profile) == (None, False, h200())


def test_the_cpu_is_asked_about_by_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_file.save(cpu_only(), tmp_path / "p.json")
    question, _ = question_of(LLAMA, "CPU", False, tmp_path / "p.json", {"task": "infer"})
    assert question.gpu is None
    assert question.profile is not None
    assert [d.kind for d in question.profile.devices] == ["cpu"]
    profile_file.save(h200(), tmp_path / "g.json")
    with pytest.raises(UserError, match=r"g\.json has no CPU in it.*nearpeak measure --device cpu"):
        question_of(LLAMA, "cpu", False, tmp_path / "g.json", {"task": "infer"})
    monkeypatch.setattr(machine, "kept_profile", lambda devices: None)
    with pytest.raises(UserError, match="has not been measured"):
        question_of(LLAMA, "cpu", False, None, {"task": "infer"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--context", "200000", "--any"], ["200,000", "131,072"]),
        (["--context", "0", "--any"], ["--context is 0"]),
        (["--batch", "-4", "--any"], ["--batch is -4"]),
        (["--users", "0", "--any"], ["--users is 0"]),
        (["--max-price", "0", "--any"], ["--max-price is 0"]),
        (["--target-tps", "nan", "--any"], ["--target-tps is nan"]),
        (["--electricity", "-1", "--any"], ["--electricity is -1"]),
        (["--gpu", "RTX 3090", "--count", "0"], ["--count is 0"]),
        (["--gpu", "RTX 3090", "--any"], ["--gpu RTX 3090", "--any"]),
        (["--target-tps", "inf", "--any"], ["--target-tps is inf"]),
        (["--gpu", "RTX 4091"], ["RTX 4091", "4090"]),
        (["--gpu", "RTX 3090", "--batch", "2", "--users", "3"], ["2", "3"]),
        (["--profile", "/nowhere/p.json"], ["/nowhere/p.json"]),
        (["--html", "/dev/null/p.html", "--any"], ["/dev/null"]),
        (["--task", "bake"], ["bake"]),
        (["--engine", "ollama-2", "--any"], ["ollama-2", "llama.cpp", "vllm"]),
        (["--precision", "q9", "--any"], ["q9", "q8_0"]),
        (["--precision", "Q4_K_M", "--task", "train", "--any"], ["q4_k_m", "bf16"]),
        (["--count", "99999999999999999999", "--gpu", "RTX 3090"], ["99,999,999,999,999,999,999", "100,000"]),
        (["--gpu", "M2", "--count", "2"], ["M2", "--count"]),
        (["--gpu", "💥"], ["💥"]),
    ],
)
def test_what_makes_no_sense_is_one_line_with_the_numbers_and_code_2(arguments: list[str], words: list[str]) -> None:
    done = run("llama-3.1-8b", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in line, line


def test_an_image_model_has_no_context_to_ask_for() -> None:
    with pytest.raises(UserError, match=r"--context 512 .* cnn-28x28 takes items of one size"):
        question_of(read_model("cnn-28x28"), None, True, None, {"context": 512})


def test_an_unknown_model_lists_the_nearest() -> None:
    done = run("llama-3.1-9b", "--any")
    assert done.returncode == 2
    assert "llama-3.1-8b" in done.stderr


# --- one thing changed ---


def asked(**changes: Any) -> Question:
    return Question(**{"spec": LLAMA, "any": True, **changes})


def test_variations_change_one_thing_on_the_first_candidates_cards() -> None:
    seen: list[Question] = []

    def planner(question: Question) -> Plan:
        seen.append(question)
        return dataclasses.replace(infer_plan(), candidates=(one_3090(),))

    plan = dataclasses.replace(infer_plan(), candidates=(one_3090(),))
    found = variations(asked(target_tps=1e9, max_price=1.0), plan, planner)
    assert [(v.axis, v.value) for v in found] == [
        ("precision", "q8_0"), ("precision", "q4_k_m"), ("context", 8192), ("count", 2), ("users", 16)
    ]  # fmt: skip
    assert {q.gpu for q in seen} == {"GeForce RTX 3090"}
    assert all(not q.any and q.target_tps is None and q.max_price is None for q in seen)


def test_no_variation_goes_beyond_the_models_own_context() -> None:
    plan = dataclasses.replace(infer_plan(), candidates=(one_3090(),), workload={"task": "infer", "context": 2048})
    found = variations(asked(spec=read_model("gpt-3-175b")), plan, lambda q: plan)
    assert "context" not in [v.axis for v in found]


def test_curves_compare_cards_where_all_are_looked_at_and_counts_of_one_card() -> None:
    assert [c.gpu for c in drawn_of(asked(), infer_plan())] == [
        "H200 SXM 141 GB", "GeForce RTX 3090", "GeForce RTX 4060"
    ]  # fmt: skip
    one = drawn_of(asked(any=False, gpu="RTX 3090"), infer_plan())
    assert [(c.gpu, c.count) for c in one][1:3] == [("GeForce RTX 3090", 2), ("GeForce RTX 3090", 1)]


def test_where_nothing_fits_less_is_asked_and_more_cards_until_it_fits() -> None:
    def planner(question: Question) -> Plan:
        fits = (question.count or 1) >= 4
        return dataclasses.replace(infer_plan(), candidates=(dataclasses.replace(one_3090(), fits=fits),))

    found = variations(asked(), nowhere_plan(), planner)
    assert [(v.axis, v.value) for v in found] == [
        ("precision", "q8_0"), ("precision", "q4_k_m"), ("context", 2048), ("count", 4)
    ]  # fmt: skip
    never = variations(asked(), nowhere_plan(), lambda q: nowhere_plan())
    assert ("count", 32) in [(v.axis, v.value) for v in never], "the last try is told: it lacks least"


def test_training_is_offered_its_lighter_methods_and_refusals_are_left_out() -> None:
    def planner(question: Question) -> Plan:
        if question.task == "qlora":
            raise UserError("no figures")
        return train_plan()

    found = variations(asked(task="train"), train_plan(), planner)
    assert [v.value for v in found if v.axis == "task"] == ["lora"]


def test_curves_go_over_powers_of_two_and_what_was_asked() -> None:
    assert steps(asked(context=3000), "context")[:4] == [512, 1024, 2048, 3000]
    assert steps(asked(), "context")[-1] == 131_072
    assert steps(asked(spec=read_model("gpt-3-175b")), "context") == [64, 128, 256, 512, 1024, 2048]
    assert steps(asked(spec=read_model("whisper-tiny")), "context") == [64, 128, 256, 448]
    assert steps(asked(users=5), "users") == [1, 2, 4, 5, 8, 16, 32, 64, 128, 256]
    ((card, points),) = curves(asked(), [one_3090()], "users", lambda q: infer_plan())
    assert card.gpu == "GeForce RTX 3090"
    assert len(points) == 9
    assert axes(asked()) == ("context", "users")
    assert axes(asked(task="lora")) == ("context", "batch")
    assert axes(asked(spec=read_model("cnn-28x28"))) == ("users",)


# --- JSON ---


def test_the_document_has_every_field_of_the_issue_and_null_where_absent() -> None:
    body = json.loads(document(infer_plan(), {}, False))
    assert body["schema"] == "nearpeak.plan/1"
    assert body["model"]["kv_bytes_per_token"] == 131_072
    first, small = body["candidates"][0], body["candidates"][-1]
    assert set(first["memory_bytes"]) == {
        "weights", "kv", "activations", "gradients", "optimizer", "overhead", "total", "capacity"
    }  # fmt: skip
    assert first["memory_bytes"]["total"] == infer_plan().candidates[0].memory.total
    assert first["decode_tokens_per_s"] == {"value": 182.0, "low": 150.0, "high": 220.0}
    assert first["joules_per_token"] is None
    assert first["nearest_measured"]["source"] == "example.org, table 3"
    assert (small["fits"], small["decode_tokens_per_s"]) == (False, None)
    steps_ = body["candidates"][2]["steps"]
    assert steps_[0]["seconds"] == pytest.approx(0.0212)
    assert "ops" not in body


def test_more_cards_begin_where_the_states_could_lie() -> None:
    c = one_3090()  # 15 GiB of weights: 23.5 GiB a card
    assert more_cards(c) == [2, 4, 8, 16, 32]
    big = dataclasses.replace(c, memory=dataclasses.replace(c.memory, weights=20 * c.memory.capacity))
    assert more_cards(big) == [16, 32]
    never = dataclasses.replace(c, memory=dataclasses.replace(c.memory, weights=10**6 * c.memory.capacity))
    assert more_cards(never) == [32], "the last try is told all the same"
