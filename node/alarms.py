"""The alarms of a node: what each means, what to do, and how soon somebody has to look.

Theory: an alarm is a count by kind in ``slotwheel_alarms_total``, and a line in the log with its
reason. Whoever is woken by the count needs to know what to do, so there is no kind without a row
here: the page docs/alarms.md and the rules for Prometheus in deploy/ are made of these rows, and
each kind is served from the start, as 0. Prometheus sees no growth in a count that begins with 1.

*Example.* The clock steps back at 03:00. ``clock-behind`` goes from 0 to 1, the rule of that name
fires at the next scrape, and its page says whether there is anything to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ALARMS_TOTAL = "slotwheel_alarms_total"
"""The count of alarms, by the label ``kind``."""


class Urgency(StrEnum):
    """How soon a person has to look; the label ``severity`` of a rule."""

    PAGE = "page"
    """Now, also at night: messages are late, or are about to be, or data is damaged."""
    TICKET = "ticket"
    """This working day."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A row of the page. ``meaning`` and ``remedy`` are Markdown; links are relative to docs/."""

    urgency: Urgency
    meaning: str
    remedy: str


_LOOPS = {
    "certificates": "watching the files of certificates",
    "clock": "watching the clock for jumps",
    "departures": "deleting what `--trace-retain` keeps no longer",
    "gateway": "running the gateway; the node starts it again",
    "peer-wire": "answering peers",
    "pending-count": "counting what is pending, for quotas",
    "policies": "loading policies",
    "prefetcher": "reading slot files ahead of their time",
    "rights": "watching the security file",
    "roles": "following the group's master",
    "schedules": "firing schedules",
    "scrubber": "reading slot files ahead to find damage",
    "sink-check": "trying to reach Kafka for the first time",
    "slot-files": "moving messages into slot files, and deleting these",
    "topic-book": "asking Kafka which topics there are",
    "wire": "answering clients",
}
"""The loops of a node that go on after an error, by their names, with what each does."""
_PAGE, _TICKET = Urgency.PAGE, Urgency.TICKET
_OF_LOOPS = {
    f"{name}-failed": Alarm(
        _PAGE if name in ("slot-files", "wire") else _TICKET,
        f"An attempt at {work} failed. It is tried again, less and less often.",
        "The log has the error. Once it has failed twice, `/readyz` says so, until it has gone well"
        " for 3 s. A full disk, missing rights, a port that is taken: remove the cause.",
    )
    for name, work in _LOOPS.items()
}
_BUG = "The log has the error and where it happened: report it. The node goes on."
_DAMAGED = "[A damaged slot file](operations.md#a-damaged-slot-file)"
_REFUSAL = "See [what a refusal means](operations.md#what-a-refusal-means)."
_NETWORK = "If it stays, look at the network between the two, and at the other one's log."

ALARMS: dict[str, Alarm] = _OF_LOOPS | {
    "access-log": Alarm(
        _TICKET,
        "Lines of the access log could not be written, and are lost.",
        "Free disk space, or mend the log's folder.",
    ),
    "action-failed": Alarm(
        _TICKET,
        "A request of a client failed by an error that nobody expected; its caller was told.",
        _BUG,
    ),
    "append-failed": Alarm(
        _PAGE,
        "Messages could not be handed to the log, by an error that nobody expected. Their senders"
        " were told, and try again.",
        "The log has the error. If the disk is full or broken, mend it; else report it.",
    ),
    "certificates": Alarm(
        _TICKET,
        "A file of certificates, a key or authorities was exchanged, and cannot be used; the text"
        " names it. What was in use stays, and `/readyz` answers 503.",
        "Put a good file there; it counts within 10 s. See"
        " [exchanging certificates](security.md#exchanging-certificates).",
    ),
    "clock-behind": Alarm(
        _PAGE,
        "The clock is behind messages that have left: it stepped back, and delivery waits until it"
        " has caught up; or the machine started with a wrong clock, and the node takes nothing new"
        " either. `/readyz` answers 503.",
        "Nothing, if the step was small or NTP will set the clock. If the clock was ahead before"
        " and is right now: [`slotwheel clock --set-back`](operations.md#slotwheel-clock).",
    ),
    "clock-jumped": Alarm(
        _PAGE,
        "The wall clock jumped ahead by more than an hour. The node goes on by the time before the"
        " jump, and takes nothing new: senders get *overloaded*. `/readyz` answers 503.",
        "Set the clock right; if it is right: [`slotwheel clock --accept`]"
        "(operations.md#slotwheel-clock).",
    ),
    "clocks-differ": Alarm(
        _PAGE,
        "The node's clock and the broker's are so far apart that the broker refuses the times of"
        " records (`message.timestamp.after.max.ms`, an hour by default). The text has both times;"
        " where the broker's is not known, it says before or after which time that is. `/readyz`"
        " answers 503.",
        "Set the wrong clock right: then the messages leave. None became a dead letter for it.",
    ),
    "delay-fleet-disturbed": Alarm(
        _PAGE,
        "In the fleet's consumer group is a client that is no wheel of it, or there is another"
        " wheel of this one's name; the text has its `client.id` and address. This wheel reads"
        " nothing until that is gone, and `/readyz` answers 503.",
        "Stop the client, or give the fleet another name; give one of the wheels another `--group`."
        " If the client has stored offsets, those partitions wait for"
        " [`--delay-from`](operations.md#where-reading-begins).",
    ),
    "delay-fleet-lost": Alarm(
        _TICKET,
        "This wheel was put out of its fleet: it was stopped or cut off for longer than the"
        " session, or stuck in an append. It has thrown away what it had read, and joins again."
        " What it appended last may come twice.",
        "Look for what stopped it: a full machine, a paused process, the network.",
    ),
    "delay-topic-commit-slow": Alarm(
        _TICKET,
        "What was read of a delay topic is not committed after seconds; reading waits for it.",
        "Look at the disk's sync time (`slotwheel_append_seconds`), and with peers at their lag.",
    ),
    "delay-topic-failed": Alarm(
        _PAGE,
        "Reading the delay topics failed by an error that nobody expected. It is tried again.",
        _BUG,
    ),
    "delay-topic-made-anew": Alarm(
        _TICKET,
        "A delay topic was deleted and made anew; what was not read before is gone. `slotwheel"
        " status` has the offsets.",
        "Send the messages again if their producer has them; then `slotwheel status"
        " --acknowledge`.",
    ),
    "delay-topic-not-read": Alarm(
        _PAGE,
        "A partition of a delay topic is not read; the text says why. Others are. `/readyz`"
        " answers 503.",
        "Remove the cause, or give [`--delay-from`](operations.md#where-reading-begins) if the text"
        " asks for it.",
    ),
    "delay-topic-not-stored": Alarm(
        _TICKET,
        "The node reads the delay topics, but cannot store its positions in Kafka. A node with an"
        " empty directory would not know where to begin.",
        "Give the node's Kafka user `Read` on the group `slotwheel-<group>`.",
    ),
    "delay-topic-records-missed": Alarm(
        _TICKET,
        "Records of a delay topic were deleted before they were read; `slotwheel status` has their"
        " offsets.",
        "Send them again if their producer has them; then `slotwheel status --acknowledge`. Give"
        " the topic a longer `retention.ms`.",
    ),
    "delivery-error": Alarm(
        _PAGE,
        "Delivery of a chunk failed, and is tried again; intake goes on.",
        f"The text says why. *Delivery stands still* comes with a damaged file: {_DAMAGED}.",
    ),
    "early": Alarm(
        _PAGE,
        "Messages were delivered before their due time, which must never happen.",
        "Report it with the log, and look whether the machine's clock was set by hand.",
    ),
    "entries-refused": Alarm(
        _TICKET,
        "The journal of this peer did not take entries that the master sent; they come again.",
        "The text says why. If it stays, look at this peer's disk.",
    ),
    "group-has-members": Alarm(
        _PAGE,
        "In the consumer group that keeps the mark of exactly-once delivery are consumers. A member"
        " could overwrite the mark.",
        "End them, or give the node another `--group`.",
    ),
    "held-topic-error": Alarm(
        _PAGE,
        "Delivery to a topic that was held back failed; other topics go on, and it is tried again.",
        f"The text says why; if a file is damaged: {_DAMAGED}.",
    ),
    "insecure": Alarm(
        _TICKET,
        "Others can reach an address of the node without proving who they are, by"
        " `--allow-insecure`.",
        "[TLS and a security file](security.md); or nothing, if the network keeps strangers away.",
    ),
    "master-cannot-write": Alarm(
        _PAGE,
        "The master's journal cannot be written, and a peer that has everything takes over.",
        "Mend the disk of this peer: the log has the error.",
    ),
    "memory": Alarm(
        _TICKET,
        "The options given need more [memory](operations.md#what-a-node-needs) than the node may"
        " use, so the kernel may kill it.",
        "Lower them, leave them out, or raise the container's limit.",
    ),
    "peer-fault": Alarm(
        _TICKET,
        "A peer broke the rules of replication; what it said counts for nothing.",
        "Report it with the logs of both. Compare their versions.",
    ),
    "peer-link-broken": Alarm(
        _TICKET,
        "The connection to a peer ended by an error. It is made again at once.",
        _NETWORK,
    ),
    "peer-load-failed": Alarm(
        _TICKET,
        "Entries that a peer lacks could not be read from this node's journal.",
        "Look at the disk; `slotwheel verify` of the stopped node tells of damage.",
    ),
    "peer-message-broken": Alarm(
        _TICKET,
        "A message of a peer could not be understood; its connection was closed.",
        _NETWORK,
    ),
    "peer-refused": Alarm(
        _PAGE, "This node does not work with a peer; the text says why.", _REFUSAL
    ),
    "peer-refuses": Alarm(
        _PAGE, "A peer does not work with this node; the text says why.", _REFUSAL
    ),
    "peer-server-failed": Alarm(
        _TICKET, "A connection of a peer could not be served; it calls again.", _NETWORK
    ),
    "promise-failed": Alarm(
        _PAGE,
        "A vote cannot be written, as the disk is full. This peer takes no part in elections until"
        " it can.",
        "Free disk space: see [a full disk on one peer](operations.md#a-full-disk-on-one-peer).",
    ),
    "repeats-accepted": Alarm(
        _TICKET,
        "`--accept-repeats` was used: the mark in Kafka was missing or older, and messages that had"
        " left may leave again.",
        "Take the option out again. Receivers recognize repeats by their ids.",
    ),
    "replication-failed": Alarm(
        _PAGE,
        "Replication ended by an error that nobody expected; the node ends, and its supervisor"
        " starts it again.",
        "The log has the error: report it.",
    ),
    "schedule-missed": Alarm(
        _TICKET,
        "Runs of schedules were due while no node was there, or the clock went ahead; they are"
        " older than `catch_up_ms`, or `missed` says that they become no messages. The text has how"
        " many, and a schedule.",
        "Send what is missing by `slotwheel schedule run NAME`; after the node was away, nothing.",
    ),
    "schedule-unreadable": Alarm(
        _TICKET,
        "The node cannot read a schedule that another node has taken, as its machine's table of"
        " time zones does not have the zone; so it fires it not, and all others. The text has its"
        " name.",
        "Update the machine's table of zones, or the package `tzdata`, and start the node again; or"
        " put the schedule with another zone, or delete it.",
    ),
    "security-file": Alarm(
        _TICKET,
        "The [security file](security.md#rights) was changed and cannot be used; the text has the"
        " place. The old one stays in use, and `/readyz` answers 503.",
        "`slotwheel security check FILE`; put a good file there by `mv`, it counts within 10 s.",
    ),
    "slot-file-damaged": Alarm(
        _PAGE,
        "A slot file is not what was written; found when it was read ahead, or when it was opened"
        " for delivery. What is due before its second, hour or day is delivered as ever. Then"
        " delivery stands still until the file is mended (`delivery-error`); messages are accepted"
        " all the while. `/readyz` answers 503.",
        "With peers nothing: the node makes the file anew from their rows. Alone, or if no peer has"
        f" them: {_DAMAGED}.",
    ),
    "snapshot-failed": Alarm(
        _TICKET,
        "A snapshot for a peer could not be sent to its end; the peer asks again.",
        "The text says why: damage on this peer's disk, or a file that cannot be read.",
    ),
    "snapshot-lost": Alarm(
        _TICKET,
        "A snapshot that this peer fetches could not be taken; it is fetched again.",
        "The text says why. If it stays, free disk space here, and look at the sender's log.",
    ),
    "topic-damaged": Alarm(
        _PAGE,
        "A segment of an embedded topic is not what was written. It is set aside: nothing is"
        " written to it any more, its topic goes on in a new segment; `consume` reads what is"
        " sound of it and reports the rest.",
        "Copy the rows that you need elsewhere; it is reported until the `.damaged` file beside it"
        " is gone.",
    ),
}
"""All kinds of alarms, by the name that logs and the label ``kind`` have."""
