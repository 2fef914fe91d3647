"""A few cores whose messages a test carries by hand, and what they say as readable lines."""

from __future__ import annotations

import random
from collections.abc import Iterable

from slotwheel.replication.rules.core import Core
from slotwheel.replication.rules.messages import (
    Ack,
    Append,
    EntryMeta,
    HardState,
    Heartbeat,
    PeerMessage,
    RequestVote,
    SnapshotOffer,
    TakeOver,
    Vote,
)
from slotwheel.replication.rules.timing import Timing
from slotwheel.wheel.journal.epochs import Epochs
from slotwheel.wheel.state import StoreIds

TIMING = Timing.of_promise(0.8)
STORES = {name: name.encode() * 16 for name in "abcde"}


def line(message: PeerMessage) -> str:
    """One message, short: ``a>b vote pre 3 yes``."""
    way = f"{message.sender}>{message.to}"
    match message:
        case RequestVote():
            kinds = [name for name in ("pre", "founding", "transfer") if getattr(message, name)]
            words = [
                "ask",
                *kinds,
                f"{message.epoch} log {message.last_index}@{message.last_epoch}",
            ]
        case Vote():
            kinds = [name for name in ("pre", "founding") if getattr(message, name)]
            words = ["vote", *kinds, str(message.epoch)]
            words.append("yes" if message.granted else f"no: {message.reason}")
        case Append():
            entries = ",".join(
                f"{message.prev_index + i}@{meta.epoch}"
                for i, meta in enumerate(message.entries, 1)
            )
            words = [f"append {message.epoch} behind {message.prev_index}@{message.prev_epoch}"]
            words.append(f"[{entries}] commit {message.commit}")
        case Heartbeat():
            words = [f"heartbeat {message.epoch} commit {message.commit}"]
        case Ack():
            words = [f"ack {message.epoch} durable {message.durable} verified {message.verified}"]
            if message.rejected:
                words.append(f"rejected, at most {message.hint}")
        case SnapshotOffer():
            words = [f"offer {message.epoch}"]
        case TakeOver():
            words = [f"take over {message.epoch}"]
        case _:
            raise AssertionError(message)
    return " ".join([way, *words])


class Group:
    """Peers ``a``, ``b``, ``c``. Disks are at once durable unless ``durable`` is false."""

    def __init__(
        self, *, names: str = "abc", founded: bool = True, logs: dict[str, list[int]] | None = None
    ) -> None:
        """``logs``: the epochs of each peer's entries; of a founded group, the first entry is of
        epoch 1 and admits all stores."""
        self.now = 100.0
        self.names = list(names)
        self.under_way: list[PeerMessage] = []
        self.durable = True
        self.events: list[str] = []
        self.wants_snapshot: list[tuple[str, str]] = []
        self.cores: dict[str, Core] = {}
        for name in self.names:
            epochs = [1] if founded else []
            self.start(name, (logs or {}).get(name, epochs))
        if founded:
            self.pass_time(TIMING.promise_s)  # promises from before the start are over

    def start(
        self,
        name: str,
        epochs: list[int],
        *,
        hard: HardState | None = None,
        store: bytes | None = None,
        commit: int = 0,
        stores: list[tuple[int, StoreIds]] | None = None,
    ) -> Core:
        log = Epochs()
        for index, epoch in enumerate(epochs, 1):
            log.append(index, epoch)
        voter = bool(epochs) and store is None
        if stores is None:
            stores = [(1, {each: STORES[each] for each in self.names})] if epochs else []
        self.cores[name] = Core(
            name,
            self.names,
            TIMING,
            store=store or STORES[name],
            hard=hard or HardState(max(epochs, default=0), "", voter),
            epochs=log,
            stores=stores,
            commit=commit,
            now=self.now,
            random=random.Random(name),
        )
        return self.cores[name]

    def roles(self) -> str:
        """Of all peers, in the order of their names."""
        return " ".join(core.role.value for core in self.cores.values())

    # What happens

    def pass_time(self, seconds: float) -> None:
        """Clocks go on; no peer notices."""
        self.now += seconds

    def tick(self, *names: str) -> list[str]:
        return self._all(names or self.names, lambda core: core.tick(self.now))

    def time_out(self, name: str) -> list[str]:
        """The peer's election timer runs out, now."""
        core = self.cores[name]
        self.now = max(self.now, core._voting.due)
        return self.tick(name)

    def deliver(self, *, only: str = "", lose: Iterable[str] = ()) -> list[str]:
        """All messages under way arrive; ``only`` those whose line begins so, without those that
        go by a link in ``lose``. What is said in answer is under way next."""
        self.pass_time(0.001)
        messages, self.under_way = self.under_way, []
        said: list[str] = []
        for message in messages:
            text = line(message)
            if text[:3] in lose:
                continue
            if not text.startswith(only):
                self.under_way.append(message)
                continue
            core = self.cores[message.to]
            core.step(message, self.now)
            said += self.drive(core)
        return said

    def settle(self, *, lose: Iterable[str] = ()) -> None:
        """Deliver until nothing is under way."""
        for _ in range(100):
            if not self.under_way:
                return
            self.deliver(lose=lose)
        raise AssertionError("peers never stop talking")

    def append(self, name: str, count: int = 1) -> list[str]:
        core = self.cores[name]
        for _ in range(count):
            core.appended(core.last_index + 1, EntryMeta(core.epoch), self.now)
        if self.durable:
            core.persisted(core.last_index, self.now)
        return self.drive(core)

    def elect(self, name: str) -> Core:
        """Make it master, with its first entry committed everywhere."""
        self.time_out(name)
        self.settle()
        self.beat(name)
        return self.cores[name]

    def beat(self, name: str, *, lose: Iterable[str] = ()) -> None:
        """One heartbeat's time goes by, and all that follows is said."""
        self.pass_time(TIMING.heartbeat_s)
        self.tick(name)
        self.settle(lose=lose)

    def drive(self, core: Core) -> list[str]:
        """The driver: what the core wants done is done."""
        said = []
        while (ready := core.ready()) is not None:
            self.events += [f"{core.me} {name}" for name, _ in ready.events]
            if ready.elected is not None:
                won = ready.elected
                core.appended(core.last_index + 1, EntryMeta(won.epoch, won.stores), self.now)
                if self.durable:
                    core.persisted(core.last_index, self.now)
            if ready.admit is not None:
                meta = EntryMeta(core.epoch, ready.admit.stores)
                core.appended(core.last_index + 1, meta, self.now)
                core.persisted(core.last_index, self.now)
            if ready.receive is not None and self.durable:
                core.persisted(ready.receive[1], self.now)
            if ready.fetch_from is not None:
                self.wants_snapshot.append((core.me, ready.fetch_from))
            self.under_way += ready.send
            said += [line(message) for message in ready.send]
        return said

    def _all(self, names: Iterable[str], do: object) -> list[str]:
        assert callable(do)
        said = []
        for name in names:
            do(self.cores[name])
            said += self.drive(self.cores[name])
        return said
