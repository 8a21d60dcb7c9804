"""The tables of figures in README and docs: their commands, the measured code, their places and bounds.

    python -m benchmarks.figures [NAME ...] [--quick]

Run the command of each figure. The output of the command replaces the last table, between
`<!-- figure: NAME -->` and `<!-- end of figure: NAME -->`, with the commit and the machine. A figure whose
bounds do not hold is not written, and the exit status is 1. Bounds are on ratios (ratio.py), never on times.
`--quick` runs the short form of each, compares it with looser bounds, and writes nothing.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ratio import ratios_of

ROOT = Path(__file__).resolve().parent.parent
MOST_COMMITS = 50
"""Changes of the measured code after which a table is too old. Merges do not count."""
CODE = "services/slipstream"


class MissedBound(Exception):
    """A figure's command printed a ratio outside its bound, or none of that name."""


class NoHistory(Exception):
    """The checkout lacks the commits in question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least or the most value of a ratio, and the looser bounds of the short form.
    They are None if the short form does not print the ratio."""

    ratio: str
    least: float | None = None
    most: float | None = None
    quick_least: float | None = None
    quick_most: float | None = None

    def check(self, ratios: Mapping[str, float], *, quick: bool) -> None:
        """Check the ratios of an output. Errors: MissedBound."""
        least, most = (self.quick_least, self.quick_most) if quick else (self.least, self.most)
        if least is None and most is None:
            return
        if self.ratio not in ratios:
            raise MissedBound(f"{self.ratio}: not printed; the ratios are {', '.join(ratios) or 'none'}")
        value = ratios[self.ratio]
        if least is not None and not value >= least:
            raise MissedBound(f"{self.ratio}: {value:g}, must be at least {least:g}")
        if most is not None and not value <= most:
            raise MissedBound(f"{self.ratio}: {value:g}, must be at most {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One table of the docs. `{commit}` in an argument is replaced by the measured commit."""

    name: str
    command: tuple[str, ...]
    """A module of this package, and its arguments."""
    quick: tuple[str, ...] | None
    """The arguments of the short form: under a minute on two cores."""
    measures: tuple[str, ...]
    """Files and folders, besides the module, whose change may change the figure."""
    bounds: tuple[Bound, ...]
    page: str = "docs/benchmarks.md"
    fenced: bool = False
    """Whether the output is plain text instead of Markdown."""

    @property
    def code(self) -> tuple[str, ...]:
        """Return all files and folders whose change may change the figure."""
        path = f"benchmarks/{self.command[0]}"
        return (path if (ROOT / path).is_dir() else f"{path}.py", *self.measures)

    @property
    def markers(self) -> tuple[str, str]:
        """Return the markers before and after the table."""
        return f"<!-- figure: {self.name} -->", f"<!-- end of figure: {self.name} -->"

    def arguments(self, *, quick: bool, commit: str) -> list[str]:
        """Return the arguments of the interpreter."""
        module, *full = self.command
        settings = [part.format(commit=commit) for part in ((self.quick or ()) if quick else full)]
        return ["-m", f"benchmarks.{module}", *settings]


ALGORITHMS, CONFIG, LEARNER = f"{CODE}/algorithms", f"{CODE}/config", f"{CODE}/learner"
REPLAY, ROLLOUT, VERIFIER = f"{CODE}/replay", f"{CODE}/rollout", f"{CODE}/verifier"
RPC, WEIGHTS, ANSWERS = f"{CODE}/rpc", f"{CODE}/weights", f"{CODE}/answers"
SANDBOX, PROCESSES = f"{CODE}/sandbox", f"{CODE}/processes"


def example(name: str, *bounds: Bound, files: tuple[str, ...], environment: str) -> Figure:
    """Return the figure of an example with an environment.

    It has no short form: nothing is learned in a minute, and tests/system/test_examples.py runs a few steps.
    """
    return Figure(
        name=name,
        command=("examples", name),
        quick=None,
        measures=(
            *(f"examples/{file}" for file in (f"{name}.yaml", *files)),
            *(f"{CODE}/actor/{part}" for part in ("environment.py", environment)),
            ALGORITHMS,
            f"{LEARNER}/training",
        ),
        bounds=bounds,
        page="docs/examples.md",
    )


FIGURES = (
    Figure(
        name="quickstart",
        command=("quickstart",),
        quick=("--in-process",),
        measures=("examples/addition.yaml", CODE),  # a whole run
        bounds=(
            Bound(ratio="held-out accuracy, after / before", least=1.5),
            Bound(ratio="ledger residual", most=0),
            Bound(ratio="share of the time that the learner is idle", most=0.25),
            Bound(ratio="accuracy of the batches, last / first", quick_least=1.4),
            Bound(ratio="accuracy of the last batches, four times as old / as old", quick_least=0.8),
        ),
        page="README.md",
        fenced=True,
    ),
    Figure(
        name="async",
        command=("async_vs_sync",),
        quick=("--engine", "emulated", "--steps", "14", "--mean-seconds", "0.4"),
        measures=("benchmarks/circle.py", CODE),  # a whole run
        bounds=(
            Bound(ratio="emulated engine, asynchronous / synchronous", least=2.1, quick_least=1.6),
            Bound(ratio="emulated engine, share of the ideal ratio", least=0.9),
            Bound(ratio="vllm engine, asynchronous / synchronous", least=1.05),
        ),
        fenced=True,
    ),
    Figure(
        name="actors",
        command=("actors",),
        quick=("--engine", "emulated", "--rounds", "1", "--seconds", "5", "--episodes", "100"),
        measures=(
            f"{CODE}/actor/rollouts.py",
            f"{CODE}/actor/place.py",
            f"{CODE}/actor/rollout_stream.py",
            f"{ROLLOUT}/servicer.py",
        ),
        bounds=(
            Bound(ratio="emulated, through an actor / engine alone", least=0.95, quick_least=0.8),
            Bound(ratio="vllm, through an actor / engine alone", least=0.8),
            Bound(ratio="episodes in one actor, tokens / ideal", least=0.9, quick_least=0.7),
        ),
        fenced=True,
    ),
    Figure(
        name="weights",
        command=("overlap",),
        quick=("--steps", "8", "--layers", "4", "--width", "256", "--group-size", "2", "--rounds", "1"),
        measures=("benchmarks/circle.py", WEIGHTS, f"{LEARNER}/broadcast", f"{LEARNER}/publishing.py"),
        bounds=(
            Bound(ratio="a step with overlap / without", most=1.0),
            Bound(ratio="wait to publish with overlap / without", most=0.3, quick_most=0.7),
        ),
    ),
    Figure(
        name="learner_step",
        command=("learner_step",),
        quick=(
            *(
                "--clock",
                "cpu",
                "--threads",
                "1",
                "--rounds",
                "1",
                "--groups",
                "4",
                "--sizes",
                "4000",
                "12000",
            ),
            *("--head-tokens", "2048", "--head-width", "64", "--vocabulary", "32000", "--variants", "2"),
        ),
        measures=(
            *(f"{LEARNER}/{part}" for part in ("batches", "policy", "training")),
            ALGORITHMS,
        ),
        bounds=(
            Bound(ratio="gradient, trained tokens/s of Slipstream / padded", least=2.0, quick_least=1.3),
            Bound(ratio="gradient, largest distance / norm", most=1e-4, quick_most=1e-4),
            Bound(ratio="head, memory in chunks / of all logits", most=0.25, quick_most=0.4),
            Bound(ratio="head, time in chunks / with all logits", most=1.35, quick_most=2.5),
            Bound(ratio="growth, time of a token above 4,000 tokens / at 4,000", most=1.15, quick_most=1.8),
            Bound(
                ratio="growth, memory beside the batch above 4,000 tokens / at 4,000",
                most=1.15,
                quick_most=1.3,
            ),
            Bound(ratio="short answers, time with share_prompts / without", most=0.7, quick_most=0.9),
            Bound(ratio="short answers, distance of the gradients / norm", most=1e-4, quick_most=1e-4),
        ),
    ),
    Figure(
        name="verifier",
        command=("verifier",),
        quick=("--seconds", "1.5", "exact_match", "math"),
        measures=(VERIFIER, SANDBOX, PROCESSES, RPC, ANSWERS),
        bounds=(
            Bound(ratio="completions/s, bare / exact_match", most=2.5),
            Bound(ratio="completions/s, math / exact_match", least=0.05, quick_least=0.03),
            Bound(ratio="completions/s, custom / exact_match", least=0.08),
            Bound(ratio="completions/s, code_tests / exact_match", least=0.004),
        ),
        fenced=True,
    ),
    Figure(
        name="isolation",
        command=("isolation",),
        quick=("--programs", "80"),
        measures=(SANDBOX, PROCESSES),
        bounds=(Bound(ratio="time of a child, isolated / plain", most=1.3, quick_most=2.0),),
        fenced=True,
    ),
    Figure(
        name="replay",
        command=("replay", "--memory-groups", "100000"),
        quick=("--seconds", "2", "--tokens", "1000"),
        measures=(REPLAY, RPC),
        bounds=(
            Bound(ratio="groups/s of 8 x 1,000, replay / echo", least=0.15, quick_least=0.03),
            Bound(ratio="CPU time of 8 x 1,000, replay / echo", most=6, quick_most=12),
            Bound(ratio="memory of replay, after the last groups / after the first", most=1.1),
        ),
        fenced=True,
    ),
    Figure(
        name="autoscaling",
        command=("autoscaling",),
        quick=("--scenarios", "steady", "half of the fleet is lost", "--rules", "pressure"),
        measures=("charts/slipstream/files/rules/pressure.yaml",),
        bounds=(
            Bound(ratio="pressure, largest share of the time waited", most=0.02, quick_most=0.02),
            Bound(ratio="pressure, fewest rollouts / needed", least=0.95, quick_least=0.95),
            Bound(ratio="pressure, most rollouts / needed", most=1.3, quick_most=1.3),
            Bound(ratio="pressure, most changes an hour", most=4, quick_most=4),
        ),
    ),
    Figure(
        name="objectives",
        command=("objectives",),
        quick=(
            *("--clock", "cpu", "--threads", "1", "--rounds", "2", "--longest", "0"),
            *("--tokens", "100000", "--sequences", "400"),
        ),
        measures=(ALGORITHMS,),
        bounds=(
            Bound(ratio="time of the slowest loss / pg", most=4, quick_most=6),
            Bound(ratio="most memory of a loss, in vectors of T", most=12, quick_most=22),
        ),
    ),
    Figure(
        name="operations",
        command=("objectives", "--count"),
        quick=("--count",),
        measures=(ALGORITHMS,),
        bounds=(Bound(ratio="most waits of the host in a call", most=5, quick_most=5),),
    ),
    Figure(
        name="samples",
        command=("samples",),
        quick=None,
        measures=(f"{CODE}/samples", f"{LEARNER}/training"),
        bounds=(
            Bound(ratio="time of a step that stores / of one that does not", most=1.04),
            Bound(ratio="seconds until a new process has the first page", most=4),
        ),
    ),
    Figure(
        name="console",
        command=("console",),
        quick=None,
        measures=(f"{CODE}/console", f"{CODE}/samples"),
        bounds=(
            Bound(ratio="seconds until the run page shows its numbers", most=4),
            Bound(ratio="seconds of the slowest filter", most=2),
        ),
    ),
    Figure(
        name="lab",
        command=("lab",),
        quick=None,
        measures=(f"{CODE}/lab", f"{CODE}/samples", ALGORITHMS),
        bounds=(Bound(ratio="seconds of the command with its picture", most=60),),
    ),
    Figure(
        name="pause",
        command=("weights", "--gbit", "10", "1"),
        quick=None,
        measures=(
            WEIGHTS,
            f"{CODE}/rollout/vllm_engine.py",
            f"{CODE}/rollout/weight_receiver.py",
            f"{CODE}/rollout/in_place.py",
            f"{CODE}/rollout/load_trace.py",
            f"{CODE}/rollout/scattered_writes.py",
            "benchmarks/network.py",
        ),
        bounds=(
            Bound(ratio="pause with a version received beside the weights / in the pause", most=0.8),
            Bound(ratio="bytes of a delta / of a full version", most=0.04),
            Bound(ratio="step to served of a full version / of a delta", least=1.0),
            Bound(ratio="step to served of a full version / of a delta, at 1 Gb/s", least=5.0),
            Bound(ratio="copy with the comparison / copy alone", most=4),
            Bound(ratio="milliseconds by which a request sees more of a delta than its application", most=15),
        ),
    ),
    Figure(
        name="stall",
        command=("stall",),
        quick=None,  # beside other tests the ratio says nothing
        measures=(WEIGHTS, f"{LEARNER}/broadcast/snapshot.py"),
        bounds=(
            Bound(ratio="stall of a copy beside the step / a full copy", most=0.3),
            Bound(ratio="copy and comparison before the step / a full copy", most=4),
        ),
    ),
    Figure(
        name="broadcast",
        command=("broadcast",),
        quick=None,
        measures=(WEIGHTS,),
        bounds=(
            Bound(ratio="time of a plain broadcast / of a version, 1 receiver", least=0.5),
            Bound(ratio="time of a plain broadcast / of a version, 4 receivers", least=0.5),
        ),
    ),
    Figure(
        name="clip_fractions",
        command=("clip_fractions",),
        quick=None,
        measures=("examples/addition.yaml", ALGORITHMS, f"{LEARNER}/training", f"{CODE}/lab"),
        bounds=(
            Bound(ratio="clipped tokens of ppo_clip, collapsing / healthy", least=3),
            Bound(ratio="held-out accuracy of the healthy run, after / before", least=1.1),
            Bound(ratio="held-out accuracy of the collapsing run, after / before", most=0.5),
        ),
        page="docs/objectives.md",
    ),
    Figure(
        name="staleness",
        command=("staleness_quality", "--results", "build/figures/staleness-{commit}.jsonl"),
        quick=None,  # the quickstart's short form runs the same loop, at two ages
        measures=(
            *(f"benchmarks/{name}.py" for name in ("aged_training", "circle", "sampler")),
            ALGORITHMS,
            f"{LEARNER}/training",
        ),
        bounds=(
            Bound(ratio="accuracy of cispo, after / before", least=1.4),
            Bound(ratio="accuracy of cispo, depth 8 / depth 0", least=0.93),
            Bound(ratio="accuracy of sapo, depth 8 / depth 0", least=0.93),
            Bound(ratio="accuracy of ppo_clip, depth 8 / depth 0", least=0.9),
            Bound(ratio="accuracy of pg, depth 8 / depth 0", most=0.97),
        ),
    ),
    Figure(
        name="distillation",
        command=("distillation",),
        quick=None,  # the training of a teacher takes longer than a minute
        measures=(
            "benchmarks/aged_training.py",
            "benchmarks/sampler.py",
            "examples/distillation.yaml",
            f"{ALGORITHMS}/distillation.py",
            f"{LEARNER}/training",
            f"{LEARNER}/teacher.py",
            f"{CODE}/teacher",
        ),
        bounds=(
            Bound(ratio="accuracy by reverse / the best of rewards alone", least=4),
            Bound(ratio="accuracy by forward / the best of rewards alone", least=4),
        ),
    ),
    Figure(
        name="smollm2",
        command=("smollm2",),
        quick=None,  # three steps of 135 million parameters take minutes; `make test-long` trains them
        measures=("examples/counting_smollm2.yaml", "examples/smollm2", CODE),  # the whole of it runs
        bounds=(
            Bound(ratio="accuracy by transformers, after / before", least=2.5),
            Bound(ratio="accuracy that the run measured, after / before", least=2.5),
            Bound(ratio="share of the commonest answer, after", most=0.05),
            Bound(ratio="ledger residual", most=0),
        ),
        page="docs/getting-started.md",
    ),
    Figure(
        name="math_answers",
        command=("math_answers",),
        quick=("--seeds-per-kind", "1"),
        measures=(ANSWERS,),
        bounds=(Bound(ratio="wrong verdicts of `math`", most=0, quick_most=0),),
        page="docs/rewards.md",
    ),
    example(
        "guess_number",
        Bound(ratio="held-out turns, end / start", most=0.6),
        files=("guess_number.py", "guess_number.jsonl"),
        environment="own_environment.py",
    ),
    example(
        "wordle",
        Bound(ratio="held-out games solved, end / start", least=1.8),
        files=("wordle.py", "wordle.jsonl"),
        environment="own_environment.py",
    ),
    example(
        "calculator_tool",
        Bound(ratio="held-out accuracy, end / start", least=1.5),
        Bound(ratio="calls that succeed, last 10 steps", least=0.9),
        files=("calculator_tool.py", "calculator_tool.jsonl", "calculator_demonstrations.jsonl"),
        environment="chat_tools.py",
    ),
    example(
        "agent_program",
        Bound(ratio="held-out accuracy, end / start", least=1.4),
        files=("agent_program.py", "agent_program.jsonl"),
        environment="program",
    ),
)


def measured(figure: Figure, *, quick: bool, commit: str = "") -> str:
    """Run the figure's command, show and return its output. Errors: CalledProcessError, MissedBound."""
    command = [sys.executable, *figure.arguments(quick=quick, commit=commit)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    ratios = ratios_of(done.stdout)
    for bound in figure.bounds:
        bound.check(ratios, quick=quick)
    return done.stdout.strip()


def machine() -> str:
    """Return the processor, the number of usable cores, the version of Python, and the load."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    processor = models[0] if models else platform.machine()
    python, load = platform.python_version(), os.getloadavg()[0]
    return f"{cores} cores of {processor}, Python {python}, load {load:.1f} before"


def with_table(page: str, figure: Figure, output: str, *, commit: str, where: str) -> str:
    """Return the page with the output as its table. Errors: ValueError without one pair of markers."""
    begin, end = figure.markers
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"{figure.page}: needs one `{begin}` and one `{end}` after it")
    table = f"```\n{output}\n```" if figure.fenced else output
    text = f"{begin}\nAt commit `{commit}`, on {where}:\n\n{table}\n{end}"
    return page[: page.index(begin)] + text + page[page.index(end) + len(end) :]


def commit_of(page: str, figure: Figure) -> str:
    """Return the commit of the figure's table. Errors: ValueError without one."""
    table = re.search(
        rf"{figure.markers[0]}\nAt commit `([0-9a-f]{{7,40}})`.*?{figure.markers[1]}",
        page,
        re.DOTALL,
    )
    if table is None:
        raise ValueError(f"{figure.page}: needs `{figure.markers[0]}`, then «At commit `…`»")
    return table[1]


def commits_behind(commit: str, code: Sequence[str], root: Path = ROOT) -> int:
    """Return the number of later commits that changed the code, without merges.

    Errors: NoHistory in a shallow clone or without git; ValueError when a whole history lacks the commit.
    """
    try:
        top, shallow = _git(root, "rev-parse", "--show-toplevel", "--is-shallow-repository").splitlines()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise NoHistory(f"{root} is no git repository") from error
    if Path(top) != root.resolve():
        raise NoHistory(f"{root} is no git repository of its own, it lies in that of {top}")
    if shallow == "true":
        raise NoHistory(f"{root} is a shallow clone")
    try:
        _git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError as error:
        raise ValueError(f"{commit} is not in the history of HEAD; measure again") from error
    return int(_git(root, "rev-list", "--count", "--no-merges", f"{commit}..HEAD", "--", *code))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def measure_again(figure: Figure) -> None:
    """Run the command and write the table. Errors: MissedBound, CalledProcessError; ValueError when the code
    that is measured has changes without a commit."""
    if changed := _git(ROOT, "status", "--porcelain", "--", *figure.code):
        raise ValueError(f"commit first, the table names a commit; changed are\n{changed}")
    commit, where = _git(ROOT, "rev-parse", "--short=7", "HEAD"), machine()
    output = measured(figure, quick=False, commit=commit)
    page = ROOT / figure.page
    text = with_table(page.read_text(encoding="utf-8"), figure, output, commit=commit, where=where)
    page.write_text(text, encoding="utf-8")
    print(f"written into {figure.page}", flush=True)


def main() -> None:
    """Measure the selected figures, also after a failure; exit with 1 if any failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [figure.name for figure in FIGURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--quick", action="store_true", help="the short forms; write nothing")
    arguments = parser.parse_args()
    for unknown in set(arguments.names) - set(names):
        parser.error(f"{unknown}: no such figure; there are {', '.join(names)}")
    failed = []
    for figure in FIGURES:
        if figure.name not in (arguments.names or names) or (arguments.quick and figure.quick is None):
            continue
        print(f"== {figure.name}", flush=True)
        try:
            if arguments.quick:
                measured(figure, quick=True)
            else:
                measure_again(figure)
        except (MissedBound, subprocess.CalledProcessError, ValueError) as error:
            failed.append(figure.name)
            print(f"FAILED {figure.name}: {error}", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; their tables were left as they were")


if __name__ == "__main__":
    main()
