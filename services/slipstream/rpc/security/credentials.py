"""Credentials of a server that speaks mutual TLS, and takes up renewed files at the next connection."""

from collections.abc import Callable
from typing import cast

import grpc

from slipstream.rpc.security.certificates import Certificates, Material


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """A client must show a certificate of our authority; running connections outlive a renewal."""
    used = certificates.current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, in a thread of its own, for every new connection; None keeps what it has."""
        nonlocal used
        newest = certificates.current()
        if newest is used:
            return None
        used = newest
        return _configuration(newest)

    fetcher = cast(Callable[[], grpc.ServerCertificateConfiguration], fetch)  # the stubs forget None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), fetcher, require_client_authentication=True
    )


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )
