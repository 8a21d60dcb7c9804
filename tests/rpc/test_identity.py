"""The table of roles and methods, and the URI that a certificate must have."""

import re
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from slipstream.rpc.security.identity import CALLERS, ROLES, InvalidIdentity, may_call, role_of
from slipstream.v1 import learner_pb2, replay_pb2, rollout_pb2, teacher_pb2, verifier_pb2

FILES = (learner_pb2, replay_pb2, rollout_pb2, teacher_pb2, verifier_pb2, health_pb2)


def test_every_rpc_of_every_service_is_in_the_table_and_nothing_else() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(CALLERS) == methods


def test_every_method_has_callers_and_every_caller_is_a_role() -> None:
    assert all(CALLERS.values())
    assert set().union(*CALLERS.values()) <= set(ROLES)


def test_the_documentation_has_the_same_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    services = "Replay|Rollout|Fleet|Verifier|Teacher|Health"
    rows = re.findall(rf"^\| ({services}) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    written = {
        (service, method): frozenset(roles.split(", "))
        for service, methods, roles in rows
        for method in re.findall(r"`(\w+)`", methods)
    }
    assert written == {
        (method.split("/")[1].rpartition(".")[2], method.split("/")[2]): callers
        for method, callers in CALLERS.items()
    }


def test_a_method_outside_of_the_table_may_be_called_by_no_role() -> None:
    assert not any(may_call(role, "/slipstream.v1.Replay/Forget") for role in ROLES)


def test_only_the_learner_changes_the_version_and_only_an_actor_inserts_groups() -> None:
    batches = {"AckBatch", "DropGroups", "ReleaseBatch"}
    for name in batches | {"AnnounceVersion", "AttachLearner", "ConfirmCheckpoint"}:
        assert CALLERS[f"/slipstream.v1.Replay/{name}"] == {"learner"}
    assert CALLERS["/slipstream.v1.Replay/InsertGroup"] == {"actor"}
    assert CALLERS["/slipstream.v1.Fleet/Join"] == {"rollout"}


def test_a_console_may_look_pause_and_save_and_call_nothing_else() -> None:
    assert {method for method in CALLERS if may_call("console", method)} == {
        "/slipstream.v1.Replay/GetStats",
        "/slipstream.v1.Replay/GetActivity",
        "/slipstream.v1.Replay/ListRollouts",
        "/slipstream.v1.Replay/SetAdmission",
        "/slipstream.v1.Fleet/GetPolicy",
        "/slipstream.v1.Fleet/SaveCheckpoint",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
    for method in ("Replay/SetAdmission", "Fleet/SaveCheckpoint"):
        assert CALLERS[f"/slipstream.v1.{method}"] == {"console"}


def test_the_role_is_the_last_part_of_the_only_uri() -> None:
    assert [role_of([f"spiffe://d.e/{role}"], trust_domain="d.e") for role in ROLES] == list(ROLES)


@pytest.mark.parametrize(
    ("uris", "says"),
    [
        ([], "carries none"),
        (["spiffe://d/replay", "spiffe://d/learner"], "exactly one URI"),
        (["https://d/replay"], "its URI is https://d/replay"),
        (["spiffe://e/replay"], "it is of the trust domain e, and ours is d"),
        (["spiffe://d/"], "its role is ''"),
        (["spiffe://d/nginx"], "its role is 'nginx'"),
        (["spiffe://d/replay/learner"], "its role is 'replay/learner'"),
        (["spiffe://d.evil/learner"], "it is of the trust domain d.evil"),
    ],
)
def test_any_other_uri_is_refused_with_a_reason(uris: list[str], says: str) -> None:
    with pytest.raises(InvalidIdentity) as caught:
        role_of(uris, trust_domain="d")
    assert says in str(caught.value)
