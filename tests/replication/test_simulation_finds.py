"""The simulation can fail: each rule of replication is broken in turn, and it must see it.

A breakage is what a careless author might have written. Each is played in a scene in which the rule
matters more often than by mere chance; the world and the referee are the same as always.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from slotwheel.replication import election, progress, voting
from slotwheel.replication.core import Core
from slotwheel.replication.election import Candidacy
from slotwheel.replication.logview import LogView
from slotwheel.replication.mastery import Master
from slotwheel.replication.messages import Ack, Append, AskVote, HardState
from slotwheel.replication.progress import Progress
from slotwheel.replication.ready import Ready
from support.simulation import Scene, play

Patch = pytest.MonkeyPatch

SCHEDULES = 600
"""A breakage that is not found in so many has not been found."""

ELECTIONS = Scene(seconds=5.0, cut=1.2, one_way=0.6, crash=0.8, loss=0.05, propose=6.0)
REORDERED = replace(ELECTIONS, late=0.15, repeat=0.2)
POWER = replace(ELECTIONS, power=1.2, power_in_step=0.004)
REPLACED = replace(ELECTIONS, crash=0.4, wipe=0.9, put_back=0.6)
PAUSED = Scene(seconds=5.0, pause=2.0, at_master=0.8, late=0.2, propose=3.0)
DEAF = Scene(seconds=5.0, one_way=3.0, loss=0.05, propose=3.0)
NEW_GROUP = Scene(seconds=3.0, founded=False, cut=0.8, one_way=0.8, power=0.5, loss=0.1)
HANDED_OVER = Scene(seconds=4.0, hand_over=3.0, one_way=3.0, loss=0.2, propose=3.0)
FULL = replace(ELECTIONS, full=1.5, slow_disk=0.3, propose=12.0)
BLINKING = Scene(seconds=5.0, one_way=2.0, loss=0.1, blink=0.9, propose=3.0)
# A paper on Raft has this story as its figure 8.
OLD_ENTRIES = Scene(seconds=8.0, newborn=0.8, slow_disk=0.5, propose=3.0)


def vote_not_on_disk(patch: Patch) -> None:
    ready = Core.ready

    def forget(self: Core) -> Ready | None:
        out = ready(self)
        if out is not None and out.hard is not None:
            out.hard = replace(out.hard, vote="")
        return out

    patch.setattr(Core, "ready", forget)


def votes_twice_in_an_epoch(patch: Patch) -> None:
    on_ask = Core._on_ask

    def forget(self: Core, ask: AskVote) -> None:
        if not ask.pre and self.master is None and self.hard.vote != self.me:
            self._hard = HardState(self.epoch, "", self.hard.voter)
        on_ask(self, ask)

    patch.setattr(Core, "_on_ask", forget)


def votes_for_any_log(patch: Patch) -> None:
    patch.setattr(LogView, "covered_by", lambda self, last_index, last_epoch: True)


def votes_though_it_has_a_master(patch: Patch) -> None:
    patch.setattr(Core, "_promised", property(lambda self: bool(self.progress)))


def votes_at_once_after_a_start(patch: Patch) -> None:
    start = Core.__init__

    def without_wait(self: Core, *args: object, **named: object) -> None:
        start(self, *args, **named)  # type: ignore[arg-type]
        self._promised_until = progress.NEVER

    patch.setattr(Core, "__init__", without_wait)


def lease_from_the_answer_not_from_the_sending(patch: Patch) -> None:
    answered = Master.answered

    def late(self: Master, ack: Ack, now: float) -> None:
        answered(self, ack if ack.sent_at < 0 else replace(ack, sent_at=now), now)

    patch.setattr(Master, "answered", late)


def lease_without_a_majority(patch: Patch) -> None:
    def own(self: Master) -> None:
        if self.first_index and self._log.commit >= self.first_index:
            newest = max(peer.heard for peer in self.progress.values())
            self.lease_until = newest + 2 * self._timing.promise_s

    patch.setattr(Master, "measure_lease", own)


def master_for_good_after_take_over_was_sent(patch: Patch) -> None:
    hand_over = Master._hand_over

    def keep(self: Master, now: float) -> bool:
        if hand_over(self, now):
            self.handing_to = ""
        return False

    patch.setattr(Master, "_hand_over", keep)


def counts_entries_of_older_epochs(patch: Patch) -> None:
    def count(self: Master) -> None:
        limit = self._majority(self._log.durable, lambda peer: peer.counted)
        if limit > self._log.commit and self._log.advance(int(limit)):
            self._out().commit = self._log.commit
            self.measure_lease()

    answered = Master.answered

    def eager(self: Master, ack: Ack, now: float) -> None:
        answered(self, ack, now)
        self.count()

    patch.setattr(Master, "count", count)
    patch.setattr(Master, "answered", eager)


def acknowledges_its_own_last(patch: Patch) -> None:
    patch.setattr(LogView, "acknowledged", property(lambda self: self.durable))


def acknowledges_what_is_only_written(patch: Patch) -> None:
    patch.setattr(LogView, "acknowledged", property(lambda self: self.verified))


def takes_entries_behind_any_entry(patch: Patch) -> None:
    on_append = Core._on_append

    def believe(self: Core, append: Append) -> None:
        epoch = self.log.epochs.epoch_at(append.prev_index)
        if epoch is not None and epoch <= append.prev_epoch:
            append = replace(append, prev_epoch=epoch)
        on_append(self, append)

    patch.setattr(Core, "_on_append", believe)


def cuts_the_log_where_a_message_ends(patch: Patch) -> None:
    take = Core._take

    def cut(self: Core, append: Append) -> bool:
        if self.log.commit <= append.last_index < self.log.last_index and append.entries:
            self.log.cut(append.last_index)
            self._out.truncate_after = append.last_index
        return take(self, append)

    patch.setattr(Core, "_take", cut)


def counts_votes_of_any_store(patch: Patch) -> None:
    patch.setattr(Candidacy, "won", property(lambda self: len(self.grants) >= self._needed))
    why_not = election.why_not

    def lax(ask: AskVote, log: LogView, hard: HardState, *, promised: bool) -> str:
        return why_not(ask, log, replace(hard, voter=True), promised=promised)

    patch.setattr(voting, "why_not", lax)


def counts_acknowledgements_of_any_store(patch: Patch) -> None:
    def majority(self: Master, mine: float, of: Callable[[Progress], float]) -> float:
        values = sorted([mine, *(of(other) for other in self.progress.values())], reverse=True)
        return values[len(values) // 2]

    patch.setattr(Master, "_majority", majority)
    accepted = Progress.accepted
    patch.setattr(Progress, "accepted", lambda self, ack: accepted(self, replace(ack, voter=True)))


def another_store_goes_on_where_the_old_one_was(patch: Patch) -> None:
    def keep(self: Progress, store: bytes, following: int) -> None:
        if self.peer and hasattr(self, "match"):
            self.store = store
        else:
            reset(self, store, following)

    reset = Progress.reset
    patch.setattr(Progress, "reset", keep)


def counts_a_store_before_its_admission_is_committed(patch: Patch) -> None:
    accepted = Progress.accepted
    patch.setattr(Progress, "accepted", lambda self, ack: accepted(self, replace(ack, voter=True)))


def founds_with_a_majority(patch: Patch) -> None:
    def won(self: Candidacy) -> bool:
        if self.founding:
            return len(self.grants) > self._needed // 2
        granted = sum(self.grants.get(one) == store for one, store in self._electorate.items())
        return granted >= self._needed

    patch.setattr(Candidacy, "won", property(won))


def founds_though_it_has_entries(patch: Patch) -> None:
    why_not = election.why_not

    def lax(ask: AskVote, log: LogView, hard: HardState, *, promised: bool) -> str:
        if ask.founding and not promised and ask.epoch > hard.epoch:
            return ""
        return why_not(ask, log, hard, promised=promised)

    patch.setattr(voting, "why_not", lax)


def ignores_a_failed_write(patch: Patch) -> None:
    patch.setattr(Core, "write_failed", lambda self, last_index, now: None)


def counts_acknowledgements_of_an_older_epoch(patch: Patch) -> None:
    on_ack = Core._on_ack

    def lax(self: Core, ack: Ack) -> None:
        on_ack(self, replace(ack, epoch=self.epoch) if ack.epoch < self.epoch else ack)

    patch.setattr(Core, "_on_ack", lax)


BREAKAGES: list[tuple[Callable[[Patch], None], Scene, str]] = [
    (vote_not_on_disk, POWER, "not on disk"),
    (votes_twice_in_an_epoch, REORDERED, "two votes"),
    (votes_for_any_log, ELECTIONS, "without the committed"),
    (votes_though_it_has_a_master, DEAF, "act as master"),
    (votes_at_once_after_a_start, BLINKING, "act as master"),
    (lease_from_the_answer_not_from_the_sending, PAUSED, "act as master"),
    (lease_without_a_majority, PAUSED, "act as master"),
    (master_for_good_after_take_over_was_sent, HANDED_OVER, "act as master"),
    (counts_entries_of_older_epochs, OLD_ENTRIES, "without the committed|commits another"),
    (acknowledges_its_own_last, ELECTIONS, "takes .* for verified|never sent"),
    (acknowledges_what_is_only_written, POWER, "acknowledges .* durable"),
    (takes_entries_behind_any_entry, REORDERED, "so it was not made"),
    (cuts_the_log_where_a_message_ends, REORDERED, "cuts committed"),
    (counts_votes_of_any_store, REPLACED, "never admitted"),
    (counts_acknowledgements_of_any_store, REPLACED, "committed with"),
    (another_store_goes_on_where_the_old_one_was, REPLACED, "committed with|no agreement"),
    (counts_a_store_before_its_admission_is_committed, REPLACED, "committed with"),
    (founds_with_a_majority, NEW_GROUP, "votes of admitted stores"),
    (founds_though_it_has_entries, replace(NEW_GROUP, wipe=1.0), "."),
    (ignores_a_failed_write, FULL, "is to write"),
    (counts_acknowledgements_of_an_older_epoch, REORDERED, "."),
]


@pytest.mark.parametrize(
    ("breakage", "scene", "says"), BREAKAGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_rule_is_found(
    breakage: Callable[[Patch], None], scene: Scene, says: str, monkeypatch: Patch
) -> None:
    breakage(monkeypatch)
    for seed in range(SCHEDULES):
        try:
            play(seed, scene=scene)
        except AssertionError as error:
            if re.search(says, str(error)):
                return
    pytest.fail(f"not found in {SCHEDULES} schedules")
