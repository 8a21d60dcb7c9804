"""The difference between two rendered releases, object by object and key by key. Pure.

A line names the place of a value in its object. An element of a list is identified by its `name`, if
all elements have one, and by its index if not:

    Deployment/demo-slipstream-replay
    - spec.template.spec.containers[replay].resources.limits.memory: "8Gi"
    + spec.template.spec.containers[replay].resources.limits.memory: "16Gi"

No line numbers and no context lines: a change that both releases share leaves their difference as it was.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import yaml

MARGIN = "+     "
"""Before the lines of an added mapping or list, which follow the line with its place."""


def difference(base: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]]) -> str:
    """Return what `other` has (+) and lacks (-) in comparison with `base`; one block of lines an object."""
    before, after = _by_name(base), _by_name(other)
    blocks = [_block(name, before.get(name), after.get(name)) for name in sorted({**before, **after})]
    return "\n".join(block for block in blocks if block)


def _by_name(documents: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in documents}


def _block(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if after is None:
        return f"- {name}\n"
    if before is None:
        return "\n".join([f"+ {name}", *_tree(after), ""])
    lines = list(changes(before, after))
    return "\n".join([name, *lines, ""]) if lines else ""


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """One line for each value that was removed (-) or added (+), with its path below `path`."""
    match before, after:
        case Mapping(), Mapping():
            yield from _of_mappings(before, after, path, "{}.{}" if path else "{}{}")
        case list(), list() if _named(before) and _named(after):
            yield from _of_mappings(_named(before), _named(after), path, "{}[{}]")
        case list(), list() if len(before) == len(after) and all(isinstance(i, Mapping) for i in before):
            for index, (old, new) in enumerate(zip(before, after, strict=True)):
                yield from changes(old, new, f"{path}[{index}]")
        case list(), list():
            yield from _of_sequences(before, after, path + "[{}]: ")
        case str(), str() if "\n" in before + after:
            yield from _of_sequences(before.splitlines(), after.splitlines(), path + " | ", show=str)
        case _ if before != after:
            yield f"- {path}" if isinstance(before, Mapping | list) else f"- {path}: {json.dumps(before)}"
            yield from _added(path, after)


def _of_mappings(before: Mapping[str, Any], after: Mapping[str, Any], path: str, form: str) -> Iterator[str]:
    for key in before:
        if key in after:
            yield from changes(before[key], after[key], form.format(path, key))
        else:
            yield f"- {form.format(path, key)}"
    for key in after:
        if key not in before:
            yield from _added(form.format(path, key), after[key])
    expected = [key for key in before if key in after] + [key for key in after if key not in before]
    if "[" in form and list(after) != expected:
        yield f"+ {path}: the order is {', '.join(after)}"


def _of_sequences(
    before: Sequence[Any], after: Sequence[Any], form: str, *, show: Any = json.dumps
) -> Iterator[str]:
    """Compare the lines of two texts, or the elements of two lists, whose index `form` shows."""
    old, new = [show(item) for item in before], [show(item) for item in after]
    for tag, start, end, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (f"- {form.format(at)}{old[at]}".rstrip() for at in range(start, end))
            yield from (f"+ {form.format(at)}{new[at]}".rstrip() for at in range(first, last))


def _added(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield f"+ {path}:"
        yield from _tree(value)
    else:
        yield f"+ {path}: {json.dumps(value)}"


def _tree(value: Any) -> list[str]:
    text = yaml.dump(value, Dumper=_Blocks, sort_keys=False, width=10**9, allow_unicode=True)
    return [(MARGIN + line).rstrip() for line in text.splitlines()]


def _named(items: Sequence[Any]) -> dict[str, Any]:
    """Return the elements by their name; nothing if an element has none, or two have the same."""
    names = [_name(item) if isinstance(item, Mapping) else None for item in items]
    unique = None not in names and len(set(names)) == len(names)
    return dict(zip(names, items, strict=True)) if unique else {}


def _name(item: Mapping[str, Any]) -> str | None:
    return next((item[key] for key in ("name", "alert", "record") if item.get(key)), None)


class _Blocks(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)
