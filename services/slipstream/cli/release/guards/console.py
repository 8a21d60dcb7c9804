"""Guards on the console of a release: its token, the claim that it shares with the learner, and its names."""

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.cli.release.release import Release
from slipstream.config.checks import Problem


def console(release: Release) -> Iterator[Problem]:
    """A console has a token, and names for its Ingress, and can mount the claim of the learner."""
    values = release.values["console"]
    if not values["enabled"]:
        return
    if not values["token"]["existingSecret"]:
        yield Problem(
            key="values console.token.existingSecret",
            reason="is empty, and visitors of the console enter a token",
            remedy="set it to a Secret with the token",
        )
    if values["ingress"]["enabled"] and not values["hostNames"]:
        yield Problem(
            key="values console.hostNames",
            reason="is empty, and console.ingress is enabled",
            remedy="set it to the names of the Ingress, which the console has to answer to",
        )
    if values["allowScaling"] and not values["allowControl"]:
        yield Problem(
            key="values console.allowScaling",
            reason="is true, and console.allowControl is false, so visitors can only look",
            remedy="set both",
        )
    yield from _shared_claim(release.values["learner"]["checkpoints"], beside=values["besideLearner"])


def _shared_claim(checkpoints: Mapping[str, Any], *, beside: bool) -> Iterator[Problem]:
    """The access modes of a claim of the user are not known."""
    modes = checkpoints.get("accessModes") or []
    if checkpoints["existingClaim"] or "ReadWriteMany" in modes:
        return
    if "ReadWriteOncePod" in modes or not beside:
        yield Problem(
            key="values learner.checkpoints.accessModes",
            reason=f"is [{', '.join(modes)}], and the pod of the console mounts the claim, too",
            remedy="set it to [ReadWriteMany] with a storage class that has it, or console.besideLearner to "
            "true for a claim with ReadWriteOnce",
        )
