"""Mutual TLS on every gRPC channel: which files, and whose identities count."""

from pydantic import BaseModel, ConfigDict, Field

from slipstream.config.paths import HomePath


class TlsConfig(BaseModel):
    """This pod's certificate, and who signs those of the others. The files may be renewed at any time.

    The certificate names its pod by one URI, `spiffe://<trust_domain>/<role>`; see docs/security.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    certificate: HomePath
    """PEM file with the pod's certificate, and after it the intermediate certificates."""
    key: HomePath
    """PEM file with the certificate's private key, not encrypted."""
    authority: HomePath
    """PEM file with the certificates of the authorities that may sign; two during a change of authority."""
    trust_domain: str = Field(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=255)
    """First part of every identity; a certificate of another trust domain is refused."""
