"""YAML in which a key may stand once in a section: the later one would win in silence."""

from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"


class DuplicateKey(ValueError):
    """A key stands twice in one section; the message names it and its lines."""


class UniqueKeys(yaml.SafeLoader):
    """A SafeLoader that refuses a key for the second time. A merged key (`<<`) may be replaced."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A section. Errors: DuplicateKey."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise DuplicateKey(
                    f"line {line}: `{key.value}` stands here again, after line {lines[key.value]}; keep one"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)
