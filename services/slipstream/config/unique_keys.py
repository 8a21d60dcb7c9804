"""A YAML loader that refuses duplicate keys. PyYAML would silently take the last one."""

from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"


class DuplicateKey(ValueError):
    """A section has a key twice; the message names the key and both lines."""


class UniqueKeys(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys. A key merged by `<<` may be replaced."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the section of a YAML node. Errors: DuplicateKey."""
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
