"""The permissions are the rights that the commands need, and no others."""

from cluster.conftest import ROLE, Command
from cluster.fake_kubernetes import FakeKubernetes
from cluster.objects import spanning
from cluster.pages import circle


def test_all_commands_together_use_every_right_of_the_role_and_no_other(
    cluster: FakeKubernetes, command: Command
) -> None:
    cluster.allowed = None
    with circle(cluster):
        assert command("status") == 0
    assert command("scale", "rollout/steady", "2") == 0
    spanning(cluster.objects)
    for arguments in (
        ("scale", "rollout/steady", "3"),
        ("scale", "rollout/spot", "3", "--override"),
        ("scale", "rollout/spot", "auto"),
        ("logs",),
        ("pause",),
        ("resume",),
    ):
        assert command(*arguments) == 0
    assert cluster.used == ROLE
