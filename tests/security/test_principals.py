"""Who a caller is: by a token, a certificate, claims, or not at all."""

from __future__ import annotations

import pytest

from slotwheel.policy.deadletters import topics_of_letters
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.rights import Operation
from slotwheel.wheel.errors import Unauthenticated
from support.securing import EXAMPLE, parsed

EXPIRED = EXAMPLE.replace("2100-01-01", "2020-01-01")


def test_without_a_file_everybody_is_local_and_may_everything() -> None:
    identity = Authenticator().authenticate(IdentityProof())
    assert identity.principal == "local"
    assert all(identity.rights.may(operation, "orders") for operation in Operation)


def test_a_token_and_a_certificate_make_a_principal() -> None:
    authenticator = Authenticator(parsed(EXAMPLE))
    by_token = authenticator.authenticate(IdentityProof.of((), "swt_billing"))
    assert by_token.principal == "token:billing"
    by_name = authenticator.authenticate(IdentityProof.of(("gateway.example", "other.example")))
    assert by_name.principal == "cert:gateway.example"
    assert by_name.rights.is_unlimited
    assert authenticator.authenticate(IdentityProof.of((), "swt_billing")) is by_token


@pytest.mark.parametrize(
    ("names", "token", "reason"),
    [
        ((), "", "neither"),
        ((), "swt_wrong", "does not have"),
        (("stranger.example",), "", "no member"),
        (("other.example", "gateway.example"), "", "no member"),  # the first name counts
        (("gateway.example",), "swt_wrong", "does not have"),
    ],
)
def test_a_stranger_does_not_learn_why(names: tuple[str, ...], token: str, reason: str) -> None:
    authenticator = Authenticator(parsed(EXAMPLE))
    with pytest.raises(Unauthenticated) as refused:
        authenticator.authenticate(IdentityProof.of(names, token))
    assert str(refused.value) == str(Unauthenticated())
    assert refused.value.to_wire() == Unauthenticated().to_wire()
    assert reason in refused.value.reason
    assert "swt_" not in refused.value.reason


def test_a_token_ends() -> None:
    security = parsed(EXAMPLE)
    [token] = [one for one in security.tokens.values() if one.name == "billing"]
    assert token.until_ms is not None
    now = [token.until_ms - 1]
    authenticator = Authenticator(security, now_ms=lambda: now[0])
    authenticator.authenticate(IdentityProof.of((), "swt_billing"))
    now[0] += 1
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(IdentityProof.of((), "swt_billing"))


def test_claims_of_an_issuer_add_up() -> None:
    authenticator = Authenticator(parsed(EXAMPLE))
    identity = authenticator.identify(["oidc:corp:7", "oidc:corp:group:operators"])
    assert identity.principal == "oidc:corp:7"
    assert identity.rights.may(Operation.STEP_DOWN)
    with pytest.raises(Unauthenticated):
        authenticator.identify(["oidc:corp:7", "oidc:corp:group:guests"])


def test_another_file_counts_at_once_and_meters_go_on() -> None:
    authenticator = Authenticator(parsed(EXAMPLE))
    proof = IdentityProof.of((), "swt_billing")
    before = authenticator.authenticate(proof)
    before.meter.charge(10, 100)
    authenticator.change(parsed(EXAMPLE.replace('schedule = ["orders"', 'schedule = ["pay"')))
    after = authenticator.authenticate(proof)
    assert after.rights.may(Operation.APPEND, "pay")
    assert not after.rights.may(Operation.APPEND, "orders")
    assert before.rights.may(Operation.APPEND, "orders")
    assert after.meter is before.meter
    authenticator.change(parsed(EXPIRED))
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(proof)


def test_a_delay_topic_has_the_rights_of_its_principal() -> None:
    rights = Authenticator(parsed(EXAMPLE)).rights_of_delay_topic("delays")
    assert rights.may(Operation.APPEND, "orders")
    assert not rights.may(Operation.APPEND, "payments")
    other = Authenticator(parsed(EXAMPLE)).rights_of_delay_topic("other")
    assert not other.may(Operation.APPEND, "orders")


def test_a_topic_of_dead_letters_with_any_name_is_granted_by_that_name_alone() -> None:
    text = EXAMPLE.replace('schedule = ["orders"', 'schedule = ["*", "orders"')
    own = topics_of_letters("buried")
    for security, allowed in ((text, False), (text.replace('"*"', '"buried", "*"'), True)):
        authenticator = Authenticator(parsed(security), own=own)
        rights = authenticator.authenticate(IdentityProof.of((), "swt_billing")).rights
        assert rights.may(Operation.APPEND, "anything")
        assert rights.may(Operation.APPEND, "buried") is allowed
        assert not rights.may(Operation.APPEND, "buried-redriven")
        delays = authenticator.rights_of_delay_topic("delays")
        assert not delays.may(Operation.APPEND, "buried-redriven")
        assert authenticator.is_own("buried")
    delays = Authenticator(own=own).rights_of_delay_topic("delays")
    assert delays.may(Operation.APPEND, "anything")
    assert not delays.may(Operation.APPEND, "buried")


def test_without_a_file_a_delay_topic_reaches_all_but_our_own_topics() -> None:
    rights = Authenticator().rights_of_delay_topic("delays")
    assert rights.may(Operation.APPEND, "payments")
    assert not rights.may(Operation.APPEND, "slotwheel-dead-letters")
    assert not rights.may(Operation.APPEND, "__consumer_offsets")
