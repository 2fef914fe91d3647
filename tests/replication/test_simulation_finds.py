"""The simulation can fail: each rule of replication is broken in turn, and it must see it.

A breakage is what a careless author might have written. Each is played in a scene in which the rule
matters more often than by mere chance; the world and the referee are the same as always.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from slotwheel.replication.rules import election, voting
from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.election import Candidacy, majority
from slotwheel.replication.rules.following import Following
from slotwheel.replication.rules.logview import LogView
from slotwheel.replication.rules.master import MasterState
from slotwheel.replication.rules.messages import Ack, Append, HardState, PeerMessage, RequestVote
from slotwheel.replication.rules.progress import Progress
from slotwheel.replication.rules.ready import Ready
from slotwheel.replication.rules.standing import Standing
from slotwheel.replication.rules.states import Role
from slotwheel.replication.rules.timing import NEVER
from slotwheel.replication.rules.voting import Voting
from slotwheel.wheel.answers import Before
from slotwheel.wheel.journal.entry import Entry, EntryPart
from slotwheel.wheel.named.table import NameTable
from slotwheel.wheel.names import NameKeys
from support.simnames import KEYS, ROWS, NamedEntry, NameRuns, SimNames
from support.simpeer import SimPeer
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
NAMES = Scene(seconds=4.0, compact=3.0, propose=20.0)
SNAPSHOTS = replace(REPLACED, compact=4.0, propose=20.0, hand_over=1.0)
NAMES_LOST = replace(ELECTIONS, full=1.5, compact=2.0, propose=20.0)
# A paper on Raft has this story as its figure 8.
OLD_ENTRIES = Scene(seconds=8.0, newborn=0.8, slow_disk=0.5, propose=3.0)


def vote_not_on_disk(patch: Patch) -> None:
    take = Standing.pop_ready

    def forget(self: Standing) -> Ready | None:
        out = take(self)
        if out is not None and out.hard is not None:
            out.hard = replace(out.hard, vote="")
        return out

    patch.setattr(Standing, "pop_ready", forget)


def votes_twice_in_an_epoch(patch: Patch) -> None:
    answer = Voting.answer

    def forget(self: Voting, ask: RequestVote, reason: str, now: float) -> None:
        standing = self._standing
        if not ask.pre and standing.master is None and standing.hard.vote != standing.me:
            standing.hard = replace(standing.hard, vote="")
        answer(self, ask, reason, now)

    patch.setattr(Voting, "answer", forget)


def votes_for_any_log(patch: Patch) -> None:
    patch.setattr(LogView, "covered_by", lambda self, last_index, last_epoch: True)


def votes_though_it_has_a_master(patch: Patch) -> None:
    def forget(self: Voting, now: float) -> bool:
        return self._standing.role is Role.MASTER

    patch.setattr(Voting, "promised", forget)


def votes_at_once_after_a_start(patch: Patch) -> None:
    start = Voting.__init__

    def without_wait(self: Voting, *args: object) -> None:
        start(self, *args)  # type: ignore[arg-type]
        self._promised_until = NEVER

    patch.setattr(Voting, "__init__", without_wait)


def lease_from_the_answer_not_from_the_sending(patch: Patch) -> None:
    answered = MasterState.answered

    def late(self: MasterState, ack: Ack, now: float) -> None:
        answered(self, ack if ack.sent_at < 0 else replace(ack, sent_at=now), now)

    patch.setattr(MasterState, "answered", late)


def lease_without_a_majority(patch: Patch) -> None:
    def own(self: MasterState) -> None:
        if self._first_index and self._log.commit >= self._first_index:
            newest = max(peer.answered_at for peer in self.progress.values())
            self._lease_until = newest + 2 * self._timing.promise_s

    patch.setattr(MasterState, "_measure_lease", own)


def master_for_good_after_take_over_was_sent(patch: Patch) -> None:
    handed_over = MasterState._handed_over

    def keep(self: MasterState, now: float) -> bool:
        if handed_over(self, now):
            self._handing_to = ""
        return False

    patch.setattr(MasterState, "_handed_over", keep)


def counts_entries_of_older_epochs(patch: Patch) -> None:
    def count(self: MasterState) -> None:
        limit = self._majority(self._log.durable, lambda peer: peer.counted)
        if limit > self._log.commit and self._log.advance(int(limit)):
            self._standing.out.commit = self._log.commit
            self._measure_lease()

    answered = MasterState.answered

    def eager(self: MasterState, ack: Ack, now: float) -> None:
        answered(self, ack, now)
        self.count()

    patch.setattr(MasterState, "count", count)
    patch.setattr(MasterState, "answered", eager)


def acknowledges_its_own_last(patch: Patch) -> None:
    patch.setattr(LogView, "acknowledged", property(lambda self: self.durable))


def acknowledges_what_is_only_written(patch: Patch) -> None:
    patch.setattr(LogView, "acknowledged", property(lambda self: self.verified))


def takes_entries_behind_any_entry(patch: Patch) -> None:
    on_append = Following._append

    def believe(self: Following, append: Append) -> None:
        epoch = self._log.epochs.epoch_at(append.prev_index)
        if epoch is not None and epoch <= append.prev_epoch:
            append = replace(append, prev_epoch=epoch)
        on_append(self, append)

    patch.setattr(Following, "_append", believe)


def cuts_the_log_where_a_message_ends(patch: Patch) -> None:
    take = Following._append_entries

    def cut(self: Following, append: Append) -> bool:
        log = self._log
        if log.commit <= append.last_index < log.last_index and append.entries:
            log.cut(append.last_index)
            self._standing.out.truncate_after = append.last_index
        return take(self, append)

    patch.setattr(Following, "_append_entries", cut)


def counts_votes_of_any_store(patch: Patch) -> None:
    def won(self: Candidacy) -> bool:
        needed = self.peers if self.founding else majority(self.electorate)
        return len(self.grants) >= needed

    patch.setattr(Candidacy, "won", property(won))
    why_not = election.why_not

    def lax(ask: RequestVote, log: LogView, hard: HardState, *, promised: bool) -> str:
        return why_not(ask, log, replace(hard, voter=True), promised=promised)

    patch.setattr(voting, "why_not", lax)


def counts_acknowledgements_of_any_store(patch: Patch) -> None:
    def majority(self: MasterState, mine: float, of: Callable[[Progress], float]) -> float:
        values = sorted([mine, *(of(other) for other in self.progress.values())], reverse=True)
        return values[len(values) // 2]

    patch.setattr(MasterState, "_majority", majority)
    answered = Progress.answered

    def believe(self: Progress, ack: Ack, now: float) -> None:
        answered(self, replace(ack, voter=True), now)

    patch.setattr(Progress, "answered", believe)


def another_store_goes_on_where_the_old_one_was(patch: Patch) -> None:
    answered = MasterState.answered

    def keep(self: MasterState, ack: Ack, now: float) -> None:
        if ack.sent_at > self.progress[ack.sender].echo:
            self.progress[ack.sender].store = ack.store
        answered(self, ack, now)

    patch.setattr(MasterState, "answered", keep)


def counts_a_store_before_its_admission_is_committed(patch: Patch) -> None:
    answered = Progress.answered

    def believe(self: Progress, ack: Ack, now: float) -> None:
        answered(self, replace(ack, voter=True), now)

    patch.setattr(Progress, "answered", believe)


def founds_with_a_majority(patch: Patch) -> None:
    def won(self: Candidacy) -> bool:
        if self.founding:
            return len(self.grants) > self.peers // 2
        granted = sum(self.grants.get(one) == store for one, store in self.electorate.items())
        return granted >= majority(self.electorate)

    patch.setattr(Candidacy, "won", property(won))


def founds_though_it_has_entries(patch: Patch) -> None:
    why_not = election.why_not

    def lax(ask: RequestVote, log: LogView, hard: HardState, *, promised: bool) -> str:
        if ask.founding and not promised and ask.epoch > hard.epoch:
            return ""
        return why_not(ask, log, hard, promised=promised)

    patch.setattr(voting, "why_not", lax)


def ignores_a_failed_write(patch: Patch) -> None:
    patch.setattr(Core, "write_failed", lambda self, last_index, now: None)


def counts_acknowledgements_of_an_older_epoch(patch: Patch) -> None:
    step = Core.step

    def lax(self: Core, message: PeerMessage, now: float) -> None:
        if isinstance(message, Ack) and message.epoch < self.epoch:
            message = replace(message, epoch=self.epoch)
        step(self, message, now)

    patch.setattr(Core, "step", lax)


def forgets_all_callers_of_an_entry_but_the_first(patch: Patch) -> None:
    read: Callable[[Entry], Sequence[EntryPart]] = Entry.__dict__["parts"].fget
    patch.setattr(Entry, "parts", property(lambda self: read(self)[:1]))


def names_decided_before_the_lock(patch: Patch) -> None:
    prepare, decide = SimNames._prepare, SimNames.decide

    def looked_up_early(self: SimNames) -> None:
        prepare(self)
        keys = NameKeys(KEYS[name] for name in self._wishes.names)
        self.early = self.table.places(keys, self._stored)  # type: ignore[attr-defined]

    def decide_by_it(self: SimNames, *place: int) -> NamedEntry | None:
        early = self.early  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as within:
            within.setattr(NameTable, "places", lambda *_: early)
            within.setattr(SimNames, "_prepare", lambda self: None)
            decided = decide(self, *place)
        looked_up_early(self)
        return decided

    patch.setattr(SimNames, "_prepare", looked_up_early)
    patch.setattr(SimNames, "decide", decide_by_it)


def names_on_their_way_not_looked_at(patch: Patch) -> None:
    decide, places = SimNames.decide, NameTable.places

    def decide_by_committed(self: SimNames, index: int, commit: int) -> NamedEntry | None:
        below = (commit + 1) * ROWS
        with pytest.MonkeyPatch.context() as within:
            within.setattr(NameTable, "places", lambda *asked: places(*asked, below=below))
            return decide(self, index, commit)

    patch.setattr(SimNames, "decide", decide_by_committed)


def names_of_lost_entries_stay(patch: Patch) -> None:
    patch.setattr(NameTable, "withdraw", lambda self, offset: None)


def names_looked_up_in_files_only(patch: Patch) -> None:
    patch.setattr(NameTable, "places", lambda self, keys, stored: dict(stored.places))


def names_in_files_not_looked_up_again_after_a_spill(patch: Patch) -> None:
    places = NameTable.places
    patch.setattr(
        NameTable,
        "places",
        lambda self, keys, stored: places(self, keys, replace(stored, runs=self.runs)),
    )


def names_not_made_anew_after_a_snapshot(patch: Patch) -> None:
    install = SimNames.install
    patch.setattr(SimNames, "install", lambda self, _: install(self, NameRuns()))


def names_decided_before_the_epoch_is_committed(patch: Patch) -> None:
    patch.setattr(SimPeer, "serves_names", True)


def refused_for_what_is_not_committed(patch: Patch) -> None:
    refuse = SimNames._refuse
    patch.setattr(
        SimNames, "_refuse", lambda self, holder, commit: refuse(self, holder, holder // ROWS)
    )


def told_of_a_kept_one_that_is_not_committed(patch: Patch) -> None:
    decide = SimNames.decide

    def tell(self: SimNames, *place: int) -> NamedEntry | None:
        entry = decide(self, *place)
        for answer in () if entry is None else entry.answers:
            if answer.before is Before.KEPT:
                self._referee.told_of(answer.offset)
        return entry

    patch.setattr(SimNames, "decide", tell)


def cancels_of_names_left_behind_by_a_spill(patch: Patch) -> None:
    write = NameTable._write
    patch.setattr(
        NameTable,
        "_write",
        lambda self, room, shares, cancelled: write(self, room, shares, cancelled[:0]),
    )


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
    (forgets_all_callers_of_an_entry_but_the_first, ELECTIONS, "stored twice"),
    (names_decided_before_the_lock, NAMES, "is told of|of one name|not there"),
    (names_on_their_way_not_looked_at, NAMES, "is told of"),
    (names_of_lost_entries_stay, NAMES_LOST, "is told of|not there|not committed"),
    (names_looked_up_in_files_only, NAMES, "is told of"),
    (names_in_files_not_looked_up_again_after_a_spill, NAMES, "is told of|not there"),
    (names_not_made_anew_after_a_snapshot, SNAPSHOTS, "is told of|not there"),
    (names_decided_before_the_epoch_is_committed, ELECTIONS, "is told of|not there"),
    (refused_for_what_is_not_committed, NAMES, "which is not committed"),
    (told_of_a_kept_one_that_is_not_committed, NAMES, "which is not committed"),
    (cancels_of_names_left_behind_by_a_spill, NAMES, "is told of|not there"),
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
