"""Credentials of a server with mutual TLS, which uses renewed files from the next connection on."""

import grpc

from slipstream.rpc.security.certificates import Certificates, Material


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return credentials that require a client certificate of our authority.

    A renewal leaves running connections alone. Every connection gets a configuration of its own, and so its
    own keys for session tickets. A client therefore cannot resume a session, by which it could connect again
    after its certificate has expired.
    """

    def fetch() -> grpc.ServerCertificateConfiguration:
        """Return the configuration of a new connection; gRPC calls this in a thread of its own."""
        return _configuration(certificates.current())

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=True)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )
