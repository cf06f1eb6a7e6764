"""
Make a node with eight GPUs that only the double of NVML shows, and print how to be on it:
``eval "$(python -m tests.nvml_lab FOLDER)"``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from tests.nvml_lab.nvmllab import Lab, build


def main() -> None:
    """Make the node in the folder that is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.nvml_lab")
    parser.add_argument("folder", type=Path, help="where the node's files go")
    folder: Path = parser.parse_args().folder.resolve()
    if folder.exists():
        parser.error(f"{folder} exists: name a new folder, or remove this one")
    folder.mkdir(parents=True)
    lab = Lab(folder, build(folder))
    lab.write("# what is wrong with the GPUs of this node: nothing")
    exports = {
        "LD_LIBRARY_PATH": folder,
        "NVML_LAB_SCENARIO": lab.scenario,
        "HPCVERIFY_STATE": folder / "state",
        "HPCVERIFY_CONFIG": folder / "site.toml",
        "SLURMD_NODENAME": "gpu-node",
    }
    (folder / "site.toml").touch()
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in exports.items()]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
