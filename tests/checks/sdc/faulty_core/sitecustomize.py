"""
Python imports this when a process starts: torch's products are wrong on the last core.

Nothing is loaded for it. The fault comes with torch, whenever that is loaded: what was done
before then is what is tested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent
"""For PYTHONPATH."""
LAST = (os.cpu_count() or 1) - 1
"""The core that has the fault."""


class TorchFinder(MetaPathFinder):
    """Finds torch where it is, and puts the fault into it once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing but torch."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torch" else None
        if spec is not None and spec.loader is not None:
            load: Any = spec.loader.exec_module

            def load_with_fault(module: Any) -> None:
                load(module)
                break_products(module)

            spec.loader.exec_module = load_with_fault  # type: ignore[method-assign]
        return spec


def break_products(torch: Any) -> None:
    """Hold a bit at one in one lane of 16, always, of products that the last core makes."""
    multiply = torch.mm

    def err(a: Any, b: Any, out: Any) -> Any:
        multiply(a, b, out=out)
        if os.sched_getaffinity(0) == {LAST}:
            words = out.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()])
            words[:, 5::16] |= 1 << 9
        return out

    torch.mm = err


if any(word.startswith("hpcverify") for word in sys.orig_argv):  # a worker
    sys.meta_path.insert(0, TorchFinder())
