"""Measure the kernels of examples/kernels/ against the library on a GPU: right at ragged shapes, then how fast.

    python3 benchmarks/ladder.py --out ladder.json            # everything, about two minutes on an H200
    python3 benchmarks/ladder.py --out x.json --only matmul_7 --sizes 4096,8192

Kernels of one op are timed in one run: library, 1st, 2nd, … last, library, last, … 2nd, 1st, library, each train of
calls after a rest, short enough (20 ms to warm up, 40 ms timed) that no power limit acts. A worker process does the
work; where one kernel hangs it or brings it down, that kernel is noted and a new worker goes on with the rest.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import functools
import importlib.util
import itertools
import json
import math
import queue
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "examples" / "kernels"
sys.path.insert(0, str(ROOT / "src"))

METHOD = 1
HANG_S = 40.0
WARM_S, TRAIN_S, SLOW_S = 0.02, 0.04, 0.03  # a call longer than SLOW_S is timed alone, without a warm-up
WORDS = {"fp32": ("float32", 7), "bf16": ("bfloat16", 9)}  # torch's dtype, the driver's number for tensor maps

# What else to try of a file: label → (macros, keys of the declaration to replace).
STEP_5 = {
    "k 8, 4 stages": ("BLOCK_K=8 STAGES=4", {"shared": "4 * 8 * (128 + 4 + 256) * 4"}),
    "warp 64x64": ("WARP_M=64 WARP_N=64", {}),
    "256x128": (
        "BLOCK_M=256 BLOCK_N=128",
        {"grid": "ceil(n / 128), ceil(m / 256)", "shared": "3 * 16 * (256 + 4 + 128) * 4"},
    ),
    "128x128, 2 blocks": (
        "BLOCK_M=128 BLOCK_N=128 BLOCKS=2",
        {"grid": "ceil(n / 128), ceil(m / 128)", "block": "128", "shared": "3 * 16 * (128 + 4 + 128) * 4"},
    ),
    "128x128, 2 blocks, k 8": (
        "BLOCK_M=128 BLOCK_N=128 BLOCKS=2 BLOCK_K=8 STAGES=4",
        {"grid": "ceil(n / 128), ceil(m / 128)", "block": "128", "shared": "4 * 8 * (128 + 4 + 128) * 4"},
    ),
    "128x128, 8x8 a thread": (
        "BLOCK_M=128 BLOCK_N=128 BLOCKS=2 WARP_M=32 WARP_N=64",
        {"grid": "ceil(n / 128), ceil(m / 128)", "shared": "3 * 16 * (128 + 4 + 128) * 4"},
    ),
}
STEP_7 = {
    "no cluster": ("CLUSTER=1", {"grid": "sms"}),
    "3 stages, 4 pieces": ("STAGES=3 C_BUFFERS=4", {"shared": "1024 + 3 * 49152 + 2 * 4 * 8192"}),
    "3 stages, 4 pieces, none behind": (
        "STAGES=3 C_BUFFERS=4 BEHIND=0",
        {"shared": "1024 + 3 * 49152 + 2 * 4 * 8192"},
    ),
    "none behind": ("BEHIND=0", {}),
    "band 4": ("BAND=4", {}),
    "band 16": ("BAND=16", {}),
}
VARIANTS = {
    "matmul_vector_loads": STEP_5,
    "matmul_pipelined": STEP_7,
    "matmul_fp32": {"k 32": ("", {"constants": "BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, GROUP=8"})},
    "matmul_nt_bf16": {"4 stages": ("", {"launch": "num_warps=8, num_stages=4"})},
}

MATMUL_SHAPES = [
    {"m": m, "n": n, "k": k}
    for m, n, k in [
        (1, 1, 1),
        (16, 16, 16),
        (33, 65, 17),
        (127, 129, 131),
        (257, 512, 64),
        (1000, 1, 77),
        (1, 1000, 336),
        (1, 8, 8),
        (129, 264, 136),
        (300, 520, 200),
        (1030, 1544, 72),
        (640, 4000, 1000),
    ]
]
TIMED_N = {"copy": 1 << 28, "field_sum": 1 << 25}


# ---- declarations -------------------------------------------------------------------------------------------------


def read_declarations(path: Path) -> list[dict]:
    found: list[dict] = []
    for line in path.read_text().splitlines():
        match = re.match(r"\s*(?://|#) nearpeak: (\w+) (.+)", line)
        if match and match[1] == "kernel":
            found.append({"file": path.name, "kernel": match[2], "defines": "", "variant": ""})
        elif match:
            found[-1][match[1]] = match[2].strip()
    return found


def value(expression: str, **names: int) -> tuple:
    """The numbers of 'ceil(m / 16), ceil(n / 16)'. Only for our own files: it evaluates what they say."""
    known = {"ceil": math.ceil, "min": min, "max": max, "__builtins__": {}}
    return tuple(eval(f"({expression},)", known, names))


def three(sizes: tuple) -> tuple:
    return (*sizes, 1, 1)[:3]


def pairs(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text)}


def all_jobs(only: list[str], variants: bool) -> list[dict]:
    jobs = []
    for path in sorted(KERNELS.glob("*.cu")) + sorted(KERNELS.glob("*.py")):
        for job in read_declarations(path):
            jobs.append(job)
            for label, (defines, keys) in VARIANTS.get(job["kernel"], {}).items() if variants else ():
                jobs.append(job | keys | {"variant": label, "defines": defines})
    for job in jobs:
        job["id"] = job["kernel"] + (f" [{job['variant']}]" if job["variant"] else "")
    return [job for job in jobs if not only or any(part in job["file"] or part in job["id"] for part in only)]


# ---- compiling ----------------------------------------------------------------------------------------------------


def compile_job(job: dict, folder: Path, architecture: str) -> str | None:
    """Compile to job['cubin']; returns the compiler's message where it fails."""
    source = (KERNELS / job["file"]).read_text()
    if "wgmma" in source:
        architecture = "sm_90a"
    options = [f"-D{define}" for define in job["defines"].split()]
    target = folder / (re.sub(r"\W+", "_", job["id"]) + ".cubin")
    job["cubin"] = str(target)
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        command = ["nvcc", "-cubin", f"-arch={architecture}", *options, "-o", str(target), str(KERNELS / job["file"])]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stderr if done.returncode else None
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), job["file"].encode(), 0, [], [])
    flags = [f"--gpu-architecture={architecture}".encode(), *(option.encode() for option in options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        return log.decode(errors="replace").rstrip("\0 ") or str(status)
    image = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, image)
    target.write_bytes(image)
    return None


# ---- launching ----------------------------------------------------------------------------------------------------


class Driver:
    """The few calls of libcuda that a launch needs, in torch's own context."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.lib, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'').decode()} ({status})")

    def load(self, cubin: str, name: str) -> tuple[ctypes.c_void_p, dict[str, int]]:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), Path(cubin).read_bytes())
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        facts = {}
        for key, number in {"registers": 4, "local_bytes": 3, "shared_bytes": 1}.items():
            got = ctypes.c_int()
            self.call("cuFuncGetAttribute", ctypes.byref(got), number, function)
            facts[key] = got.value
        return function, facts

    def tensor_map(self, tensor, precision: str, columns: int, rows: int, swizzle: str) -> ctypes.Array:
        storage = (ctypes.c_char * 256)()
        start = -ctypes.addressof(storage) % 64
        map_ = (ctypes.c_char * 128).from_buffer(storage, start)
        height, width = tensor.shape
        self.call(
            "cuTensorMapEncodeTiled",
            map_,
            WORDS[precision][1],
            2,
            ctypes.c_void_p(tensor.data_ptr()),
            (ctypes.c_uint64 * 2)(width, height),
            (ctypes.c_uint64 * 1)(width * tensor.element_size()),
            (ctypes.c_uint32 * 2)(columns, rows),
            (ctypes.c_uint32 * 2)(1, 1),
            0,  # not interleaved
            {"none": 0, "swizzle32": 1, "swizzle64": 2, "swizzle128": 3}[swizzle],
            2,  # the second-level cache fetches 128 bytes at a time
            0,  # zeros outside
        )
        return map_


class Kernels:
    """Callables for jobs on given tensors; what each CUDA kernel takes is in `facts`."""

    def __init__(self) -> None:
        import torch

        self.torch, self.driver = torch, Driver()
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.loaded: dict[str, tuple] = {}
        self.facts: dict[str, dict] = {}

    def bind(self, job: dict, shape: dict[str, int], tensors: dict):
        grid = value(job["grid"], sms=self.sms, **shape)
        names = tensors | shape
        if job["file"].endswith(".py"):
            function = self._triton(job["kernel"])
            arguments = [names[name] for name in job["args"].split(", ")]
            keywords = pairs(job["constants"]) | pairs(job["launch"])
            return lambda: function[grid](*arguments, **keywords)
        if job["id"] not in self.loaded:
            self.loaded[job["id"]], self.facts[job["id"]] = self.driver.load(job["cubin"], job["kernel"])
        function = self.loaded[job["id"]]
        (shared,) = value(job["shared"], **shape)
        self.driver.call("cuFuncSetAttribute", function, 8, shared)
        cells = []
        for name, inside in re.findall(r"(\w+)(?:\(([^)]*)\))?", job["args"]):
            if inside:
                tensor, columns, rows, swizzle = inside.split(", ")
                cells.append(
                    self.driver.tensor_map(tensors[tensor], job["precision"], int(columns), int(rows), swizzle)
                )
            elif name in tensors:
                cells.append(ctypes.c_void_p(tensors[name].data_ptr()))
            else:
                cells.append(ctypes.c_int(shape[name]))
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        sizes = [ctypes.c_uint(x) for x in (*three(grid), *three(value(job["block"])), shared)]
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        launch, keep = self.driver.call, (cells, tensors)
        return lambda: (launch("cuLaunchKernel", function, *sizes, stream, pointers, None), keep)[0]

    def _triton(self, name: str):
        if "triton" not in self.loaded:
            import triton

            torch = self.torch
            triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
            spec = importlib.util.spec_from_file_location("matmul_triton", KERNELS / "matmul_triton.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.loaded["triton"] = module
        return getattr(self.loaded["triton"], name)


# ---- ops: tensors, reference, library -----------------------------------------------------------------------------


def tensor_shapes(job: dict, s: dict[str, int]) -> dict[str, tuple]:
    """Shapes of the op's tensors; the last is the output."""
    if job["op"] in ("matmul", "matmul_nt"):
        b = (s["k"], s["n"]) if job["op"] == "matmul" else (s["n"], s["k"])
        return {"a": (s["m"], s["k"]), "b": b, "c": (s["m"], s["n"])}
    if job["op"] == "transpose":
        return {"x": (s["rows"], s["columns"]), "y": (s["columns"], s["rows"])}
    if job["op"] == "copy":
        return {"x": (s["n"],), "y": (s["n"],)}
    return {"x": (s["n"], 8) if job["layout"] == "structures" else (8, s["n"]), "y": (1,)}


def result(job: dict, t: dict, out=None):
    """What the op gives, from tensors of any dtype; into `out` it is the library's way."""
    import torch

    if job["op"] == "matmul":
        return torch.mm(t["a"], t["b"], out=out)
    if job["op"] == "matmul_nt":
        return torch.mm(t["a"], t["b"].t(), out=out)
    if job["op"] == "field_sum":
        field = t["x"][:, 0] if job["layout"] == "structures" else t["x"][0]
        return torch.sum(field, 0, keepdim=True, out=out)
    x = t["x"].t() if job["op"] == "transpose" else t["x"]
    return x.clone() if out is None else out.copy_(x)


def random(torch, job: dict, size: tuple):
    """Normal numbers; for sums with a mean of 1, so that an error is not held against what cancels."""
    numbers = torch.randn(size, device="cuda")
    return (numbers + 1 if job["op"] == "field_sum" else numbers).to(getattr(torch, WORDS[job["precision"]][0]))


def amount(job: dict, s: dict[str, int]) -> tuple[float, str]:
    if job["op"] in ("matmul", "matmul_nt"):
        return 2.0 * s["m"] * s["n"] * s["k"], "FLOP"
    if job["op"] == "transpose":
        return 8.0 * s["rows"] * s["columns"], "B"
    return (8.0 if job["op"] == "copy" else 4.0) * s["n"], "B"


def check_shapes(job: dict) -> list[dict]:
    if job["op"] in ("matmul", "matmul_nt"):
        shapes = MATMUL_SHAPES
    elif job["op"] == "transpose":
        shapes = [{"rows": r, "columns": c} for r, c in [(1, 1), (1, 300), (300, 1), (33, 65), (1000, 777), (64, 64)]]
    else:
        shapes = [{"n": n} for n in (1, 31, 256, 1000, 8192, 100_003, 3_000_001)]
    shapes = [s for s in shapes if "require" not in job or all(value(job["require"], **s))]
    if job["file"].endswith(".py"):  # Triton compiles anew for nearly every shape
        return shapes[-1:] if job["variant"] else [shapes[0], *shapes[-3:]]
    return shapes


def timed_shapes(job: dict, sizes: list[int]) -> list[dict]:
    if job["op"] in ("matmul", "matmul_nt"):
        return [{"m": n, "n": n, "k": n} for n in sizes]
    return [{"rows": 16384, "columns": 16384} if job["op"] == "transpose" else {"n": TIMED_N[job["op"]]}]


def tolerance(job: dict, s: dict[str, int]) -> float:
    if job["precision"] == "bf16":
        return 2.0**-8  # half a unit in the last place of the output
    if job["op"] in ("transpose", "copy"):
        return 0.0
    return 4 * 2.0**-24 * math.sqrt(s.get("k", s.get("n", 1)))


def relative_error(got, reference) -> float:
    return float((got.double() - reference).norm() / reference.norm())


# ---- the worker ---------------------------------------------------------------------------------------------------


def check(kernels: Kernels, job: dict) -> dict:
    """Right at every shape, also from addresses off by one element, and not a word written outside of the output?"""
    torch, worst, guard = kernels.torch, 0.0, 4096
    shapes = check_shapes(job)
    aligned = job["file"].endswith(".py") or "tensormap" in job["args"]
    for shape, offset in itertools.product(shapes, (0,) if aligned else (0, 1)):
        names = tensor_shapes(job, shape)
        *inputs, output = names
        t = {}
        for name, size in names.items():
            flat = random(torch, job, (math.prod(size) + 2 * guard,))
            if name == output:
                flat.fill_(float("nan"))
                whole = flat
            t[name] = flat[guard + offset : guard + offset + math.prod(size)].view(size)
        run = kernels.bind(job, shape, t)
        reference = result(job, {name: t[name].double() for name in inputs})
        for _ in range(2):
            t[output].fill_(float("nan"))
            run()
            torch.cuda.synchronize()
            error = relative_error(t[output], reference)
            if not error <= tolerance(job, shape):
                why = f"error {error:.3g} over {tolerance(job, shape):.3g} at {shape}, offset {offset}"
                return {"right": False, "why": why}
            worst = max(worst, error)
        t[output].fill_(float("nan"))
        if not bool(torch.isnan(whole).all()):
            return {"right": False, "why": f"wrote outside of the output at {shape}, offset {offset}"}
    return {"right": True, "shapes": len(shapes), "worst_error": worst, **kernels.facts.get(job["id"], {})}


def worker(plan: dict) -> None:
    import torch

    say(begin="start")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(plan["seed"])
    kernels = Kernels()
    say(info=facts_of_machine(torch))

    jobs = [job for job in plan["jobs"] if job["id"] not in plan["failed"]]
    for job in jobs:
        if job["id"] not in plan["checked"]:
            say(begin=job["id"], what="check")
            try:
                say(job=job["id"], check=check(kernels, job))
            except Exception as problem:
                say(job=job["id"], check={"right": False, "why": f"{type(problem).__name__}: {problem}"[:2000]})
                torch.cuda.synchronize()  # raises where the context is lost: a new worker goes on
    say(begin="end of checks")
    plan = json.loads(sys.stdin.readline())  # what is right by now, and what has been timed
    right = sorted(
        (job for job in jobs if job["id"] in plan["right"]),
        key=lambda job: (not job["op"].startswith("matmul"), group_of(job)),
    )
    for group, members in itertools.groupby(right, key=group_of):
        members = list(members)
        for shape in timed_shapes(members[0], plan["sizes"]):
            key = f"{'/'.join(filter(None, group))} {shape}"
            if key not in plan["timed"]:
                time_group(kernels, members, shape, plan["rest"], functools.partial(say, key=key))
                torch.cuda.empty_cache()


def say(**record: object) -> None:
    print(json.dumps(record), flush=True)


def group_of(job: dict) -> tuple:
    """Kernels that are timed together."""
    return job["op"], job["precision"], job.get("layout", "")


def time_group(kernels: Kernels, members: list[dict], shape: dict, rest: float, say) -> None:
    """Time kernels of one op and the library in turn, there and back."""
    from nearpeak.timing.timer import time_calls, warm_up

    torch, device = kernels.torch, kernels.torch.device("cuda:0")
    t = {name: random(torch, members[0], size) for name, size in tensor_shapes(members[0], shape).items()}
    output = list(t)[-1]
    library_out = torch.empty_like(t[output])
    runs = {"library": lambda: result(members[0], t, out=library_out)}
    runs |= {job["id"]: kernels.bind(job, shape, t) for job in members}
    guesses: dict[str, float] = {}
    order = ["library", *(job["id"] for job in members), "library"]
    for name in [*order, *order[-2::-1]]:
        say(begin=name, what="timing")
        first, run = name not in guesses, runs[name]
        if first:
            t[output].fill_(float("nan"))
            run()
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            guesses[name] = time.perf_counter() - start
        elif guesses[name] > 10 * SLOW_S:
            continue
        time.sleep(rest)
        if guesses[name] < SLOW_S:
            guesses[name] = min(guesses[name], warm_up(run, device, WARM_S))
        samples = max(1, min(200, int(TRAIN_S / guesses[name])))
        record = {"job": name, "shape": shape, "seconds": time_calls(run, device, samples)}
        if first and name != "library":
            error = relative_error(t[output], library_out.double())
            record["error_to_library"] = error if math.isfinite(error) else None
        say(**record)
    say(done=True)


def facts_of_machine(torch) -> dict:
    fields = "name,uuid,driver_version,power.limit,clocks.max.sm,clocks.current.sm,temperature.gpu,power.draw"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        smi = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as problem:
        smi = f"none: {problem}"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
    return {"device": torch.cuda.get_device_name(0), "nvidia_smi": {"fields": fields, "values": smi}, **versions}


# ---- the parent ---------------------------------------------------------------------------------------------------


class Measurement:
    """State over several workers: what was checked, what failed, what was timed."""

    def __init__(self, jobs: list[dict], options: argparse.Namespace) -> None:
        self.jobs, self.options = jobs, options
        self.info: dict = {}
        self.checked: dict[str, dict] = {}
        self.failed: dict[str, str] = {}
        self.trains: dict[str, list[dict]] = {}
        self.done: set[str] = set()
        self.deadline = time.monotonic() + options.seconds

    def run(self) -> None:
        """Workers until one has come to its end, or time is up."""
        for attempt in range(len(self.jobs) + 3):
            if time.monotonic() > self.deadline or self._one_worker(attempt):
                return

    def _plan(self, attempt: int) -> dict:
        right = [name for name, check in self.checked.items() if check["right"] and name not in self.failed]
        return {
            "jobs": self.jobs,
            "failed": list(self.failed),
            "checked": self.checked,
            "right": right,
            "timed": list(self.done),
            "sizes": self.options.sizes,
            "rest": self.options.rest,
            "seed": attempt,
        }

    def _one_worker(self, attempt: int) -> bool:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        lines: queue.Queue = queue.Queue()

        def read() -> None:
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        self._send(process, attempt)
        begun, hung = {"begin": "start"}, False
        while True:
            try:
                line = lines.get(timeout=max(0.1, min(HANG_S, self.deadline - time.monotonic())))
            except queue.Empty:
                hung = True
                process.kill()
                break
            if line is None:
                break
            if not line.startswith("{"):
                continue
            record = json.loads(line)
            if "begin" in record:
                begun = record
                if record["begin"] == "end of checks":
                    self._send(process, attempt)
            elif "info" in record:
                self.info = self.info or record["info"]
            elif "check" in record:
                self.checked[record["job"]] = record["check"]
            elif "seconds" in record:
                self.trains.setdefault(record["key"], []).append(record)
            elif "done" in record:
                self.done.add(record["key"])
        status = process.wait()
        if status == 0 and not hung:
            return True
        if hung and time.monotonic() >= self.deadline:
            print(f"out of time at {begun}", file=sys.stderr)
            return True
        errors.seek(0)
        last = errors.read()[-600:]
        name = begun["begin"]
        if name in ("start", "library", "end of checks"):
            print(f"the worker ended at '{name}': {last}", file=sys.stderr)
            return attempt >= 2
        reason = f"{'hung' if hung else f'ended the worker ({status})'} at {begun.get('what', '')}"
        self.failed[name] = f"{reason} {'' if hung else last}"
        self.checked.setdefault(name, {"right": False, "why": self.failed[name]})
        for key in [key for key in self.trains if key not in self.done]:
            del self.trains[key]  # that group starts afresh
        return False

    def _send(self, process: subprocess.Popen, attempt: int) -> None:
        try:
            process.stdin.write(json.dumps(self._plan(attempt)) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # the worker has died: the reader sees its end


def summarise(measurement: Measurement) -> list[dict]:
    from nearpeak.timing.statistics import median, spread

    rows = []
    for key, trains in measurement.trains.items():
        by_name: dict[str, list[float]] = {}
        for train in trains:
            by_name.setdefault(train["job"], []).extend(train["seconds"])
        library = median(by_name["library"]) if "library" in by_name else None
        jobs = {job["id"]: job for job in measurement.jobs}
        some_job = next((jobs[name] for name in by_name if name in jobs), None)
        if some_job is None:
            continue
        for name, seconds in by_name.items():
            work, unit = amount(some_job, trains[0]["shape"])
            middle = median(seconds)
            of_trains = [median(t["seconds"]) for t in trains if t["job"] == name]
            errors = [t["error_to_library"] for t in trains if t["job"] == name and "error_to_library" in t]
            rows.append(
                {
                    "key": key,
                    "name": name,
                    "shape": trains[0]["shape"],
                    "seconds": middle,
                    "spread": spread(seconds) if len(seconds) > 1 else None,
                    "samples": len(seconds),
                    "median_of_each_train": of_trains,
                    "rate": work / middle,
                    "unit": f"{unit}/s",
                    "share_of_library": library / middle if library else None,
                    "error_to_library": errors[0] if errors else None,
                }
            )
    return rows


def print_tables(measurement: Measurement, rows: list[dict]) -> None:
    print(f"{'check':44} {'right':6} {'worst error':>12} {'regs':>5} {'local B':>8}")
    for job in measurement.jobs:
        check_ = measurement.checked.get(job["id"], {"right": None, "why": "not reached"})
        error, registers = check_.get("worst_error"), check_.get("registers", "")
        figures = f"{error:12.2e} {registers:>5} {check_.get('local_bytes', ''):>8}" if error is not None else ""
        print(f"{job['id'][:44]:44} {check_['right']!s:6} {figures} {check_.get('why', '')[:300]}")
    for key, group in itertools.groupby(rows, key=lambda row: row["key"]):
        print(f"\n{key:44} {'T…/s':>8} {'share':>7} {'spread':>7} {'to library':>11}   trains")
        for row in group:
            spread_, error = row["spread"], row["error_to_library"]
            print(
                f"{row['name'][:44]:44} {row['rate'] / 1e12:8.2f} {row['share_of_library'] or math.nan:7.1%} "
                f"{math.nan if spread_ is None else spread_:7.1%} {math.nan if error is None else error:11.1e}   "
                + " ".join(f"{s * 1e3:.4g}" for s in row["median_of_each_train"])
                + " ms"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--only", default="", help="parts of file or kernel names, separated by commas")
    parser.add_argument("--sizes", default="4096,8192", help="of the timed matrix products")
    parser.add_argument("--no-variants", action="store_true", help="the files as they are, nothing else")
    parser.add_argument("--rest", type=float, default=0.6, help="seconds of rest before each train of calls")
    parser.add_argument("--seconds", type=float, default=145.0, help="stop after so long, with what there is")
    parser.add_argument("--architecture", default="sm_90", help="for kernels without wgmma")
    parser.add_argument("--compile-only", action="store_true", help="no GPU needed")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(json.loads(sys.stdin.readline()))
        return 0
    options.sizes = [int(size) for size in options.sizes.split(",")]
    jobs = all_jobs([part for part in options.only.split(",") if part], not options.no_variants)
    measurement = Measurement(jobs, options)
    with tempfile.TemporaryDirectory() as folder:
        cuda_jobs = [job for job in jobs if job["file"].endswith(".cu")]
        with ThreadPoolExecutor(16) as pool:
            messages = pool.map(lambda job: compile_job(job, Path(folder), options.architecture), cuda_jobs)
            for job, message in zip(cuda_jobs, messages, strict=True):
                if message:
                    measurement.failed[job["id"]] = message
                    measurement.checked[job["id"]] = {"right": False, "why": f"does not compile: {message}"}
        if not options.compile_only:
            measurement.run()
    rows = summarise(measurement)
    print_tables(measurement, rows)
    if options.out:
        document = {
            "schema": "nearpeak ladder 1",
            "method": METHOD,
            "command": shlex.join(sys.argv),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": measurement.info,
            "jobs": [{key: job[key] for key in job if key != "cubin"} for job in jobs],
            "checks": measurement.checked,
            "failed": measurement.failed,
            "rows": rows,
        }
        options.out.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return 0 if all(check.get("right") for check in measurement.checked.values()) else 3


if __name__ == "__main__":
    sys.exit(main())
