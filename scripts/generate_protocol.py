"""Makes the Python modules of trajectories.proto; with --check only says whether they are up to date."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "tinker_atropos" / "protocol"
NAMES = ("trajectories_pb2.py", "trajectories_pb2.pyi", "trajectories_pb2_grpc.py")


def generate(folder: Path) -> dict[str, str]:
    status = protoc.main(
        [
            "protoc",
            f"-I{PACKAGE}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            "trajectories.proto",
        ]
    )
    if status != 0:
        sys.exit(f"protoc ended with status {status}")
    texts = {name: (folder / name).read_text() for name in NAMES}
    # protoc writes a top-level import; the module lives in a package.
    grpc = texts["trajectories_pb2_grpc.py"]
    texts["trajectories_pb2_grpc.py"] = grpc.replace(
        "import trajectories_pb2 as trajectories__pb2",
        "from tinker_atropos.protocol import trajectories_pb2 as trajectories__pb2",
    )
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 when a file is stale")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        texts = generate(Path(folder))
    stale = [
        name for name, text in texts.items() if not (PACKAGE / name).exists() or (PACKAGE / name).read_text() != text
    ]
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make generate`")
    for name in stale:
        (PACKAGE / name).write_text(texts[name])


if __name__ == "__main__":
    main()
