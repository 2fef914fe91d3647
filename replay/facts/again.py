"""Rows of a journal that are a message once more: a dead letter that was redriven, and a retry.

Theory: both say in their headers of which message they are, so each gives a fact at that message's
offset, beside its other facts. A redrive stores letters and the note that names them as one entry;
so a row that says what it was before, in an entry with a note, is a redriven letter. What somebody
sent again by hand has no note.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from ...policy.deadletters import notes_topic
from ...policy.failure import retry_topic
from ...policy.headercolumns import HeaderColumn
from ...policy.headers import ATTEMPT, GROUP, ORIGIN_ID
from ...reading.files import File
from ...wheel.checks import REDELIVERED_ID_HEADER
from ...wheel.digest import topic_crcs
from ...wheel.ids import id_parts
from ...wheel.schema import Int64s, times
from .fact import FACT, NO_DIGEST, Facts, Seen
from .making import GroupTerms


def again_facts(file: File, rows: pa.RecordBatch, index: int | Int64s, terms: GroupTerms) -> Facts:
    """Facts of those rows (schema ``ROW``) of a journal that are a message once more, each at the
    offset of that message. ``index``: the entry of all rows, or of each."""
    headers = HeaderColumn(rows.column("headers"))
    topic = topic_crcs(rows.column("topic"))
    parts = [np.empty(0, FACT)]
    if headers.of_name(REDELIVERED_ID_HEADER).any():
        entry = np.broadcast_to(index, len(topic))
        noted = entry[topic == crc32c(notes_topic(terms.dead_letter_topic).encode())]
        ids = headers.last_values(REDELIVERED_ID_HEADER)
        at = np.flatnonzero(np.asarray(ids.is_valid()) & np.isin(entry, noted))
        parts.append(_at_origins(file, rows, at, ids, Seen.REDRIVEN, terms))
    if headers.of_name(ATTEMPT).any():
        ids, groups = headers.last_values(ORIGIN_ID), headers.last_values(GROUP)
        tried = _numbers(headers.last_values(ATTEMPT))
        known = {
            group_name: crc32c(retry_topic(group_name.decode("utf-8", "replace")).encode())
            for group_name in groups.unique().drop_null().to_pylist()
        }
        topics = [known.get(group_name, -1) for group_name in groups.to_pylist()]
        at = np.flatnonzero(np.asarray(ids.is_valid()) & (tried > 1) & (topic == topics))
        made = _at_origins(file, rows, at, ids, Seen.RETRIED, terms)
        by_offset = dict(zip(times(rows, "offset").tolist(), tried.tolist(), strict=True))
        made["at"] = [by_offset[offset] for offset in made["where"].tolist()]
        of_group = dict(zip(times(rows, "offset").tolist(), topics, strict=True))
        made["created"] = [of_group[offset] for offset in made["where"].tolist()]
        parts.append(made)
    return np.concatenate(parts)


def _at_origins(
    file: File, rows: pa.RecordBatch, at: Int64s, ids: pa.Array, seen: Seen, terms: GroupTerms
) -> Facts:
    """Facts of the rows at places ``at``, each at the offset that its id has. ``ids``: texts, one a
    row; those of other groups are left out."""
    picked = pa.array(at)
    parts = id_parts(ids.take(picked))
    own = np.asarray(pc.fill_null(pc.equal(pc.struct_field(parts, "group"), terms.group), False))
    parts, at = parts.filter(pa.array(own)), at[own]
    facts = np.zeros(len(at), FACT)
    facts["offset"] = np.asarray(parts.field("offset"))
    facts["due"] = np.asarray(parts.field("due"))
    facts["where"] = times(rows, "offset")[at]
    facts["created"] = facts["partition"] = -1
    facts["file"], facts["peer"] = file.number, file.peer
    facts["seen"], facts["flags"] = seen, NO_DIGEST
    facts["topic"] = topic_crcs(rows.column("topic"))[at]
    return facts


def _numbers(values: pa.Array) -> Int64s:
    """Decimals as numbers; 0 where there is none."""
    texts = [text or b"" for text in values.to_pylist()]
    return np.array(
        [int(text) if text.isdigit() and len(text) < 10 else 0 for text in texts], np.int64
    )
