"""The certificate authority of `slipstream certs`, for development.

It needs the package cryptography, which no pod needs.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_NAME = "Slipstream development CA"
AUTHORITY_VALID = timedelta(days=3650)
CLOCK_SKEW = timedelta(minutes=5)
CURVE = ec.SECP256R1()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, both as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates of one trust domain, which the authority's certificate names."""

    def __init__(self, pair: Pair) -> None:
        """Errors: ValueError if `make_authority` did not make the certificate, or the key is not its key."""
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = load_pem_private_key(pair.key, password=None)
        ours = self._certificate.subject == _name(AUTHORITY_NAME)
        if not ours or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("it was not made by `slipstream certs`")
        if key.public_key() != self._certificate.public_key():
            raise ValueError("ca.key is not the key of ca.crt")
        self._key = key
        self.trust_domain = uris_of(self._certificate)[0].removeprefix("spiffe://")

    def issue(self, role: str, names: Sequence[str], *, valid: timedelta) -> Pair:
        """Return a certificate for one role and its DNS names or IP addresses, with its key.

        It is valid both as a client's and as a server's certificate.
        """
        key = ec.generate_private_key(CURVE)
        identity = x509.UniformResourceIdentifier(f"spiffe://{self.trust_domain}/{role}")
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(role, key, issuer=self._certificate.subject, valid=valid)
            .add_extension(
                x509.SubjectAlternativeName([identity, *map(_general_name, names)]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        return _pair(builder.sign(self._key, SHA256()), key)

    def issued(self, certificate: bytes) -> bool:
        """Return whether this authority signed a certificate (PEM)."""
        try:
            x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def make_authority(trust_domain: str) -> Authority:
    """Make a new authority, which is valid for ten years."""
    key = ec.generate_private_key(CURVE)
    identity = x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")
    builder = (
        _builder(AUTHORITY_NAME, key, issuer=_name(AUTHORITY_NAME), valid=AUTHORITY_VALID)
        .add_extension(x509.SubjectAlternativeName([identity]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Authority(_pair(builder.sign(key, SHA256()), key))


def names_of(certificate: bytes) -> list[str]:
    """Return the DNS names and IP addresses of a certificate (PEM)."""
    names = _alternatives(x509.load_pem_x509_certificate(certificate))
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def uris_of(certificate: x509.Certificate) -> list[str]:
    """Return the URIs of a certificate."""
    return list(_alternatives(certificate).get_values_for_type(x509.UniformResourceIdentifier))


def _alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _builder(
    subject: str, key: ec.EllipticCurvePrivateKey, *, issuer: x509.Name, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate=certificate.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
