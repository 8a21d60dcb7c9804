"""Credentials of a server that speaks mutual TLS, and takes up renewed files at the next connection."""

import grpc

from slipstream.rpc.security.certificates import Certificates, Material


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """A client must show a certificate of our authority; running connections outlive a renewal.

    Every connection gets a configuration of its own, and so keys of its own for session tickets: a client
    cannot resume a session, which would let it in again after its certificate has expired.
    """

    def fetch() -> grpc.ServerCertificateConfiguration:
        """Called by gRPC, in a thread of its own, for every new connection."""
        return _configuration(certificates.current())

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=True)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )
