"""Triton functions (interpreted on the CPU) and callables of the user's own file."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nearpeak.kernelcheck.kernel import Kernel
from nearpeak.kernelcheck.kernel_failed import KernelFailed, OutputRefused
from nearpeak.kernelcheck.load import load_kernel
from nearpeak.records.errors import UserError

pytest.importorskip("triton", reason="Triton is not published for this system")

EXAMPLES = Path(__file__).parent.parent / "examples" / "kernels"
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
CPU_ONLY = pytest.mark.skipif(DEVICE.type == "cuda", reason="Triton is compiled here, not interpreted")

TRITON = """
import triton
import triton.language as tl

@triton.jit
def product(a, b, c, m, n, k, stride_am, stride_ak, B: tl.constexpr, EXTRA: tl.constexpr = 0):
    r = tl.arange(0, B)
    sums = tl.zeros((B, B), tl.float32)
    for first in range(0, k, B):
        steps = first + r
        a_at = a + r[:, None] * stride_am + steps[None, :] * stride_ak
        x = tl.load(a_at, mask=(r[:, None] < m) & (steps[None, :] < k), other=0.0)
        y = tl.load(b + steps[:, None] * n + r[None, :], mask=(steps[:, None] < k) & (r[None, :] < n), other=0.0)
        sums = tl.dot(x, y, sums, input_precision="ieee")
    tl.store(c + r[:, None] * n + r[None, :], sums.to(c.dtype.element_ty), mask=(r[:, None] < m) & (r[None, :] < n))

@triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32})], key=["n"])
@triton.jit
def twice(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
"""


def load(folder: Path, text: str, name: str, **flags: str) -> Kernel:
    path = folder / "mine.py"
    path.write_text(text)
    return load_kernel(f"{path}:{name}", flags, DEVICE)


def product_tensors(m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    make = {"a": torch.randn(m, k), "b": torch.randn(k, n), "c": torch.full((m, n), float("nan"))}
    return {name: tensor.to(DEVICE, dtype) for name, tensor in make.items()}


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)])
def test_a_triton_product(tmp_path: Path, dtype: torch.dtype, bound: float) -> None:
    """bf16 too, which the interpreter by itself multiplies as integers."""
    kernel = load(tmp_path, TRITON, "product", grid="1", args="a, b, c, m, n, k, k, 1", constants="B=32")
    assert (kernel.language, kernel.device) == ("Triton", DEVICE)
    tensors = product_tensors(17, 30, 70, dtype)
    call = kernel.bind(tensors, {"m": 17, "n": 30, "k": 70})
    call.run()
    right = tensors["a"].double() @ tensors["b"].double()
    assert ((call.outputs()["c"].double() - right).norm() / right.norm()).item() < bound
    assert call.seconds(2) is None


@pytest.mark.parametrize("name", ["matmul_fp32", "matmul_nt_bf16", "matmul_nt_bf16_tensors"])
def test_the_triton_example(name: str) -> None:
    kernel = load_kernel(f"{EXAMPLES / 'matmul_triton.py'}:{name}", {}, DEVICE)
    m, n, k = 33, 72, 24
    tensors = product_tensors(m, n, k, torch.float32 if name == "matmul_fp32" else torch.bfloat16)
    right = tensors["a"].double() @ tensors["b"].double()
    if "_nt_" in name:
        tensors["b"] = tensors["b"].T.contiguous()
    call = kernel.bind(tensors, {"m": m, "n": n, "k": k})
    call.run()
    assert ((call.outputs()["c"].double() - right).norm() / right.norm()).item() < 4e-3


def test_an_autotuned_kernel(tmp_path: Path) -> None:
    kernel = load(tmp_path, TRITON, "twice", grid="ceil(n / 16)", args="x, y, n")
    x = torch.randn(37, device=DEVICE)
    call = kernel.bind({"x": x, "y": torch.zeros_like(x)}, {"n": 37})
    call.run()
    assert torch.equal(call.outputs()["y"], 2 * x)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"args": "a, b, c, m, n, k"}, r"takes 8 arguments beside its constants .*the declaration names 6"),
        ({"constants": "C=3"}, "has no constant 'C'"),
        ({"constants": None}, "constant 'B' has no value; add '# nearpeak: constants B="),
        ({"grid": None}, "declares no grid"),
        ({"grid": "m - m"}, "grid.x is 0"),
        ({"args": "a, b, c, m, n, k, q, 1"}, "argument 'q'"),
        ({"require": "m > 100"}, "requires m > 100; here m = 4"),
    ],
)
def test_triton_launches_that_are_not_possible(tmp_path: Path, flags: dict, message: str) -> None:
    given = {"grid": "1", "args": "a, b, c, m, n, k, k, 1", "constants": "B=32", **flags}
    kernel = load(tmp_path, TRITON, "product", **given)
    with pytest.raises(UserError, match=message):
        kernel.bind(product_tensors(4, 4, 4, torch.float32), {"m": 4, "n": 4, "k": 4})


@CPU_ONLY
def test_triton_imported_too_early(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRITON)
    program = (
        "import os; os.environ.pop('TRITON_INTERPRET', None); import triton, torch\n"
        "from nearpeak.kernelcheck.load import load_kernel\n"
        f"load_kernel({str(tmp_path / 'mine.py') + ':twice'!r}, {{}}, torch.device('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "UserError: without a GPU a Triton kernel runs in Triton's interpreter, but" in done.stderr
    late = program.replace("import triton, torch", "import torch")
    assert subprocess.run([sys.executable, "-c", late], capture_output=True, text=True).returncode == 0


def test_triton_kernel_that_breaks(tmp_path: Path) -> None:
    text = "import triton\n@triton.jit\ndef f(x, n):\n    oops\n"
    call = load(tmp_path, text, "f", grid="1", args="x, n").bind({"x": torch.zeros(4, device=DEVICE)}, {"n": 4})
    with pytest.raises(KernelFailed, match=r"mine\.py.*"):
        call.run()


# ---- callables ----------------------------------------------------------------------------------------------------

CALLABLES = """
import torch
import beside

def returning(a, b): return a @ b
def writing(a, b, c): torch.matmul(a, b, out=c)
def with_sizes(a, b, m): return (a @ b).reshape(m, -1)
def many(*tensors): return tensors[0] @ tensors[1]
def breaking(a, b):
    raise ValueError("of no use")
def silent(a, b): pass
def two(a, b): return a @ b, a
def a_list(a, b): return (a @ b).tolist()
class Lazy(torch.Tensor): pass
def lazy(a, b): return (a @ b).as_subclass(Lazy)
def elsewhere(a, b): return torch.empty(4, 5, device="meta")
compiled = returning
number = 3
"""


def call_of(folder: Path, name: str, **flags: str):
    (folder / "beside.py").write_text("")
    tensors = product_tensors(4, 5, 6, torch.float32)
    return load(folder, CALLABLES, name, **flags).bind(tensors, {"m": 4, "n": 5, "k": 6}), tensors


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("returning", None),
        ("returning", "a, b"),
        ("writing", None),
        ("writing", "a, b, c"),
        ("with_sizes", "a, b, m"),
        ("many", "a, b"),
        ("compiled", None),
    ],
)
def test_callables(tmp_path: Path, name: str, args: str | None) -> None:
    call, tensors = call_of(tmp_path, name, args=args)
    call.run()
    got = call.outputs()["c"]
    assert torch.allclose(got, tensors["a"] @ tensors["b"])
    assert (got is tensors["c"]) == (name == "writing")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("name", "slip", "message"),
    [
        ("silent", "nothing", "returned nothing; where it writes into c, name it among the args"),
        ("two", "count", "returned 2 results, the op has 1"),
        ("a_list", "count|not a tensor", "returned"),
        ("lazy", "subclass", "a Lazy for 'c', a subclass of torch.Tensor"),
        ("elsewhere", "device", "returned 'c' on meta, its inputs lie on"),
    ],
)
def test_results_that_are_refused(tmp_path: Path, name: str, slip: str, message: str) -> None:
    call, _ = call_of(tmp_path, name)
    call.run()
    with pytest.raises(OutputRefused, match=message) as error:
        call.outputs()
    assert error.value.slip in slip.split("|")


def test_callables_that_break_or_cannot_be_understood(tmp_path: Path) -> None:
    call, _ = call_of(tmp_path, "breaking")
    with pytest.raises(KernelFailed, match=r"mine\.py:10: ValueError: of no use") as error:
        call.run()
    assert not error.value.context_lost
    with pytest.raises(UserError, match="does not fit the op's 3 tensors; say what it takes"):
        call_of(tmp_path, "many")
    with pytest.raises(UserError, match="'number' cannot be called"):
        call_of(tmp_path, "number")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found\ndef f(x): pass", r"mine\.py:1: the file cannot be imported: ModuleNotFoundError"),
        ("def f(x): pass\n\n1 / 0", r"mine\.py:3: the file cannot be imported: ZeroDivisionError"),
        ("def f(x): pass\nimport sys\nsys.exit(3)", r"mine\.py:3: the file cannot be imported: SystemExit: 3"),
        ("def f(x): pass\ndel f", "defines no 'f' when it is imported"),
    ],
)
def test_files_that_cannot_be_imported(tmp_path: Path, text: str, message: str) -> None:
    before = set(sys.modules)
    with pytest.raises(UserError, match=message):
        load(tmp_path, text, "f")
    assert not [name for name in set(sys.modules) - before if "mine" in name and "del" not in text]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_on_a_gpu(tmp_path: Path, dtype: torch.dtype) -> None:
    test_a_triton_product(tmp_path, dtype, 1e-6 if dtype == torch.float32 else 4e-3)
    test_an_autotuned_kernel(tmp_path)
    for name in ("matmul_fp32", "matmul_nt_bf16", "matmul_nt_bf16_tensors"):
        test_the_triton_example(name)


@pytest.mark.gpu
def test_callables_on_a_gpu(tmp_path: Path) -> None:
    for name, args in (("returning", None), ("writing", "a, b, c")):
        test_callables(tmp_path, name, args)
