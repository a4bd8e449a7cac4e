"""The user's own Python file, imported because they asked to have it checked."""

from __future__ import annotations

import itertools
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from nearpeak.records.errors import UserError


def import_file(path: Path) -> ModuleType:
    """Import the user's file under a name of its own, its folder on sys.path for the time.

    Raises UserError with the line where the import fails.
    """
    full = path.resolve()
    stem = f"_nearpeak_kernel_{full.stem}"
    name = next(n for n in (f"{stem}_{i}" for i in itertools.count()) if n not in sys.modules)
    spec = spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(full.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        where = place_in(error, full)
        text = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"{where or path}: the file cannot be imported: {type(error).__name__}: {text}") from error
    finally:
        sys.path.remove(str(full.parent))
    return module


def place_in(error: BaseException, path: Path) -> str | None:
    """FILE:LINE of the innermost frame in the user's file."""
    full = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == full:
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == full]
    return f"{path}:{lines[-1]}" if lines else None


def find(module: ModuleType, name: str, path: Path) -> Any:
    if not hasattr(module, name):
        raise UserError(f"{path} defines no '{name}' when it is imported")
    return getattr(module, name)
