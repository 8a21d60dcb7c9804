"""Write the generated files of the chart: `make charts`. With --check, only name those that are out of date.

slipstream/README.md             from README.template.md, the comments of values.yaml, and ci/
slipstream/files/redis/          copies of deploy/redis, because Helm reads files of the chart's folder only
slipstream/files/rules/recording.yaml    the limits of the clip fraction in it; see clip_limits.py
slipstream/ci/rendered/gpu.yaml  the objects that ci/gpu-values.yaml renders
slipstream/ci/rendered/*.diff    how the objects of another example differ from gpu.yaml; see differences.py
"""

import argparse
import re
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from clip_limits import with_clip_limits
from differences import changes, difference
from documentation import tables
from render import CHART, ROOT, examples, read_release, render_objects, render_text

REDIS = ROOT / "deploy/redis"
REDIS_FILES = ("start.sh", "users.acl.template")
BASE = "gpu"
"""The example whose objects are written in full."""

CHECKSUM = re.compile(r"\b[0-9a-f]{64}\b")
OWNED = ("ci/rendered/*",)


def readme() -> str:
    """Return the README of the chart."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    template = (CHART / "README.template.md").read_text(encoding="utf-8")
    rows = [f"| [{file.stem}](ci/{file.name}) | {_first_comment(file)} |" for file in examples()]
    listed = "\n".join(["| values | |", "|---|---|", *rows])
    return template.replace("{{examples}}", listed).replace("{{values}}", tables(values).rstrip("\n"))


def copies() -> dict[Path, bytes]:
    """Return copies of the files of deploy/redis that the chart installs."""
    return {CHART / "files/redis" / name: (REDIS / name).read_bytes() for name in REDIS_FILES}


def rules() -> dict[Path, bytes]:
    """Return the recording rules with the limits that the objectives declare."""
    path = CHART / "files/rules/recording.yaml"
    return {path: with_clip_limits(path.read_text(encoding="utf-8")).encode()}


def renderings() -> dict[Path, bytes]:
    """Return one example in full, and the differences of the others from it."""
    folder = CHART / "ci/rendered"
    objects = {file.stem.removesuffix("-values"): comparable_objects(file) for file in examples()}
    full = CHECKSUM.sub("(checksum)", render_text(read_release(CHART / f"ci/{BASE}-values.yaml")))
    texts = {
        folder / f"{name}.diff": f"# ci/{name}-values.yaml in comparison with {BASE}.yaml\n\n"
        + difference(objects[BASE], documents)
        for name, documents in objects.items()
        if name != BASE
    }
    return {path: text.encode() for path, text in {folder / f"{BASE}.yaml": full, **texts}.items()}


def comparable_objects(file: Path) -> list[dict[str, Any]]:
    """The objects of an example, without checksums, without texts that are files, and under one name.

    A release may choose the name of its objects (`nameOverride`); they are called demo-slipstream here.
    """
    release = read_release(file)
    name = f"{release.name}-{release.values.get('nameOverride') or 'slipstream'}"
    objects = [_comparable(document, name) for document in render_objects(release)]
    for document in objects:
        if document["kind"] == "PrometheusRule":
            document["spec"] = _compared_with_its_file(document)
    return objects


def _comparable(value: Any, name: str) -> Any:
    match value:
        case dict():
            return {key: _comparable(item, name) for key, item in value.items()}
        case list():
            return [_comparable(item, name) for item in value]
        case str():
            shown = f"(the text of {file})" if (file := _chart_files().get(value.strip())) else value
            return CHECKSUM.sub("(checksum)", shown).replace(name, f"demo-{CHART.name}")
        case _:
            return value


@cache
def _chart_files() -> dict[str, str]:
    """Return the path of each file that templates read, by its text."""
    files = [path for path in (CHART / "files").rglob("*") if path.is_file()]
    return {path.read_text(encoding="utf-8").strip(): str(path.relative_to(CHART)) for path in sorted(files)}


def _compared_with_its_file(document: dict[str, Any]) -> dict[str, list[str]]:
    """Return how the rules of an object differ from the file that they are made of."""
    path = f"files/rules/{document['metadata']['name'].partition('-rules-')[2]}.yaml"
    groups = yaml.safe_load((CHART / path).read_text(encoding="utf-8"))
    return {f"({path})": list(changes(groups, document["spec"]))}


def bring_up_to_date(wanted: dict[Path, bytes], *, write: bool) -> list[Path]:
    """Return the files whose content is not the wanted one; write them if `write`."""
    changed = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content]
    for path in changed if write else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    return changed


def leftovers(wanted: dict[Path, bytes]) -> list[Path]:
    """Return the files in folders of generated files that are not generated any more."""
    return [path for pattern in OWNED for path in sorted(CHART.glob(pattern)) if path not in wanted]


def generate(*, write: bool) -> list[Path]:
    """Return the files that are out of date; write them if `write`. Templates read copies and rules."""
    first = {**copies(), **rules()}
    changed = bring_up_to_date({CHART / "README.md": readme().encode(), **first}, write=write)
    rendered = renderings()
    changed += bring_up_to_date(rendered, write=write)
    gone = leftovers({**first, **rendered})
    for path in gone if write else ():
        path.unlink()
    return [*changed, *gone]


def _first_comment(file: Path) -> str:
    lines = takewhile(lambda line: line.startswith("# "), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("# ") for line in lines)


def main() -> int:
    """Return the exit status: 1 if --check finds a file that is out of date."""
    parser = argparse.ArgumentParser(description="Write the chart's generated files.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if that would change a file"
    )
    check: bool = parser.parse_args().check
    changed = generate(write=not check)
    for path in changed:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
