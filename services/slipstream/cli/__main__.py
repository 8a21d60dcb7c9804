"""The `slipstream` command.

    slipstream run CONFIG [--set KEY=VALUE ...] [--resume [RUN_DIR]] [--plain]
    slipstream validate CONFIG [--set KEY=VALUE ...] [--try]
    slipstream validate [CONFIG] --values FILE ... [--set KEY=VALUE ...] [--models DIR] [--data DIR]
    slipstream warmup [CONFIG] [--model DIR] [--data FILE] [--output DIR] [--steps N] [--set KEY=VALUE ...]
    slipstream algorithms [NAME]
    slipstream algorithms check FUNCTION|KIND [--argument NAME=VALUE ...]
    slipstream schema
    slipstream export CHECKPOINT OUTPUT [--dtype float32|bfloat16]
    slipstream cluster status|scale|logs|pause|resume [--release NAME] [--namespace NAME] [--context NAME]
    slipstream probe replay|verifier|teacher|learner|circle --config FILE ... [--deadline SECONDS]
    slipstream probe send-weights --config FILE ... [--mib N] [--rounds N] [--cpu] [--deadline SECONDS]
    slipstream probe receive-weights TICKET
    slipstream control pause|resume|checkpoint [RUN_DIR] [--reason TEXT] [--wait SECONDS]
    slipstream doctor
    slipstream status [RUN_DIR] [--json]
    slipstream ledger [RUN_DIR] [--json]
    slipstream plot [RUN_DIR ...] [KEY ...] [--output DIR] [--format png|svg]
    slipstream samples [RUN_DIR] [--step N] [--group NAME [--member N]] [--text TEXT] [--json] ...
    slipstream console [RUN_DIR] [--port PORT] [--host HOST --token-file FILE]
    slipstream lab [RUN_DIR] [--step N] [--output FILE] [--json]
    slipstream score FILE [--reward NAME ...] [--config RUN] [--set KEY=VALUE ...] [--column USE=NAME ...]
    slipstream certs DIR [--roles ROLE ...] [--san ROLE=NAME ...] [--trust-domain NAME] [--days N]

Exit status: 0 success, or an orderly stop after one Ctrl-C; 1 failure; 2 wrong usage or configuration;
130 after a second Ctrl-C.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slipstream import __version__
from slipstream.cli import console, control, doctor, errors, lab, ledger, plot, samples, score, subcommand
from slipstream.cli.clusters import cluster, probe
from slipstream.cli.status import add_status

USAGE_ERROR, FAILED, KILLED = 2, 1, 130
REQUEST: Final = "_ARGCOMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. An error becomes one message on stderr."""
    parser = _parser()
    answer_shell(parser)
    arguments = parser.parse_args(argv)
    _take_config_from_options(arguments)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except errors.CommandError as error:
        return _fail(error, error.status)
    except (ValueError, OSError) as error:
        return _fail(error, USAGE_ERROR if isinstance(error, ValueError) else FAILED)
    except KeyboardInterrupt:
        return KILLED


def _run(arguments: argparse.Namespace) -> int:
    from slipstream.cli import hub
    from slipstream.cli.run import run_command
    from slipstream.cli.validate import require_valid
    from slipstream.config import apply_environment, load_config
    from slipstream.hub.model import with_local_model

    config = apply_environment(load_config(arguments.config, arguments.set))
    pinned = hub.pinned(config, resume=arguments.resume)
    for note in require_valid(with_local_model(pinned, weights=False), str(arguments.config), gpus="error"):
        print(f"note: {note}", flush=True)
    local = hub.with_weights(pinned)
    return run_command(config, local=local, resume=arguments.resume, plain=arguments.plain)


def _validate(arguments: argparse.Namespace) -> int:
    if arguments.values:
        return _validate_release(arguments)
    from slipstream.cli import hub
    from slipstream.cli.validate import validate_command
    from slipstream.config import apply_environment, load_config
    from slipstream.hub.model import with_local_model
    from slipstream.hub.revisions import commits

    config = apply_environment(load_config(arguments.config, arguments.set))
    pinned = hub.pinned(config)
    local = with_local_model(pinned, weights=False)
    status = validate_command(local, str(arguments.config), tries=arguments.tries)
    for revision, commit in commits(config, pinned).items():
        print(
            f"  note: {revision} is commit {commit}; set the revision to it for pods that start by themselves"
        )
    return status


def _validate_release(arguments: argparse.Namespace) -> int:
    from slipstream.cli.release.release import LocalFiles
    from slipstream.cli.release.validate import ValidationRequest, validate_release

    request = ValidationRequest(
        run=arguments.config,
        values=arguments.values,
        sets=arguments.set,
        set_files=arguments.set_file,
        local_files=LocalFiles(models=arguments.models, data=arguments.data, installed=arguments.installed),
    )
    return validate_release(request)


def _warmup(arguments: argparse.Namespace) -> int:
    from slipstream.cli import hub
    from slipstream.cli.warmup import warmup_command, warmup_config

    config = warmup_config(
        arguments.config, arguments.set, model=arguments.model, data=arguments.data, steps=arguments.steps
    )
    config = hub.with_weights(hub.pinned(config))
    return warmup_command(config, output=arguments.output)


def _algorithms(arguments: argparse.Namespace) -> int:
    from slipstream.cli.algorithms import algorithms_command

    return algorithms_command(arguments.preset, arguments.function, arguments.argument)


def _schema(arguments: argparse.Namespace) -> int:
    from slipstream.config.json_schema import run_schema

    print(json.dumps(run_schema(), indent=2, ensure_ascii=False))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    """Write the checkpoint in a child process, which may import torch and the learner."""
    if not arguments.checkpoint.is_dir():  # checked here, because the child process takes seconds to start
        raise errors.UsageError(f"{arguments.checkpoint} is not a directory; name a checkpoint or a run")
    command = [sys.executable, "-m", "slipstream.learner.export", str(arguments.checkpoint)]
    dtype = ["--dtype", arguments.dtype] if arguments.dtype else []
    return subprocess.call([*command, str(arguments.output), *dtype])


def _certs(arguments: argparse.Namespace) -> int:
    from slipstream.cli.clusters.certs import certs_command

    return certs_command(
        arguments.directory,
        roles=arguments.roles,
        sans=arguments.san,
        trust_domain=arguments.trust_domain,
        days=arguments.days,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slipstream", description="Asynchronous RL for language models.")
    parser.add_argument("--version", action="version", version=f"slipstream {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = _command(commands, "run", _run, "train a model, with all parts on this machine")
    run.add_argument(
        "--resume", nargs="?", const="", metavar="RUN_DIR", help="continue a run; default: the newest one"
    )
    run.add_argument(
        "--plain", action="store_true", help="print one plain line for each step, on a terminal too"
    )
    validate = _command(commands, "validate", _validate, "check a configuration without starting a run")
    validate.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="run the program of an environment `program` once, with fixed answers in the policy's place",
    )
    _add_release(validate)
    warmup = _command(commands, "warmup", _warmup, "make and train the initial model, supervised")
    warmup.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face directory to start from")
    warmup.add_argument("--data", type=Path, metavar="FILE", help="JSONL rows of prompt and answer")
    warmup.add_argument(
        "--output", type=Path, metavar="DIR", help="directory of the model; default: in the cache"
    )
    warmup.add_argument("--steps", type=int, help="optimizer steps")
    algorithms = subcommand.add_subcommand(
        commands, "algorithms", _algorithms, "list the algorithms, or explain one"
    )
    of = "a preset, or the kind of a part; `check` tests an objective"
    algorithms.add_argument("preset", nargs="?", metavar="NAME", help=of)
    of = "with check: package.module:function of your own, or the kind of an objective"
    algorithms.add_argument("function", nargs="?", metavar="FUNCTION", help=of)
    of = "with check: a further argument of the function, in JSON"
    algorithms.add_argument(
        "--argument", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=of
    )
    subcommand.add_subcommand(
        commands, "schema", _schema, "print the JSON schema of a run's YAML, for editors"
    )
    export = subcommand.add_subcommand(
        commands, "export", _export, "write a checkpoint as a Hugging Face directory"
    )
    export.add_argument(
        "checkpoint", type=Path, help="a checkpoint, or a run, whose newest checkpoint is taken"
    )
    export.add_argument("output", type=Path, help="new directory for the model")
    dtype = "precision of the weights; default: learner.checkpoint.model_dtype of the run, else model.dtype"
    export.add_argument("--dtype", choices=("float32", "bfloat16"), help=dtype)
    cluster.add_cluster(commands)
    probe.add_probe(commands)
    control.add_control(commands)
    doctor.add_doctor(commands)
    lab.add_lab(commands)
    console.add_console(commands)
    ledger.add_ledger(commands)
    plot.add_plot(commands)
    samples.add_samples(commands)
    score.add_score(commands)
    add_status(commands)
    _add_certs(commands)
    return parser


def _add_certs(commands: subcommand.Subcommands) -> None:
    text = "make or renew certificates for development: an authority, and one certificate for each role"
    certs = subcommand.add_subcommand(commands, "certs", _certs, text)
    certs.add_argument("directory", type=Path, metavar="DIR", help="folder of the certificates")
    certs.add_argument(
        "--roles", nargs="+", action="extend", default=[], metavar="ROLE", help="default: all roles"
    )
    certs.add_argument(
        "--san",
        nargs="+",
        action="extend",
        default=[],
        metavar="ROLE=NAME",
        help="a further DNS name or IP address of a role",
    )
    certs.add_argument(
        "--trust-domain", metavar="NAME", help="trust domain of all identities; default: slipstream"
    )
    certs.add_argument("--days", type=int, default=90, help="validity in days; default: 90")


def _add_release(validate: argparse.ArgumentParser) -> None:
    group = validate.add_argument_group(
        "a Helm release", "With --values, --set has helm's syntax, and KEY is one of the chart's values."
    )
    group.add_argument(
        "-f",
        "--values",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="file with values of the chart",
    )
    group.add_argument(
        "--set-file",
        action="append",
        default=[],
        metavar="KEY=FILE",
        help="set a value to the text of a file",
    )
    group.add_argument(
        "--models", type=Path, metavar="DIR", help="copy of the volume that the learner mounts at /models"
    )
    group.add_argument(
        "--installed",
        action="store_true",
        help="the command runs in a pod, and helm has already compared run and values",
    )
    group.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="copy of the volume that replay mounts at the chart's data.mountPath",
    )


def _command(
    commands: subcommand.Subcommands,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help: str,
) -> argparse.ArgumentParser:
    parser = subcommand.add_subcommand(commands, name, function, help)
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="YAML file of the run")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="replace one key, dotted"
    )
    parser.set_defaults(name=name, parser=parser)
    return parser


def _take_config_from_options(arguments: argparse.Namespace) -> None:
    """Move a CONFIG that argparse read as a value of `--set` or `--resume` to `arguments.config`.

    Both options take a variable number of values, so argparse assigns a CONFIG behind them to the option.
    """
    if not hasattr(arguments, "parser"):
        return
    if arguments.name == "validate":
        _require_values(arguments)
    if arguments.config is None and arguments.set and "=" not in arguments.set[-1]:
        arguments.config = Path(arguments.set.pop())
    resume = getattr(arguments, "resume", None)
    if arguments.config is None and resume and Path(resume).is_file():
        arguments.config, arguments.resume = Path(resume), ""
    if arguments.config is None and arguments.name != "warmup" and not getattr(arguments, "values", None):
        arguments.parser.error("the following arguments are required: CONFIG")


def _require_values(arguments: argparse.Namespace) -> None:
    """Exit with an error if an option of a release is used without --values."""
    if arguments.tries and arguments.values:
        arguments.parser.error("--try runs the program on this machine; leave --values out")
    for option in ("set_file", "models", "data", "installed"):
        if getattr(arguments, option) and not arguments.values:
            arguments.parser.error(
                f"--{option.replace('_', '-')} needs --values FILE, the values of a Helm release"
            )


def _fail(error: Exception, status: int) -> int:
    print(f"slipstream: {error}", file=sys.stderr)
    return status


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Write the possible words and exit, if a shell asks for them. Otherwise argcomplete is not imported.

    A shell that completes `slipstream …` starts the command with `_ARGCOMPLETE` set, and reads the words.
    """
    if REQUEST not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:  # the shell's function is that of another environment
        sys.exit(1)
    argcomplete.autocomplete(parser)


if __name__ == "__main__":
    sys.exit(main())
