"""What the libraries say when a handshake fails, in words that say what was wrong and what to do. Pure."""

import re

OTHER, OURS = "its certificate", "our certificate"
REASONS: tuple[tuple[str, str], ...] = (
    (
        r"unable to get (local )?issuer|self.signed|unable to verify the first|invalid CA|"
        r"certificate signature failure",
        f"{OTHER} is not signed by our authority: compare rpc.tls.authority on both sides",
    ),
    (r"certificate has expired", f"{OTHER} has expired: renew it, and look at why nobody did"),
    (r"not yet valid", f"{OTHER} is not valid yet: compare the clocks"),
    (
        r"host ?name mismatch|Hostname Verification Check failed|IP address mismatch",
        f"{OTHER} is for another name: dial a name that it carries, or add the name to its DNS SANs",
    ),
    (r"unsuitable certificate purpose|unsupported certificate", f"{OTHER} is not for this use (key usage)"),
    (
        r"PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "it showed no certificate: set rpc.tls on its side",
    ),
    (r"ALERT_CERTIFICATE_REQUIRED", "it asks for a certificate, and got none"),
    (
        r"ALERT_UNKNOWN_CA",
        f"it refused {OURS}, whose authority it does not know: compare rpc.tls.authority on both sides",
    ),
    (r"ALERT_CERTIFICATE_EXPIRED", f"it refused {OURS}, which has expired: renew it"),
    (r"ALERT_BAD_CERTIFICATE|ALERT_CERTIFICATE_UNKNOWN|ALERT_UNSUPPORTED_CERT", f"it refused {OURS}"),
    (
        r"WRONG_VERSION_NUMBER|HTTP_REQUEST|record layer failure|UNKNOWN_PROTOCOL",
        "it does not speak TLS: set rpc.tls on both sides, or on neither",
    ),
    (r"NO_SHARED_CIPHER|UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION", "it speaks no TLS that we take"),
)


def reason_of(said: str) -> str:
    """The words for what a library said about a failed handshake; its own where there are none."""
    for pattern, words in REASONS:
        if re.search(pattern, said, re.IGNORECASE):
            return words
    return said.strip()
