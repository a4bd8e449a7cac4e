"""How far `nearpeak plan` is off on models that its constants have not seen, beside three published tools.

Every model's rows are left out in turn, the constants are fitted on all others, and the rows left out are predicted.
Counted are rows of an engine and card that another model covers too. Intervals of a model are made from the errors of
other models alone. Memory is counted, not fitted. Rows that cannot be computed are listed with the reason.

    python benchmarks/plan_accuracy.py [--rivals PATH/TO/venv/bin/python] [--write]

--rivals  the Python of an environment with ridgepoint 0.1.2, servcalc 0.1.0 and vramcalc 0.1.2; without it they are
          left out, and the result says so
--write   writes benchmarks/results/plan-accuracy/result.json and the tables of docs/planning.md
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
from collections import Counter, defaultdict
from datetime import date
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

from fit_efficiency import Z80, computable, error_of, fit, held_out, kind_of, model_key, spread_of

from nearpeak.planning.measured import Row, load_measured
from nearpeak.planning.replay import CannotCompute
from nearpeak.planning.replay_memory import predict_memory

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "plan-accuracy" / "result.json"
DOCS = ROOT / "docs" / "planning.md"
BARS = {"train": (0.15, 0.10), "decode": (0.15, 0.10), "memory": (0.10, 0.05)}
NAMES = {"train": "training speed", "decode": "decode, one sequence", "memory": "memory", "prefill": "prefill",
         "throughput": "throughput (full load, images)", "loaded": "time between tokens under load",
         "waiting": "time to the first token under load"}  # fmt: skip


def speed_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One record a row: what was measured, the error when the row's model was left out, and its interval."""
    rows, bad = computable(load_measured())
    full = fit(rows)
    errors = held_out(rows, full)
    others: dict[str, dict[str, float]] = {}
    for key in {model_key(row) for row in rows}:
        rest = [row for row in rows if model_key(row) != key]
        others[key] = spread_of(errors, rest)
    found = []
    for row in rows:
        error, level = errors[row.number]
        width = others[model_key(row)].get(f"{kind_of(row)}: {level}", Z80 * 0.5)
        found.append({
            "line": row.number, "kind": kind_of(row), "row": row.text, "engine": row.engine, "measured": row.value,
            "unit": row.unit, "predicted": row.value * math.exp(error), "relative_error": math.expm1(error),
            "level": level, "interval": width, "inside": abs(error) <= width,
            "in_the_fit": math.expm1(error_of(row, full)),
        })  # fmt: skip
    reasons = [{"line": row.number, "kind": row.kind, "row": row.text, "reason": why} for row, why in bad]
    return found, reasons


def memory_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found, reasons = [], []
    for row in load_measured():
        if row.kind != "memory":
            continue
        try:
            counted, measured = predict_memory(row)
        except CannotCompute as why:
            reasons.append({"line": row.number, "kind": "memory", "row": row.text, "reason": str(why)})
            continue
        found.append({"line": row.number, "kind": "memory", "row": row.text, "measured": measured, "predicted": counted,
                      "unit": "B", "relative_error": counted / measured - 1})  # fmt: skip
    return found, reasons


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and 80th percentile of |relative error|, and the intervals' coverage with its binomial error."""
    errors = sorted(abs(r["relative_error"]) for r in records)
    found: dict[str, Any] = {"rows": len(errors)}
    if not errors:
        return found
    found["median_error"] = round(median(errors), 4)
    found["error_80"] = round(errors[min(len(errors) - 1, math.ceil(0.8 * len(errors)) - 1)], 4)
    inside = [r["inside"] for r in records if "inside" in r]
    if inside:
        found["coverage"] = round(sum(inside) / len(inside), 3)
        found["coverage_error"] = round(binomial_error(sum(inside), len(inside)), 3)
    return found


def binomial_error(hits: int, tries: int) -> float:
    """Standard error of a share; one hit and one miss are added, so that 1 of 1 is not certain (Agresti and Coull)."""
    share = (hits + 1) / (tries + 2)
    return math.sqrt(share * (1 - share) / tries)


def signed(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Model: mean of the signed error, and the lowest: too little is the dangerous side."""
    by: dict[str, list[float]] = defaultdict(list)
    for record in records:
        by[record["row"].split()[0]].append(record["relative_error"])
    return {name: {"rows": len(e), "mean": sum(e) / len(e), "lowest": min(e)} for name, e in sorted(by.items())}


# --- the rivals: what they say of the same rows, in a process of their own ---

WORKER = r"""
import json, sys, tempfile, os
os.environ["HF_HUB_OFFLINE"] = "1"
answers = []
for job in json.load(sys.stdin):
    out = dict(job); out.pop("config", None)
    try:
        if job["tool"] == "ridgepoint":
            import ridgepoint._core as core
            got = json.loads(core.fit_shape(*job["shape"], job["gpu"], job["count"], job["engine"], job["dtype"],
                                            "fp16", job["context"], 512, True))
            said = got["speed"]["decode_tok_s"]
            out["answer"] = [said["best"], said["low"], said["high"]]
        else:
            import subprocess
            with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as f:
                json.dump(job["config"], f)
            command = [os.path.join(os.path.dirname(sys.executable), job["tool"]), "estimate", f.name, *job["flags"]]
            run = subprocess.run(command, capture_output=True, text=True, timeout=60)
            os.unlink(f.name)
            got = json.loads(run.stdout)
            if job["tool"] == "servcalc":
                said = got["points"][0]["seq_tok_s"]
                out["answer"] = [said["mid"], said["low"], said["high"]]
            else:
                estimate = got["estimate"]
                out["answer"] = [estimate["total"]]
    except Exception as error:
        out["reason"] = f"{type(error).__name__}: {str(error)[:120]}"
    answers.append(out)
json.dump(answers, sys.stdout)
"""
RIDGEPOINT = {"A100 SXM4 80 GB": "a100-80gb", "A100 SXM4 40 GB": "a100-40gb", "H100 SXM5 80 GB": "h100-80gb",
              "H200 SXM 141 GB": "h200-141gb", "B200": "b200-192gb", "MI300X": "mi300x-192gb",
              "GeForce RTX 3090": "rtx3090-24gb", "GeForce RTX 4090": "rtx4090-24gb", "L40S": "l40s-48gb"}  # fmt: skip
SERVCALC = {"A100 SXM4 80 GB": "A100 80GB", "A100 SXM4 40 GB": "A100 40GB", "A100 PCIe 40 GB": "A100 40GB",
            "H100 SXM5 80 GB": "H100 80GB", "H200 SXM 141 GB": "H200", "B200": "B200", "V100 PCIe 16GB": "V100 32GB",
            "RTX 6000 Ada Generation": "RTX 6000 Ada"}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    text = (resources.files("nearpeak.models") / "data" / f"{name}.json").read_text("utf-8")
    config: dict[str, Any] = json.loads(text)["config"]
    return {"torch_dtype": "bfloat16", **config}


def jobs() -> list[dict[str, Any]]:
    """What to ask whom: decode of one sequence of the first two, memory on one card of the third."""
    from nearpeak.planning.replay import known_facts, known_spec

    found = []
    for row in load_measured():
        if row.left_out or not row.spec:
            continue
        if kind_of(row) == "decode":
            facts, spec = known_facts(row.spec), known_spec(row.spec)
            attention = next((p for p in spec.parts if hasattr(p, "kv_heads")), None)
            if attention is None:
                continue
            depth = max(row.depth, 1)
            packed = row.engine == "llama.cpp"
            dtype = {"bf16": "fp16", "f16": "fp16", "int4": "awq"}.get(row.precision, row.precision)
            gpu = RIDGEPOINT.get(row.card, row.card)
            layers = sum(s.count for s in facts.scores)
            shape = (row.spec, facts.layers, layers, facts.width, spec.parameters, facts.active, "gqa",
                     attention.head_dim, attention.heads, attention.kv_heads)  # fmt: skip
            layers_split = packed and row.cards > 1  # it knows no other way than tensor parallelism
            if attention.latent is None and not layers_split:
                found.append({"tool": "ridgepoint", "line": row.number, "shape": [*shape, 0, 0], "gpu": gpu,
                              "count": max(row.cards, 1), "engine": "llamacpp" if packed else "vllm", "dtype": dtype,
                              "context": depth})  # fmt: skip
            name = SERVCALC.get(row.card, row.card.replace("GeForce ", ""))
            quant = {"q4_k_m": ["--quant", "gguf_q4_k_m"], "q4_0": ["--quant", "gguf_q4_0"], "int8": ["--quant", "fp8"],
                     "int4": ["--quant", "awq"]}.get(row.precision, [])  # fmt: skip
            if row.cards == 1:
                found.append({"tool": "servcalc", "line": row.number, "config": config_of(row.spec), "flags": [
                    "--gpu", name, "--engine", "ollama" if packed else "vllm", "--prompt", str(depth), "--gen", "128",
                    "--concurrency", "1", *quant, "--json"]})  # fmt: skip
        if row.kind == "memory" and row.cards == 1:
            words = row.dtype.lower()
            flags = ["--batch", str(max(1, int(row.batch))), "--seq", str(row.length), "--json"]
            unknown = ("loss=chunked", "update=in-backward", "embeddings=trained")  # it has no word for these
            if row.method == "qlora" or not row.length or any(word in row.recipe for word in unknown):
                continue
            if row.method:
                flags += ["--train", "--precision", "amp" if "master=yes" in row.recipe or "amp" in words else "pure"]
                flags += ["--lora", "16"] if row.method == "lora" else []
                flags += ["--grad-checkpoint"] if "recompute=full" in row.recipe else []
            flags += ["--attn", "eager"] if "eager" in words else []
            found.append({"tool": "vramcalc", "line": row.number, "config": config_of(row.spec), "flags": flags})
    return found


def rivals(python: str | None, ours: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Each tool's errors on the rows that it answers, with ours on the same rows."""
    if python is None:
        return {"reason": "not run: no environment with them was named (--rivals)"}
    asked = jobs()
    run = subprocess.run([python, "-c", WORKER], input=json.dumps(asked), capture_output=True, text=True, check=True)
    by_line = {row.number: row for row in load_measured()}
    found: dict[str, Any] = {}
    for tool in ("ridgepoint", "servcalc", "vramcalc"):
        theirs, same, alone, refused = [], [], [], Counter()
        for answer in (a for a in json.loads(run.stdout) if a["tool"] == tool):
            if "answer" not in answer:
                refused[answer["reason"][:60]] += 1
                continue
            row = by_line[answer["line"]]
            if row.number not in ours:
                continue
            measured = _measured(row, ours[row.number])
            record = {"relative_error": answer["answer"][0] / measured - 1}
            if len(answer["answer"]) == 3:
                record["inside"] = answer["answer"][1] <= measured <= answer["answer"][2]
            theirs.append(record)
            if row.cards == 1:
                alone.append(record)
            same.append(ours[row.number])
        found[tool] = {
            "theirs": summary(theirs), "theirs_on_one_card": summary(alone), "ours": summary(same),
            "asked": sum(a["tool"] == tool for a in asked), "no_answer": dict(refused),
        }  # fmt: skip
    return found


def _measured(row: Row, ours: dict[str, Any]) -> float:
    """In tokens/s for speeds, bytes for memory: what the tools answer in."""
    if row.kind == "memory":
        return float(ours["measured"])
    return 1000.0 / row.value if "ms" in row.unit else row.value


# --- the whole ---


def result(python: str | None) -> dict[str, Any]:
    speeds, bad = speed_rows()
    memory, unread = memory_rows()
    near = [r for r in speeds if r["level"] == "card"]
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in near:
        by_kind[record["kind"]].append(record)
    farther: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in speeds:
        if record["level"] != "card":
            farther[f"{record['kind']}: {record['level']}"].append(record)
    ours = {r["line"]: r for r in [*speeds, *memory]}
    return {
        "schema": "nearpeak.plan-accuracy/1",
        "date": date.today().isoformat(),
        "command": "python benchmarks/plan_accuracy.py --rivals PYTHON --write",
        "python": platform.python_version(),
        "method": "each model left out in turn; rows of an engine and card that another model covers",
        "pooled_rows": len(near),
        "held_out": {kind: summary(records) for kind, records in sorted(by_kind.items())},
        "farther_away": {name: summary(records) for name, records in sorted(farther.items())},
        "by_engine": _by_engine(near),
        "memory": summary(memory),
        "memory_by_model": signed(memory),
        "rivals": rivals(python, ours),
        "not_computed": dict(Counter(f"{r['kind']}: {r['reason']}" for r in [*bad, *unread])),
        "rows": [*speeds, *memory],
        "rows_not_computed": [*bad, *unread],
    }


def _by_engine(near: list[dict[str, Any]]) -> dict[str, Any]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in near:
        groups[f"{record['kind']}: {record['engine']}"].append(record)
    return {name: summary(records) for name, records in sorted(groups.items())}


def tables(found: dict[str, Any]) -> str:
    """For docs/planning.md."""
    lines = ["| rows of an engine and card that another model covers | rows | median error | 80 % of errors below | "
             "inside the 80 % interval |", "|---|---|---|---|---|"]  # fmt: skip
    for kind, s in [*found["held_out"].items(), ("memory", found["memory"])]:
        cover = f"{s['coverage']:.0%} ± {s['coverage_error']:.0%}" if "coverage" in s else "(no interval)"
        lines.append(f"| {NAMES[kind]} | {s['rows']} | {s['median_error']:.1%} | {s['error_80']:.1%} | {cover} |")
    lines += ["", "| farther from what was seen | rows | median error | 80 % of errors below | inside |",
              "|---|---|---|---|---|"]  # fmt: skip
    words = {"class": "engine and class of card seen", "engine": "engine seen", "none": "engine not seen"}
    for name, s in found["farther_away"].items():
        kind, level = name.split(": ")
        cover = f"{s['coverage']:.0%} ± {s['coverage_error']:.0%}"
        lines.append(f"| {NAMES[kind]}: {words[level]} | {s['rows']} | {s['median_error']:.1%} | {s['error_80']:.1%} | "
                     f"{cover} |")  # fmt: skip
    others = found["rivals"]
    if "reason" not in others:
        lines += ["", "| tool | rows answered of asked | its median error (on one card) | ours on the same rows | "
                  "truth inside its interval | inside ours |", "|---|---|---|---|---|---|"]  # fmt: skip
        for tool, s in others.items():
            theirs, ours = s["theirs"], s["ours"]
            if not theirs["rows"]:
                lines.append(f"| {tool} | 0 of {s['asked']} | | | | |")
                continue
            cover = [f"{x['coverage']:.0%}" if "coverage" in x else "(none)" for x in (theirs, ours)]
            lines.append(f"| {tool} | {theirs['rows']} of {s['asked']} | {theirs['median_error']:.1%} "
                         f"({s['theirs_on_one_card']['median_error']:.1%}) | "
                         f"{ours['median_error']:.1%} | {cover[0]} | {cover[1]} |")  # fmt: skip
    lines += ["", f"Not computed: {sum(found['not_computed'].values())} rows. " + "; ".join(
        f"{count} × {why}" for why, count in sorted(found["not_computed"].items())) + "."]  # fmt: skip
    return "\n".join(lines)


BEGIN, END = "<!-- accuracy: written by benchmarks/plan_accuracy.py -->", "<!-- end of accuracy -->"


def write(found: dict[str, Any]) -> None:
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.6g}"))
    RESULT.write_text(json.dumps(rounded, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if DOCS.exists() and BEGIN in (text := DOCS.read_text("utf-8")):
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        DOCS.write_text(f"{before}{BEGIN}\n{tables(found)}\n{END}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rivals", help="Python of an environment with the three tools")
    parser.add_argument("--write", action="store_true", help="write the result file and the tables of the docs")
    given = parser.parse_args()
    found = result(given.rivals)
    print(tables(found))
    for kind, (bar, goal) in BARS.items():
        s = found["memory"] if kind == "memory" else found["held_out"][kind]
        verdict = "met" if s["median_error"] <= bar else "MISSED"
        print(f"{NAMES[kind]}: {s['median_error']:.1%} of {bar:.0%} ({verdict}; goal {goal:.0%})")
    if given.write:
        write(found)


if __name__ == "__main__":
    main()
