"""Why a TLS handshake failed: OpenSSL's messages translated into the problem and its remedy. Pure."""

import re
from dataclasses import dataclass, replace
from enum import Enum


class Holder(Enum):
    """The side whose certificate is at fault."""

    PEER = "its certificate"
    OURS = "our certificate"
    NOBODY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeFailure:
    """A failed handshake. With a `holder`, `problem` is a predicate of the certificate ("has expired")."""

    holder: Holder = Holder.NOBODY
    problem: str
    remedy: str = ""
    problem_of_file: str = ""
    """The problem in one's own file, with its remedy, where other words fit there."""

    def __str__(self) -> str:
        """Describe the failure to the other side of the connection."""
        remedy = f": {self.remedy}" if self.remedy else ""
        if self.holder is Holder.OURS:
            which = f"which {self.problem}" if self.problem else "and its log says why"
            return f"it refused our certificate, {which}{remedy}"
        return f"{self.holder.value} {self.problem}{remedy}".strip()

    def of_file(self) -> str:
        """Describe the failure to the pod that has the certificate in a file of its own."""
        if self.holder is not Holder.PEER:
            return str(self)
        text = self.problem_of_file or f"{self.problem}: {self.remedy}"
        return f"the certificate {text}"

    def as_ours(self) -> "HandshakeFailure":
        """Return the failure from the view of the peer, which has refused our certificate for it."""
        return replace(self, holder=Holder.OURS) if self.holder is Holder.PEER else self


_AUTHORITY = "compare rpc.tls.authority on both sides"
REFUSED = HandshakeFailure(holder=Holder.OURS, problem="", remedy=_AUTHORITY)
"""The peer refused our certificate, and only its log says why."""
_FAILURES: tuple[tuple[str, HandshakeFailure], ...] = (
    (
        r"unable to get (local )?issuer|self.signed|unable to verify the first|invalid CA|"
        r"certificate signature failure",
        HandshakeFailure(
            holder=Holder.PEER,
            problem="is not signed by our authority",
            remedy=_AUTHORITY,
            problem_of_file="is not signed by rpc.tls.authority",
        ),
    ),
    (
        r"certificate has expired",
        HandshakeFailure(
            holder=Holder.PEER,
            problem="has expired",
            remedy="renew it, and find out why it was not renewed in time",
        ),
    ),
    (
        r"not yet valid",
        HandshakeFailure(holder=Holder.PEER, problem="is not valid yet", remedy="compare the clocks"),
    ),
    (
        r"host ?name mismatch|Hostname Verification Check failed|IP address mismatch",
        HandshakeFailure(
            holder=Holder.PEER,
            problem="is for another name",
            remedy="dial a name that it carries, or add the name to its DNS SANs",
        ),
    ),
    (
        r"unsuitable certificate purpose|unsupported certificate",
        HandshakeFailure(
            holder=Holder.PEER,
            problem="is not for this use",
            remedy="give it the key usages of a server and of a client",
        ),
    ),
    (
        r"PEER_DID_NOT_RETURN_A_CERTIFICATE",
        HandshakeFailure(problem="it showed no certificate", remedy="set rpc.tls on its side"),
    ),
    (
        r"ALERT_CERTIFICATE_REQUIRED",
        HandshakeFailure(problem="it requires a certificate", remedy="set rpc.tls on this side"),
    ),
    (
        r"ALERT_UNKNOWN_CA",
        HandshakeFailure(holder=Holder.OURS, problem="is not signed by its authority", remedy=_AUTHORITY),
    ),
    (
        r"ALERT_CERTIFICATE_EXPIRED",
        HandshakeFailure(holder=Holder.OURS, problem="has expired", remedy="renew it"),
    ),
    (
        r"ALERT_BAD_CERTIFICATE|ALERT_CERTIFICATE_UNKNOWN|ALERT_UNSUPPORTED_CERT",
        REFUSED,
    ),
    (
        r"WRONG_VERSION_NUMBER|HTTP_REQUEST|record layer failure|UNKNOWN_PROTOCOL",
        HandshakeFailure(problem="it does not speak TLS", remedy="set rpc.tls on both sides, or on neither"),
    ),
    (
        r"NO_SHARED_CIPHER|UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION",
        HandshakeFailure(problem="it speaks no version or cipher of TLS that this side accepts"),
    ),
)


def failure_of(openssl_message: str) -> HandshakeFailure:
    """Translate a message of OpenSSL; an unknown message becomes the problem itself."""
    for pattern, failure in _FAILURES:
        if re.search(pattern, openssl_message, re.IGNORECASE):
            return failure
    return HandshakeFailure(problem=openssl_message.strip())
