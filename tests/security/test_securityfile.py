"""The security file: what it grants, and what it refuses, with the place in it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from slotwheel.security.pending import PendingLimit
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.rights import OF_ALL, Operation, Right
from slotwheel.security.secretplace import SecretPlace
from slotwheel.security.securityfile import SecurityFile
from slotwheel.security.tokens import digest_of, new_token
from slotwheel.wheel.errors import InvalidConfiguration, Unauthenticated
from support.mutating import AMOUNTS, mutated
from support.securing import EXAMPLE, parsed

LOGIN = "[oidc.a]\nissuer = 'https://a'\naudience = 'x'\nclient-id = 'console'\n"


def test_a_login_asks_for_an_id_token_whatever_else_it_asks_for() -> None:
    issuer = parsed(f"{LOGIN}scopes = ['groups', 'openid']\nclient-secret = 'file:x'").issuers["a"]
    assert issuer.scopes == ("openid", "groups")
    assert issuer.client_secret == SecretPlace("file:x")
    assert parsed(LOGIN).issuers["a"].scopes == ("openid",)


def test_a_file_says_who_may_do_what() -> None:
    security = parsed(EXAMPLE)
    rights = security.rights_of(["token:billing"])
    assert rights.may(Operation.APPEND, "orders-eu")
    assert not rights.may(Operation.APPEND, "payments")
    assert not rights.may(Operation.CANCEL, "orders-eu")
    assert security.quota_of("token:billing").rows_per_second == 5000
    assert security.quota_of("token:nobody").connections == 100
    assert security.quota_of("token:billing").pending == {
        "orders-*": PendingLimit(1_000_000, 500_000_000)
    }
    assert security.pending_prefixes == ("orders-*",)
    assert security.issuers["corp"].algorithms == ("RS256", "ES256")


def test_roles_add_up() -> None:
    rights = parsed(EXAMPLE).rights_of(["oidc:corp:42", "oidc:corp:group:operators"])
    assert rights.flags == {Right.OBSERVE, Right.ADMIN}
    assert rights.may(Operation.CANCEL, "orders-eu")


def test_what_is_granted_is_what_may_be_done() -> None:
    """For an own topic two roles together grant what none of them does."""
    security = parsed(
        "[roles.ops]\nadmin = true\n[roles.trace]\nschedule = ['slotwheel-trace']\n"
        "[members]\n'token:a' = ['ops', 'trace']\n'token:b' = ['ops']\n"
        "[tokens.a]\nsha256 = '" + "0" * 64 + "'\n[tokens.b]\nsha256 = '" + "1" * 64 + "'\n"
    )
    for operation in Operation:
        for principal in ("token:a", "token:b"):
            rights = security.rights_of([principal])
            for topic in ("", "orders", "slotwheel-trace", "__x"):
                reasons = security.grants(principal, operation, topic)
                if operation.right not in OF_ALL:
                    assert bool(reasons) is rights.may(operation, topic), (operation, topic)
    assert security.grants("token:a", Operation.DELETE_TOPIC, "slotwheel-trace") == ["ops: admin"]
    assert not security.grants("token:b", Operation.DELETE_TOPIC, "slotwheel-trace")


def test_who_is_no_member_may_nothing() -> None:
    rights = parsed(EXAMPLE).rights_of(["cert:stranger"])
    assert [one for one in Operation if rights.may(one) and one.right not in OF_ALL] == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[roles.a]\nschedul = ['x']", "roles.a.schedul is no setting.*'schedule'"),
        ("[role.a]", "role is no setting.*'roles'"),
        ("[roles.a]\nschedule = 'x'", "roles.a.schedule is not a list"),
        ("[roles.a]\nschedule = [1]", "roles.a.schedule has an entry that is no text"),
        ("[roles.a]\nschedule = ['x*y']", r"no topic; got x\*y"),
        ("[roles.a]\nschedule = ['']", "no topic"),
        ("[roles.a]\nobserve = 1", "roles.a.observe is not true or false"),
        ("[roles.'b c']", "has no usable name"),
        ("[members]\n'bert' = []", "members.bert is no principal"),
        ("[members]\n'token:x' = []", r"no such token.*\[tokens.x\]"),
        ("[roles.read]\n[members]\n'cert:x' = ['raed']", "role that is not there.*'read'"),
        ("[members]\n'delay:a b' = []", "names no topic"),
        ("[tokens.a]", "tokens.a.sha256 is missing"),
        ("[tokens.a]\nsha256 = 'swt_secret'", "sha256 is no SHA-256; got 10 characters"),
        (f"[tokens.a]\nsha256 = '{'0' * 64}'\nuntil = 'tomorrow'", "until is no time"),
        (f"[tokens.a]\nsha256 = '{'0' * 64}'\nuntil = 2027-01-01T00:00:00", "until is no time"),
        (
            f"[tokens.a]\nsha256 = '{'0' * 64}'\n[tokens.b]\nsha256 = '{'0' * 64}'",
            "tokens.b is the same token as a",
        ),
        (
            "[oidc.a]\nissuer = 'http://login.example'\naudience = 'x'",
            "oidc.a.issuer is no address",
        ),
        ("[oidc.a]\naudience = 'x'", "oidc.a.issuer is missing"),
        (
            "[oidc.a]\nissuer = 'https://a'\naudience = 'x'\nalgorithms = ['HS256']",
            "not taken; got HS256",
        ),
        (f"{LOGIN}client-secret = 'swt_secret'", "oidc.a.client-secret names no place.*file:PATH"),
        (f"{LOGIN}client-secret = 7", "oidc.a.client-secret is not the place of the secret"),
        (f"{LOGIN}scopes = ['groups profile']", "no scope; got groups profile.*each by itself"),
        (f"{LOGIN}scopes = ['']", "oidc.a.scopes has one that is no scope"),
        (f"{LOGIN}client_id = 'b'", "oidc.a.client_id is no setting.*'client-id'"),
        (
            "[oidc.a]\nissuer = 'https://a'\naudience = 'x'\nscopes = ['groups']",
            "oidc.a.scopes is for a login, and there is no client-id.*Give both",
        ),
        ("[quotas.x]\nconnections = 1", "quota of nobody"),
        ("[quotas.default]\nconnections = 0", "connections is no limit; got 0"),
        ("[quotas.default]\nconnections = true", "connections is no limit; got True"),
        ("[quotas.default]\nrows-per-second = 1.5", "not a whole number"),
        ("[quotas.default]\npending-rows = 1", "pending-rows is no setting"),
        ("[quotas.default.pending.'a b']\nrows = 1", "pending.'a b' is no topic"),
        ("[quotas.default.pending.'a**']\nrows = 1", "is no topic"),
        ("[quotas.default.pending.a]", "pending.a limits nothing"),
        ("[quotas.default.pending.a]\nrows = 0", "rows is no limit; got 0"),
        ("[quotas.default.pending.a]\nrow = 1", "row is no setting.*'rows'"),
        ("[quotas.default.pending]\na = 1", "pending.a is no table; got int"),
        (
            "\n".join(f"[quotas.default.pending.p{n}]\nrows = 1" for n in range(257)),
            "more prefixes than are counted; got 257; limit 256",
        ),
        ("tokens = 3", "tokens is no table"),
        ("[roles]\na = ?", "security.toml is not TOML.*line 2"),
        ("a = " + "[" * 5000, "security.toml is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(InvalidConfiguration, match=place) as refused:
        parsed(text)
    assert "swt_secret" not in str(refused.value)


def test_only_a_file_that_nobody_else_can_read_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "security.toml"
    path.write_text(EXAMPLE)
    path.chmod(0o600)
    assert SecurityFile.load(path) == parsed(EXAMPLE)
    for mode in (0o640, 0o604, 0o620, 0o602, 0o644):
        path.chmod(mode)
        with pytest.raises(
            InvalidConfiguration, match=f"open to others; got mode 0{mode:o}.*chmod"
        ):
            SecurityFile.load(path)


def test_a_pipe_in_its_place_does_not_hold_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidConfiguration, match="no regular file"):
        SecurityFile.load(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such file"):
        SecurityFile.load(tmp_path / "nothing")


@pytest.mark.parametrize("amount", AMOUNTS)
def test_what_nobody_foresaw_is_refused_and_does_not_end_a_node(amount: int) -> None:
    """Pieces of a good file in another order, words in the place of others, bytes changed, cut. A
    file that is taken lets nobody in by a token that it does not have."""
    rng = random.Random(amount)
    good = EXAMPLE.encode()
    lines = good.splitlines(keepends=True)
    taken = 0
    refusals: list[str] = []
    for _ in range(amount):
        match rng.randrange(3):
            case 0:
                content = b"".join(rng.sample(lines, rng.randrange(len(lines))))
            case 1:
                content = mutated(good, rng, _WORDS)
            case _:
                old, new = rng.choice(_WORDS), rng.choice(_WORDS)
                content = good.replace(old, new, rng.randrange(1, 3))
        try:
            security = SecurityFile.parse(content)
        except InvalidConfiguration as error:
            refusals.append(str(error))
            continue
        taken += 1
        security.rights_of(["token:billing", "cert:gateway.example"])
        for token in ("swt_unknown", "billing", ""):
            with pytest.raises(Unauthenticated):
                Authenticator(security).authenticate(IdentityProof.of((), token))
    assert amount / 200 < taken < amount * 0.95
    for digest in map(digest_of, ("swt_billing", "swt_gateway")):
        assert not [text for text in refusals if digest in text]


_WORDS = (
    *(b"[", b"]", b"=", b'"', b"true", b"1", b"-1e400", b"1979-05-27", b"{}", b"[[]]", b"\x00"),
    *(b"roles", b"members", b"tokens", b"quotas", b"oidc", b"billing", b"schedule", b"until"),
    *(b"\xff", b"999999999999999999999999999", b"nan", b"''", b"a.b.c", b"inf", b"token:"),
)


def test_a_token_stands_in_the_file_as_its_digest_alone() -> None:
    token = new_token()
    security = parsed(f"[tokens.a]\nsha256 = '{digest_of(token)}'")
    assert token not in repr(security)
    assert digest_of(token) not in repr([*security.tokens.values()])
    assert security.tokens[digest_of(token)].principal == "token:a"
