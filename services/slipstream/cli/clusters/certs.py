"""`slipstream certs DIR`: makes or renews a development authority, and one certificate for each role.

DIR/ca/{ca.crt,ca.key}   DIR/<role>/{tls.crt,tls.key,ca.crt}, the names that cert-manager uses
"""

import ipaddress
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.errors import UsageError
from slipstream.rpc.security.identity import ROLES

if TYPE_CHECKING:
    from slipstream.cli.clusters.authority import Authority

TRUST_DOMAIN = "slipstream"
CONSOLE = "console"
"""The role of consoles, and of programs that score over HTTP. No pod has it, and no Secret is needed."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
NAME = re.compile(rf"(?=.{{1,253}}$)(\*\.)?({LABEL}\.)*(?![0-9]+$){LABEL}")
"""A DNS name. A name whose last part is a number is refused, as a mistyped IP address."""
LONGEST_DAYS = 3650
"""Validity of the authority in days."""
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
SECRET_MODE, PUBLIC_MODE = 0o600, 0o644


def certs_command(
    directory: Path, *, roles: Sequence[str], sans: Sequence[str], trust_domain: str | None, days: int
) -> int:
    """Make or renew certificates, and return the exit status.

    `sans`: further names, as role=name. A renewed certificate keeps its names. Errors: UsageError for wrong
    arguments, and for files that the command did not make; nothing is written then.
    """
    if not 1 <= days <= LONGEST_DAYS:
        raise UsageError(
            f"--days {days}: must be from 1 to {LONGEST_DAYS}, which is as long as the authority lasts"
        )
    wanted = _roles(roles)
    further_names = _names(sans, wanted)
    authority = _authority(directory / "ca", trust_domain)
    names = {role: _all_names(directory / role, authority, further_names[role]) for role in wanted}
    _write_authority(directory / "ca", authority)
    for role in wanted:
        pair = authority.issue(role, names[role], valid=timedelta(days=days))
        _write(directory / role / "tls.key", pair.key, SECRET_MODE)
        _write(directory / role / "tls.crt", pair.certificate, PUBLIC_MODE)
        _write(directory / role / "ca.crt", authority.pair.certificate, PUBLIC_MODE)
    _tell(directory, authority, names, days)
    return 0


def _roles(roles: Sequence[str]) -> tuple[str, ...]:
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise UsageError(f"--roles {' '.join(unknown)}: the roles are {', '.join(ROLES)}")
    return tuple(dict.fromkeys(roles)) or ROLES


def _names(sans: Sequence[str], roles: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of `sans` for each role. Errors: UsageError."""
    names: dict[str, list[str]] = {role: [] for role in roles}
    for san in sans:
        role, separator, name = san.partition("=")
        if not separator or role not in names or not _is_name(name):
            raise UsageError(
                f"--san {san}: write role=name, with a DNS name or an IP address, for a role of "
                f"{', '.join(roles)}"
            )
        names[role].append(name)
    return names


def _is_name(name: str) -> bool:
    """Return whether a text is a DNS name or an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return NAME.fullmatch(name) is not None
    return True


def _authority(folder: Path, trust_domain: str | None) -> "Authority":
    """Return the authority in a folder, or a new one. Errors: UsageError for an authority that is
    unusable."""
    try:
        from slipstream.cli.clusters.authority import Authority, Pair, make_authority
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this command needs the package {error.name}: pip install '.[cluster]' in a clone of Slipstream"
        ) from error
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if not certificate.exists() and not key.exists():
        if trust_domain is not None and not DOMAIN.fullmatch(trust_domain):
            raise UsageError(f"--trust-domain {trust_domain}: lower-case letters, digits, dots, - and _ only")
        return make_authority(trust_domain or TRUST_DOMAIN)
    try:
        authority = Authority(Pair(certificate=certificate.read_bytes(), key=key.read_bytes()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} cannot be used: {error}; choose another DIR") from error
    if trust_domain not in (None, authority.trust_domain):
        raise UsageError(
            f"--trust-domain {trust_domain}: {folder} is of {authority.trust_domain}; choose another DIR"
        )
    return authority


def _all_names(folder: Path, authority: "Authority", further_names: Sequence[str]) -> list[str]:
    """Return the names for a role's certificate. Errors: UsageError for files that the authority did not
    make."""
    from slipstream.cli.clusters.authority import names_of

    old = folder / "tls.crt"
    before = old.read_bytes() if old.exists() else b""
    if before and authority.issued(before):
        return list(dict.fromkeys([*names_of(before), *further_names]))
    foreign = [name for name in ("tls.crt", "tls.key", "ca.crt") if (folder / name).exists()]
    if foreign:
        raise UsageError(
            f"{folder / foreign[0]} was not made by this authority, and is left alone; choose another DIR, "
            "or move it away"
        )
    return list(dict.fromkeys([folder.name, *LOCAL_NAMES, *further_names]))


def _write_authority(folder: Path, authority: "Authority") -> None:
    if not (folder / "ca.key").exists():
        _write(folder / "ca.key", authority.pair.key, SECRET_MODE)
        _write(folder / "ca.crt", authority.pair.certificate, PUBLIC_MODE)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file and rename it into place, so that no reader sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)
    partial.replace(path)


def _tell(directory: Path, authority: "Authority", names: Mapping[str, Sequence[str]], days: int) -> None:
    width = max(map(len, names))
    for role, role_names in names.items():
        identity = f"spiffe://{authority.trust_domain}/{role}"
        print(f"{role:<{width}}  {directory / role}  {identity}  {' '.join(role_names)}")
    print(f"good for {days} days; the same command renews them")
    print(f"keep {directory / 'ca' / 'ca.key'} to yourself: who has it can be anybody")
    in_pods = [role for role in names if role != CONSOLE]
    if in_pods:
        print("as Secrets, new or renewed:")
        print(_loop(directory, authority.trust_domain, in_pods))


def _loop(directory: Path, trust_domain: str, roles: Sequence[str]) -> str:
    """Return the shell commands that put the certificates into Secrets, as in docs/kubernetes.md."""
    release, namespace = _release_of(trust_domain)
    where = f" --namespace {namespace}" if namespace else ""
    return (
        f"for role in {' '.join(roles)}; do\n"
        f"  kubectl create secret generic {release}-$role-tls{where} "
        f"--from-file={shlex.quote(str(directory))}/$role \\\n"
        f"    --dry-run=client --output yaml | kubectl apply{where} --filename -\n"
        "done"
    )


def _release_of(trust_domain: str) -> tuple[str, str]:
    """Return release and namespace of a trust domain of the chart; `slipstream` and "" for another domain."""
    release, _, namespace = trust_domain.removesuffix(f".{TRUST_DOMAIN}").rpartition(".")
    if release and trust_domain.endswith(f".{TRUST_DOMAIN}"):
        return release, namespace
    return TRUST_DOMAIN, ""
