"""Real servers with mutual TLS: every role calls every method, and strangers call one."""

import asyncio
from pathlib import Path

import grpc
import pytest
from rpc.mutual_tls import (
    DOMAIN,
    HOUR,
    WrittenLog,
    a_pod,
    an_authority,
    answering,
    call,
    calling,
    issue_with_uris,
    raw_channel,
)
from slipstream.rpc.channel import call_with_retries
from slipstream.rpc.errors import PermissionDenied
from slipstream.rpc.security.identity import CALLERS, ROLES


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_the_methods_of_the_table_and_no_others(tmp_path: Path, role: str) -> None:
    written, authority = WrittenLog(), an_authority()

    async def allowed() -> set[str]:
        served, client = a_pod(tmp_path / "replay", authority, "replay"), a_pod(tmp_path, authority, role)
        allowed_methods = set()
        async with answering(served, log=written.log) as address, calling(address, client) as channel:
            for method, callers in CALLERS.items():
                if role in callers:
                    await call(channel, method)
                    allowed_methods.add(method)
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call(channel, method)
                    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                    who = f"a {role} may not call {method}; those who may: {', '.join(sorted(callers))}"
                    assert caught.value.details() == who
        return allowed_methods

    expected = {method for method, callers in CALLERS.items() if role in callers}
    assert asyncio.run(allowed()) == expected
    refused = [line for line in written.lines if "call refused" in line]
    assert len(refused) == len(CALLERS) - len(expected)
    assert all(f" who=spiffe://{DOMAIN}/{role} " in line for line in refused)


@pytest.mark.parametrize(
    ("role", "domain", "says"),
    [
        ("learner", "elsewhere", "it is of the trust domain elsewhere, and ours is test.slipstream"),
        ("admin", DOMAIN, "its role is 'admin', and must be one of learner, rollout"),
    ],
)
def test_a_stranger_with_a_signed_certificate_is_refused_with_the_reason(
    tmp_path: Path, role: str, domain: str, says: str
) -> None:
    written, ours, theirs = WrittenLog(), an_authority(), an_authority(domain)

    async def refusal() -> grpc.aio.AioRpcError:
        served = a_pod(tmp_path, ours, "learner", trusted=(ours, theirs))
        pair = theirs.issue(role, (), valid=HOUR)
        async with answering(served, log=written.log) as address:
            channel = raw_channel(address, ours, pair)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            await channel.close()
        return caught.value

    error = asyncio.run(refusal())
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert says in str(error.details())
    assert says in written.lines[-1]


@pytest.mark.parametrize(
    ("uris", "says"),
    [
        ([], "it must carry exactly one URI"),
        ([f"spiffe://{DOMAIN}/verifier", f"spiffe://{DOMAIN}/probe"], "it must carry exactly one URI"),
        ([f"spiffe://{DOMAIN}/probe/x"], "its role is 'probe/x'"),
    ],
)
def test_a_signed_certificate_without_one_clear_identity_is_refused(
    tmp_path: Path, uris: list[str], says: str
) -> None:
    written, authority = WrittenLog(), an_authority()

    async def refusal() -> str:
        async with answering(a_pod(tmp_path, authority, "learner"), log=written.log) as address:
            channel = raw_channel(address, authority, issue_with_uris(authority, uris))
            with pytest.raises(grpc.aio.AioRpcError, match="PERMISSION_DENIED") as caught:
                await call(channel)
            await channel.close()
        return str(caught.value.details())

    assert says in asyncio.run(refusal())
    assert says in written.lines[-1]


def test_a_call_that_is_not_permitted_is_not_retried(tmp_path: Path) -> None:
    authority = an_authority()

    async def ask() -> None:
        served, client = a_pod(tmp_path / "l", authority, "learner"), a_pod(tmp_path, authority, "verifier")
        async with answering(served) as address, calling(address, client) as channel:
            await asyncio.wait_for(call_with_retries("ask", lambda: call(channel), give_up_after=60), 5)

    with pytest.raises(PermissionDenied, match="ask: a verifier may not call"):
        asyncio.run(ask())
