# ruff: noqa: INP001, PLC0415
"""Makes torch believe in GPUs where REHEARSAL_GPUS says how many: see ../README.md."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

if os.environ.get("REHEARSAL_GPUS"):
    sys.path.append(str(Path(__file__).parents[3]))

    from tests.rehearsal.smaller import SMALLER, shrink

    class _After(importlib.abc.MetaPathFinder):
        """Lets modules be found as ever, and changes some of them right after."""

        def find_spec(
            self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            if fullname != "torch" and fullname not in SMALLER:
                return None
            spec = importlib.machinery.PathFinder.find_spec(fullname, path)
            if spec is None or spec.loader is None:
                return spec
            whole = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                whole(module)
                if fullname == "torch":
                    from tests.rehearsal import cuda_on_cpu

                    cuda_on_cpu.install()
                else:
                    shrink(fullname, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, _After())
    if os.environ.get("REHEARSAL_TRITON", "hidden") == "hidden":
        sys.modules["triton"] = None  # type: ignore[assignment] # as where it is not installed
