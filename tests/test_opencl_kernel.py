"""OpenCL kernels, end to end on a CPU's OpenCL. Where there is none CI fails, and others are told what is missing."""

import os
from pathlib import Path

import pytest
import torch

from nearpeak.kernelcheck import opencl_devices
from nearpeak.kernelcheck.load import load_kernel
from nearpeak.kernelcheck.opencl_kernel import OpenClKernel
from nearpeak.records.errors import UserError

EXAMPLES = Path(__file__).parent.parent / "examples" / "kernels"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def device() -> opencl_devices.OpenClDevice:
    try:
        return opencl_devices.choose_device("cpu")
    except UserError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


def load(path: Path, text: str, **flags: str) -> OpenClKernel:
    path.write_text(text)
    return load_kernel(str(path), flags, CPU, opencl="cpu")


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (33, 65, 17), (127, 129, 131), (1, 300, 5)])
def test_the_example_multiplies(m: int, n: int, k: int) -> None:
    kernel = load_kernel(str(EXAMPLES / "matmul.cl"), {}, CPU, opencl="cpu")
    assert (kernel.language, kernel.device) == ("OpenCL", CPU)
    tensors = {"a": torch.randn(m, k), "b": torch.randn(k, n), "c": torch.full((m, n), float("nan"))}
    call = kernel.bind(tensors, {"m": m, "n": n, "k": k})
    call.run()
    got, right = call.outputs()["c"].double(), tensors["a"].double() @ tensors["b"].double()
    assert got.data_ptr() != 0
    assert ((got - right).norm() / right.norm()).item() < 1e-6
    assert call.outputs()["c"] is tensors["c"]
    seconds = call.seconds(5)
    assert len(seconds) == 5
    assert all(0 < one < 60 for one in seconds)


def test_inputs_changed_between_runs_are_seen(device: opencl_devices.OpenClDevice, tmp_path: Path) -> None:
    text = """kernel void twice(global const float* x, global float* y, int n) {
        int i = get_global_id(0);
        if (i < n) y[i] = 2 * x[i];
    }"""
    kernel = load(tmp_path / "x.cl", text, grid="ceil(n / 8)", block="8", args="x, y, n")
    whole = torch.zeros(64)
    for n in (1, 7, 13):  # views that lie at no particular address
        x, y = torch.randn(n), whole[3 : 3 + n]
        call = kernel.bind({"x": x, "y": y}, {"n": n})
        call.run()
        assert torch.equal(call.outputs()["y"], 2 * x)
        x.fill_(5)
        y.fill_(float("nan"))
        call.run()
        assert call.outputs()["y"].tolist() == [10.0] * n


def test_each_type_of_number(device: opencl_devices.OpenClDevice, tmp_path: Path) -> None:
    text = """typedef unsigned int u32;
    kernel void sum(global float* y, int a, uint b, long c, ulong d, float e, short f, u32 g) {
        if (get_global_id(0) == 0) y[0] = a + b + (float)c + (float)d + e + f + g;
    }"""
    kernel = load(tmp_path / "x.cl", text, grid="1", block="1", args="y, -n, n, n * 10, 100, 1000, n - 1, 4")
    call = kernel.bind({"y": torch.zeros(1)}, {"n": 3})
    call.run()
    assert call.outputs()["y"].item() == 0 + 30 + 100 + 1000 + 2 + 4


def test_bf16_bits_pass_through(device: opencl_devices.OpenClDevice, tmp_path: Path) -> None:
    text = (
        "kernel void f(global const ushort* x, global ushort* y, int n) { y[get_global_id(0)] = x[get_global_id(0)]; }"
    )
    kernel = load(tmp_path / "x.cl", text, grid="n", block="1", args="x, y, n")
    x = torch.randn(5).bfloat16()
    call = kernel.bind({"x": x, "y": torch.zeros_like(x)}, {"n": 5})
    call.run()
    assert torch.equal(call.outputs()["y"], x)


@pytest.mark.parametrize("wanted", ["intel", "portable"])
def test_a_build_error_names_the_line(device: opencl_devices.OpenClDevice, tmp_path: Path, wanted: str) -> None:
    names = [f"{one.name} {one.platform}".lower() for one in opencl_devices.opencl_devices()]
    if not any(wanted in name for name in names):
        pytest.skip(f"no such driver here: {wanted}")
    path = tmp_path / "x.cl"
    path.write_text("\n\nkernel void f(global int* a) {\n  a[0] = oops;\n}\n")
    with pytest.raises(UserError, match=r"^\S+x\.cl:4:10: .*undeclared identifier 'oops'"):
        load_kernel(str(path), {}, CPU, opencl=wanted)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"args": "x"}, r"takes 2 arguments, the declaration names 1"),
        ({"args": "n, x"}, "takes an address, 'n' is a number"),
        ({"args": "x, q"}, "argument 'q': "),
        ({"args": "x, n * 4000000000"}, "cannot hold"),
        ({"args": "tensormap(x, 4, 4), n"}, "tensor maps? "),
        ({"block": "2048"}, "block.x is 2048"),
        ({"shared": "64"}, "declares its local memory itself"),
        ({"grid": "n - 3"}, "grid.x is 0"),
    ],
)
def test_launches_that_are_not_possible(
    device: opencl_devices.OpenClDevice, tmp_path: Path, flags: dict[str, str], message: str
) -> None:
    given = {"grid": "1", "block": "8", "args": "x, n", **flags}
    kernel = load(tmp_path / "x.cl", "kernel void f(global float* x, int n) {}", **given)
    with pytest.raises(UserError, match=message):
        kernel.bind({"x": torch.zeros(4)}, {"n": 3})


def test_a_block_that_the_kernel_forbids(device: opencl_devices.OpenClDevice) -> None:
    kernel = load_kernel(str(EXAMPLES / "matmul.cl"), {"block": "8, 8"}, CPU, opencl="cpu")
    tensors = {name: torch.zeros(16, 16) for name in "abc"}
    with pytest.raises(UserError, match="cannot be launched with"):
        kernel.bind(tensors, {"m": 16, "n": 16, "k": 16}).run()


def test_devices_are_named(device: opencl_devices.OpenClDevice) -> None:
    assert device.kind == "cpu"
    assert device.units >= 1
    with pytest.raises(UserError, match=r"no OpenCL device 'no such thing'; there are: .*cpu"):
        opencl_devices.choose_device("no such thing")


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        Error = RuntimeError

        @staticmethod
        def get_platforms() -> list:
            raise RuntimeError("PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(opencl_devices, "import_pyopencl", lambda: Nothing)
    with pytest.raises(UserError, match=r"no OpenCL device: .*pip install pyopencl"):
        opencl_devices.opencl_devices()
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "pyopencl", None)
    with pytest.raises(UserError, match="need pyopencl"):
        opencl_devices.opencl_devices()
