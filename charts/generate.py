"""Writes what the chart carries but does not own: `make charts`; with --check only says what is out of date.

slipstream/README.md          from README.template.md, the comments of values.yaml, and ci/
slipstream/files/             copies of rules, dashboards and Redis' start: Helm reads its own folder only
slipstream/ci/rendered/       what each file of values in ci/ renders
slipstream.cli.release.chart  copies of the chart's values and schema, for `slipstream validate --values`
"""

import argparse
import sys
from itertools import takewhile
from pathlib import Path

import yaml
from documentation import tables
from render import CHART, ROOT, examples, read_release, render_text

DEPLOY = ROOT / "deploy"
PROGRAM = ROOT / "services/slipstream/cli/release/chart"
REDIS_FILES = ("start.sh", "users.acl.template")
OWNED = ("files/rules/*.yaml", "files/dashboards/*.json", "ci/rendered/*.yaml")


def readme() -> str:
    """The chart's README."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    template = (CHART / "README.template.md").read_text(encoding="utf-8")
    rows = [f"| [{file.stem}](ci/{file.name}) | {_first_comment(file)} |" for file in examples()]
    listed = "\n".join(["| values | |", "|---|---|", *rows])
    return template.replace("{{examples}}", listed).replace("{{values}}", tables(values).rstrip("\n"))


def copies() -> dict[Path, bytes]:
    """Files of deploy/ that the chart installs, and of the chart that the program reads, byte for byte."""
    rules = [file for file in sorted((DEPLOY / "prometheus").glob("*.yaml")) if _is_rules(file)]
    boards = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    redis = [DEPLOY / "redis" / name for name in REDIS_FILES]
    folders = (("rules", rules), ("dashboards", boards), ("redis", redis))
    installed = {
        CHART / "files" / folder / file.name: file.read_bytes() for folder, files in folders for file in files
    }
    values = {PROGRAM / name: (CHART / name).read_bytes() for name in ("values.yaml", "values.schema.json")}
    return {**installed, **values}


def renderings() -> dict[Path, bytes]:
    """What each file of values renders, with the chart as it is on disk."""
    return {
        CHART / "ci" / "rendered" / file.name.replace("-values", ""): render_text(read_release(file)).encode()
        for file in examples()
    }


def bring_up_to_date(wanted: dict[Path, bytes], *, write: bool) -> list[Path]:
    """The files that differ from what is wanted, now written if asked."""
    changed = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content]
    for path in changed if write else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    return changed


def leftovers(wanted: dict[Path, bytes]) -> list[Path]:
    """Files in the folders that are written here, which nothing makes any more."""
    return [path for pattern in OWNED for path in sorted(CHART.glob(pattern)) if path not in wanted]


def generate(*, write: bool) -> list[Path]:
    """What is out of date; brought up to date if asked. Copies come first: renderings contain them."""
    first = copies()
    changed = bring_up_to_date({CHART / "README.md": readme().encode(), **first}, write=write)
    rendered = renderings()
    changed += bring_up_to_date(rendered, write=write)
    gone = leftovers({**first, **rendered})
    for path in gone if write else ():
        path.unlink()
    return [*changed, *gone]


def _is_rules(file: Path) -> bool:
    return "groups" in (yaml.safe_load(file.read_text(encoding="utf-8")) or {})


def _first_comment(file: Path) -> str:
    lines = takewhile(lambda line: line.startswith("# "), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("# ") for line in lines)


def main() -> int:
    """Exit status: 1 with --check when something is out of date."""
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
