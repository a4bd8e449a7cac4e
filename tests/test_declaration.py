"""`nearpeak:` comment lines, and flags that win over them."""

from pathlib import Path

import pytest

from nearpeak.kernelcheck.declaration import choose, merge, read_declarations, split
from nearpeak.kernelcheck.kernel import Declaration
from nearpeak.records.errors import UserError

EXAMPLES = Path(__file__).parent.parent / "examples" / "kernels"
TWO = """// A comment.
// nearpeak: kernel first
// nearpeak: op matmul
// nearpeak: grid ceil(m / 16), ceil(n / 16)
// nearpeak: block 16, 16
// nearpeak: args tensormap(a, 64, 128, swizzle128), b, c, m, n, k
// nearpeak: require k % 8 == 0
//   nearpeak:   kernel   second
// nearpeak: precision bf16
// nearpeak: constants BLOCK=64, TWICE=2*64
// nearpeak: launch num_warps=8
__global__ void first() {}  // nearpeak: shared 5
"""


def test_keys_belong_to_the_last_kernel_line() -> None:
    first, second = read_declarations(TWO, "//")
    assert first == Declaration(
        kernel="first",
        op="matmul",
        grid=("ceil(m / 16)", "ceil(n / 16)"),
        block=("16", "16"),
        args=("tensormap(a, 64, 128, swizzle128)", "b", "c", "m", "n", "k"),
        require="k % 8 == 0",
        line=2,
    )
    assert (second.kernel, second.precision, second.line) == ("second", "bf16", 8)
    assert second.constants == {"BLOCK": 64, "TWICE": 128}
    assert second.launch == {"num_warps": 8}


def test_python_comments() -> None:
    (one,) = read_declarations("x = 1\n# nearpeak: kernel f\n    # nearpeak: op copy\n", "#", line_offset=10)
    assert (one.kernel, one.op, one.line) == ("f", "copy", 12)
    assert read_declarations(TWO, "#") == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("grids 1", "unknown key 'grids'; keys: kernel, op"),
        ("op copy", "'op' is given twice"),
        ("grid", "'grid' has no value"),
        ("grid 1, 2, 3, 4", "4 dimensions"),
        ("grid m +", "cannot be read"),
        ("constants A", "NAME=NUMBER"),
        ("constants A=1, A=2", "'A' is given twice"),
        ("launch num_warp=4", "unknown launch option 'num_warp'"),
        ("kernel f", "declared twice"),
        ("args a,, b", "empty argument"),
        ("line 3", "unknown key 'line'"),
    ],
)
def test_mistakes_name_file_and_line(line: str, message: str) -> None:
    text = f"\n// nearpeak: kernel f\n// nearpeak: op copy\n// nearpeak: {line}\n"
    with pytest.raises(UserError, match=rf"x\.cu:4: .*{message}"):
        read_declarations(text, "//", "x.cu")


def test_a_key_before_any_kernel() -> None:
    with pytest.raises(UserError, match=r"x\.cu:1: 'op' comes before any 'kernel' line"):
        read_declarations("// nearpeak: op copy\n", "//", "x.cu")


def test_choose() -> None:
    both = read_declarations(TWO, "//")
    assert choose(both[:1], None).kernel == "first"
    assert choose(both, "second").kernel == "second"
    with pytest.raises(UserError, match=r"2 kernels \(first, second\); name one: x\.cu:NAME"):
        choose(both, None, "x.cu")
    with pytest.raises(UserError, match="no kernel 'third'; it declares: first, second"):
        choose(both, "third")


def test_flags_win_and_leave_the_rest() -> None:
    first, second = read_declarations(TWO, "//")
    merged = merge(first, {"block": "32, 8", "op": None, "precision": "fp16"})
    assert (merged.block, merged.op, merged.precision, merged.grid) == (("32", "8"), "matmul", "fp16", first.grid)
    assert merge(second, {"constants": "BLOCK=32"}).constants == {"BLOCK": 32, "TWICE": 128}
    alone = merge(Declaration(kernel="f"), {"grid": "1", "args": ("a", "b")})
    assert (alone.grid, alone.args) == (("1",), ("a", "b"))


def test_flags_are_checked() -> None:
    with pytest.raises(UserError, match="'girds' is no key"):
        merge(Declaration(kernel="f"), {"girds": "1"})
    with pytest.raises(UserError, match=r"--grid: 'm \+' cannot be read"):
        merge(Declaration(kernel="f"), {"grid": "m +"})


def test_split_leaves_brackets_whole() -> None:
    assert split("f(a, b), (c, d)[1, 2], e") == ("f(a, b)", "(c, d)[1, 2]", "e")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*")), ids=lambda path: path.name)
def test_every_example_is_declared(path: Path) -> None:
    if path.suffix not in (".cu", ".cl", ".py"):
        return
    found = read_declarations(path.read_text(), "#" if path.suffix == ".py" else "//", str(path))
    assert found
    assert all(one.op and one.grid and one.args for one in found)
