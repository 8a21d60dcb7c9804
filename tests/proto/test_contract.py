"""The proto files are documented, and the committed code is generated from them."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))
DECLARATION = re.compile(r"^\s*(?:(?:rpc|message|enum|service)\s+(\w+)|(?:[\w.<>, ]+\s)?(\w+)\s*=\s*\d+;)")


def uncommented(text: str) -> list[str]:
    """Return the names that are declared without a comment on the line above.

    The comment of an rpc is also that of its messages, the comment of a field also that of its type.
    """
    declared, previous_line = [], ""
    for line in text.splitlines():
        match = DECLARATION.match(line)
        if match and not previous_line.strip().startswith("//"):
            declared.append(match.group(1) or match.group(2))
        previous_line = line
    return [
        name
        for name in declared
        if not re.search(rf"(\(|stream ){name}\)|^ +{name} \w+ =", text, re.MULTILINE)
    ]


def test_regenerating_gives_the_committed_code_byte_for_byte(tmp_path: Path) -> None:
    generate = runpy.run_path(str(ROOT / "proto" / "generate.py"))["generate"]
    written = {path.name: path.read_bytes() for path in generate(tmp_path)}
    committed = {
        path.name: path.read_bytes() for path in (ROOT / "services/slipstream/v1").glob("*_pb2*.py*")
    }
    assert written == committed


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.stem)
def test_every_rpc_message_enum_and_field_has_a_comment(path: Path) -> None:
    assert uncommented(path.read_text(encoding="utf-8")) == []


def test_a_field_without_a_comment_is_reported() -> None:
    text = "// A thing.\nmessage Thing {\n  repeated int64 count = 1;\n}\nenum Colour {\n  RED = 0;\n}"
    assert uncommented(text) == ["count", "Colour", "RED"]
