"""The processes of a local run: their commands, dependencies and restarts."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slipstream.config import RunConfig, stages
from slipstream.config.rewards.models import ScoringModel

REPLAY, VERIFIER, TEACHER, LEARNER = "replay", "verifier", "teacher", "learner"
ROLLOUT, ACTOR = "rollout", "actor"
ADDRESS_VARIABLES = {
    REPLAY: "SLIPSTREAM_REPLAY_ADDRESS",
    VERIFIER: "SLIPSTREAM_VERIFIER_ADDRESS",
    TEACHER: "SLIPSTREAM_TEACHER_ADDRESS",
    LEARNER: "SLIPSTREAM_LEARNER_ADDRESS",
}
METRICS_PORT_VARIABLE = "SLIPSTREAM_METRICS_PORT"
SERVICE_START_SECONDS = 60.0
WORK_STOP_SECONDS, SERVICE_STOP_SECONDS = 9.0, 12.0
LEARNER_STALL_SECONDS = 60.0
RESTARTS = 3
HEALTHY_SECONDS = 600.0
TORCHRUN = "slipstream.learner.torchrun"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """How one process of a run is started and restarted."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Pods whose addresses the pod needs to start."""
    start_seconds: float = SERVICE_START_SECONDS
    """Longest time from the start to the ready file."""
    restarts: int = RESTARTS
    """Most restarts after unexpected exits, one after the other."""
    healthy_seconds: float = HEALTHY_SECONDS
    """Time that a pod must have been ready for its restarts to count from 0 again."""
    pause_seconds: float = 1.0
    """Pause before the first restart; it doubles with each restart."""
    stop_seconds: float = WORK_STOP_SECONDS
    """Longest time from SIGTERM to SIGKILL; for the learner, longest time without progress
    (`Supervisor.stop_work`)."""
    metrics_port: int = 0
    """Port of the /metrics page; 0 takes a free one."""

    @property
    def works(self) -> bool:
        """Whether the pod returns leases or writes checkpoints at its end; such pods stop first."""
        return self.name == LEARNER or self.name.startswith((ROLLOUT, ACTOR))


def local_pods(config: RunConfig) -> tuple[PodSpec, ...]:
    """Return the pods of a run on this machine, in the order of their start."""
    engine, workers = config.rollout.start_timeout_seconds, range(config.rollout.workers)
    services = [_pod(REPLAY), _pod(VERIFIER, start_seconds=_verifier_start_seconds(config.rewards))]
    stage = next((stage for stage in config.stages if isinstance(stage, stages.SampledStage)), None)
    module = f"{LEARNER}.stage" if stage else LEARNER
    learner_needs: tuple[str, ...] = (REPLAY,)
    if config.algorithm.resolved_distillation() is not None:
        services.append(_pod(TEACHER, start_seconds=config.teacher.start_timeout_seconds))
        learner_needs = (REPLAY, TEACHER)
    learner = _pod(module, name=LEARNER, needs=learner_needs, start_seconds=engine, restarts=0)
    if config.learner.ranks > 1 and not stage:
        learner = replace(learner, command=(sys.executable, "-m", TORCHRUN, str(config.learner.ranks)))
    needs = (REPLAY, LEARNER)
    rollouts = [_pod(ROLLOUT, name=f"{ROLLOUT}-{i}", needs=needs, start_seconds=engine) for i in workers]
    actors = [_pod(ACTOR, name=f"{ACTOR}-{i}", needs=(REPLAY, VERIFIER)) for i in range(config.actor.workers)]
    if isinstance(stage, stages.DistillationStage):
        teacher = ("--set", f"model.path={json.dumps(str(stage.teacher.absolute()))}")
        rollouts = [replace(rollout, command=(*rollout.command, *teacher)) for rollout in rollouts]
        actors = [replace(actor, command=(*actor.command, *teacher)) for actor in actors]
    return _with_metrics_ports([*services, learner, *rollouts, *actors], config.telemetry.port)


def address_environment(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with the addresses of other pods."""
    return {
        ADDRESS_VARIABLES[name]: address for name, address in addresses.items() if name in ADDRESS_VARIABLES
    }


def _verifier_start_seconds(rewards: Iterable[object]) -> float:
    """Return the start deadline of the verifier, which loads its models one after the other."""
    models = (reward for reward in rewards if isinstance(reward, ScoringModel))
    return SERVICE_START_SECONDS + sum(model.start_timeout_seconds for model in models)


def _pod(
    module: str,
    *,
    name: str = "",
    needs: tuple[str, ...] = (),
    start_seconds: float = SERVICE_START_SECONDS,
    restarts: int = RESTARTS,
) -> PodSpec:
    services = dict.fromkeys((REPLAY, VERIFIER, TEACHER), SERVICE_STOP_SECONDS)
    stop = {**services, LEARNER: LEARNER_STALL_SECONDS}
    return PodSpec(
        name=name or module,
        command=(sys.executable, "-m", f"slipstream.{module}"),
        needs=needs,
        start_seconds=start_seconds,
        restarts=restarts,
        stop_seconds=stop.get(name or module, WORK_STOP_SECONDS),
    )


def _with_metrics_ports(specs: list[PodSpec], first: int) -> tuple[PodSpec, ...]:
    """Number the metrics ports of the pods from telemetry.port on, if it is fixed."""
    return tuple(replace(spec, metrics_port=first + i if first else 0) for i, spec in enumerate(specs))
