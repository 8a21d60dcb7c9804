"""Generate services/slipstream/v1 from the .proto files: `python proto/generate.py [OUTPUT_ROOT]`.

Uses grpcio-tools 1.71, whose output loads under every protobuf runtime from 5.29 on.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
SOURCE_ROOT = PROTO_ROOT.parent / "services"


def generate(output_root: Path) -> list[Path]:
    """Write *_pb2.py, *_pb2.pyi and *_pb2_grpc.py below output_root/slipstream/v1; returns the files."""
    output_root.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.rglob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={PROTO_ROOT}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--python_out={output_root}",
        f"--pyi_out={output_root}",
        f"--grpc_python_out={output_root}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; see above")
    return sorted((output_root / "slipstream" / "v1").glob("*_pb2*.py*"))


if __name__ == "__main__":
    for written in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_ROOT):
        print(written)
