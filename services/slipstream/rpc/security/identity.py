"""The roles of pods in certificates, and the table of the methods that each role may call."""

from collections.abc import Mapping, Sequence

ROLES = ("learner", "rollout", "actor", "verifier", "teacher", "replay", "redis", "probe", "console")
"""`redis` serves replay and calls no method. `probe` checks a deployment and changes no run. `console` shows
a run, pauses it, and has it write checkpoints."""

_REPLAY, _ROLLOUT, _FLEET, _VERIFIER, _TEACHER, _HEALTH = (
    "/slipstream.v1.Replay/",
    "/slipstream.v1.Rollout/",
    "/slipstream.v1.Fleet/",
    "/slipstream.v1.Verifier/",
    "/slipstream.v1.Teacher/",
    "/grpc.health.v1.Health/",
)

CALLERS: Mapping[str, frozenset[str]] = {
    _REPLAY + "LeasePrompts": frozenset({"actor", "probe"}),
    _REPLAY + "RenewLeases": frozenset({"actor"}),
    _REPLAY + "ReturnPrompts": frozenset({"actor", "probe"}),
    _REPLAY + "InsertGroup": frozenset({"actor"}),
    _REPLAY + "ReportRollout": frozenset({"rollout"}),
    _REPLAY + "ListRollouts": frozenset({"actor", "console"}),
    _REPLAY + "SampleBatch": frozenset({"learner"}),
    _REPLAY + "TakeFiltered": frozenset({"learner"}),
    _REPLAY + "TakeEvaluated": frozenset({"learner"}),
    _REPLAY + "AckBatch": frozenset({"learner"}),
    _REPLAY + "ReleaseBatch": frozenset({"learner"}),
    _REPLAY + "DropGroups": frozenset({"learner"}),
    _REPLAY + "AnnounceVersion": frozenset({"learner"}),
    _REPLAY + "ConfirmCheckpoint": frozenset({"learner"}),
    _REPLAY + "AttachLearner": frozenset({"learner"}),
    _REPLAY + "StartEvaluation": frozenset({"learner"}),
    _REPLAY + "GetEvaluation": frozenset({"learner"}),
    _REPLAY + "SetAdmission": frozenset({"console"}),
    _REPLAY + "GetStats": frozenset({"probe", "console"}),
    _REPLAY + "GetActivity": frozenset({"learner", "console"}),
    _ROLLOUT + "Sample": frozenset({"actor"}),
    _FLEET + "Join": frozenset({"rollout"}),
    _FLEET + "GetPolicy": frozenset({"probe", "console"}),
    _FLEET + "SaveCheckpoint": frozenset({"console"}),
    _VERIFIER + "Score": frozenset({"actor", "probe"}),
    _VERIFIER + "RunProgram": frozenset({"actor"}),
    _TEACHER + "ReadTokens": frozenset({"learner"}),
    _HEALTH + "Check": frozenset({"probe", "console"}),
    _HEALTH + "Watch": frozenset({"probe", "console"}),
}
"""Method → the roles that may call it. No role may call a method that is not listed."""


class InvalidIdentity(ValueError):
    """The URI SANs of a certificate name no role of this deployment."""


def role_of(uris: Sequence[str], *, trust_domain: str) -> str:
    """Return the role of a certificate with these URI SANs.

    Errors: InvalidIdentity unless there is exactly one, `spiffe://<trust_domain>/<role>` with a known role.
    """
    wanted = f"spiffe://{trust_domain}/ROLE with ROLE one of {', '.join(ROLES)}"
    if len(uris) != 1:
        carried = ", ".join(uris) or "none"
        raise InvalidIdentity(f"it must carry exactly one URI, {wanted}; it carries {carried}")
    scheme, _, rest = uris[0].partition("://")
    domain, _, role = rest.partition("/")
    if scheme != "spiffe":
        raise InvalidIdentity(f"its URI is {uris[0]}, and must be {wanted}")
    if domain != trust_domain:
        raise InvalidIdentity(
            f"it is of the trust domain {domain}, and ours is {trust_domain} (rpc.tls.trust_domain)"
        )
    if role not in ROLES:
        raise InvalidIdentity(f"its role is {role!r}, and must be one of {', '.join(ROLES)}")
    return role


def may_call(role: str, method: str) -> bool:
    """Return whether a role may call a method, written `/package.Service/Method`."""
    return role in CALLERS.get(method, frozenset())
