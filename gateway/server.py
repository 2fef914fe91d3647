"""Runs the gateway in this process: the socket, the loop, and how it ends.

It ends on SIGTERM and SIGINT. Requests that are being answered have ``END_S`` for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from ..aside.asked import AskedAside
from ..audit.auditor import Auditor
from ..audit.watch.watching import AuditSettings
from ..audit.watch.worker import AuditProcess
from ..client import Client
from ..client.addresses import Addresses
from ..client.asynclink import AsyncLink
from ..fleet.fleet import Fleet
from ..policy.deadletters import topics_of_letters
from ..reading.search.worker import SearchProcess
from ..security.accesslog import AccessLog
from ..trace.chains.lookup import TraceLookup
from ..trace.events import AUDIT_TOPIC
from ..trace.targets import WheelTarget
from ..wheel.errors import AddressInUse
from ..wheel.protocol import split_address
from .administration import TopicAdministration
from .asking import Questions
from .authentication import RequestAuthenticator
from .fresh import FreshAnswers
from .front.front import made_front
from .front.gathering import FleetGatherer
from .gathering import Gatherer, MessageStore, Room
from .httpserver import END_S, HttpServer
from .jobs import Jobs
from .logins import Logins
from .metrics import GatewayMetrics
from .pendingpoll import PendingPoll
from .routes import make_app
from .searcher import Searcher
from .services import OneByOne, Services, SingleFlight
from .settings import GatewaySettings
from .storing import StoreProcess, StoringSettings

log = logging.getLogger("slotwheel.gateway")

UNSENT_MAX = 64 << 10
"""Bytes of answers that the kernel takes of a connection before it can send them. By default it
takes 4 MB, so who reads nothing would have so many made, which nobody will ever see."""
_OWN_S = 5.0
"""How long, s, the node beside the gateway may take to say how it is."""
_THREADS = 16
"""For calls that wait: cancels, status, Kafka's metadata."""
_LOGINS_WAITING = 64
"""So many logins may wait for an issuer; whoever comes then is told to come again."""
_LINK_THREADS = 2
"""For what blocks on the way to a node: a host's name, a question to another peer."""
_PAGES = ("/metrics", "/healthz", "/readyz")
"""Of the node, which the gateway has, too."""


def run(settings: GatewaySettings) -> None:
    """Serve until a signal. Errors: ``AddressInUse``, ``OSError``."""
    listening = listen(settings.listen)
    # What is here stays; what a request leaves behind is freed by counts, not by the collector.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        uvloop.run(_serve(settings, listening))
    finally:
        listening.close()


def listen(address: str) -> socket.socket:
    """Errors: ``AddressInUse``, ``OSError``."""
    host, port = split_address(address, to_listen=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Every connection that is accepted has it, too.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX)
        made.bind((host, port))
        made.listen(2048)
    except OSError as error:
        made.close()
        if error.errno != errno.EADDRINUSE:
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
        raise AddressInUse(
            "the address for HTTP is taken", got=address, remedy="Choose another HOST:PORT"
        ) from None
    return made


async def _serve(settings: GatewaySettings, listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as undo:
        services = undo.enter_context(made_services(settings))
        server = HttpServer(*make_app(services), settings, settings.tls_files())
        server.watch(services.authenticator.look)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.end)
        host, port = listening.getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info("gateway listening on %s%s", where, " with TLS" if settings.tls_cert else "")
        if settings.exposed:
            log.warning("strangers could misuse this gateway: %s", settings.exposed)
        if settings.data is None and settings.fleet is None:
            log.info("search, and what is known of a message, are off: they need --data")
        await server.serve(listening)
    log.info("gateway stopped")


def _access_log_failed(error: OSError) -> None:
    log.warning("the access log cannot be written: %s", error)


@contextlib.contextmanager
def made_services(settings: GatewaySettings) -> Iterator[Services]:
    """Everything the routes work with; in a running loop."""
    # What sends ends first: a node that stops waits for it, and not for those who read.
    with contextlib.ExitStack() as readers, contextlib.ExitStack() as undo:
        auditor = None
        if settings.audit:
            auditor = Auditor(
                WheelTarget(settings.at_nodes, AUDIT_TOPIC),
                client=f"gateway {settings.listen}",
                interval_s=settings.audit_interval_ms / 1000,
            )
            undo.callback(auditor.close, END_S)
        blocking = ThreadPoolExecutor(_LINK_THREADS, thread_name_prefix="gateway-link")
        undo.callback(blocking.shutdown, wait=False, cancel_futures=True)
        # What waits is bounded by this room, so that nothing ever waits for it in a client.
        room = Room(settings.waiting_bytes_max)
        more: dict[str, Any] = {
            "timeout_s": settings.answer_s,
            "buffer_bytes": 4 * room.bytes_max,
            "observer": auditor,
        }

        def gatherer_of(client: Client) -> Gatherer:
            assert client.wire is not None, "the settings have addresses of nodes"
            link = AsyncLink(
                Addresses(client.addresses),
                "all",
                settings.answer_s,
                client.wire.epoch_of_master,
                blocking,
                observer=auditor,
                tls=client.wire.tls,
                token=client.wire.token,
            )
            undo.callback(link.end)
            return Gatherer(client, link, room)

        client: Client | Fleet
        gatherer: MessageStore
        front = None
        if settings.fleet is not None:
            front = made_front(settings, settings.fleet, more)
            client = front.fleet
            undo.callback(front.gateways.close)
            undo.callback(client.close, 0.0)
            wheels = {name: gatherer_of(client.wheel(name)) for name in client.names}
            gatherer = FleetGatherer(client, wheels, room)
            ask_page, status = front.node_page, front.pending_status
        else:
            client = Client(settings.at_nodes, **more)
            own = Client(replace(settings.at_nodes, given=settings.nodes[:1]), timeout_s=_OWN_S)
            for one in (client, own):
                undo.callback(one.close, 0.0)
            gatherer = gatherer_of(client)
            ask_page, status = own.page, client.status
        metrics = GatewayMetrics(
            lambda: {
                "waiting_bytes": ("Bytes of messages that are not stored yet", room.nbytes),
                "batches": ("Batches sent to the master", gatherer.batches),
                "messages": ("Messages sent to the master", gatherer.messages),
            }
        )
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        undo.callback(pool.shutdown, wait=False, cancel_futures=True)
        for_pages = ThreadPoolExecutor(len(_PAGES), thread_name_prefix="gateway-page")
        undo.callback(for_pages.shutdown, wait=False, cancel_futures=True)
        pages = {path: SingleFlight(for_pages, partial(ask_page, path)) for path in _PAGES}
        policies = SingleFlight(pool, client.fetch_policies)
        jobs = Jobs()
        undo.callback(jobs.stop, END_S)
        # Before other processes start: it takes secrets out of the environment that they would get.
        access_log = AccessLog(settings.access_log, _access_log_failed)
        authenticator = RequestAuthenticator(
            settings.security, access_log, own=topics_of_letters(settings.dead_letter_topic)
        )
        undo.callback(authenticator.close)
        if settings.security is not None:
            undo.callback(PendingPoll(authenticator.pending, status).close)
        searcher = lookup = None
        if settings.data is not None:
            assert isinstance(client, Client), "a data directory is that of one wheel"
            process = SearchProcess(settings.data, dead_letter_topic=settings.dead_letter_topic)
            readers.callback(process.close)
            searcher = Searcher(process, client, pool)
        if settings.store is not None:
            directories = settings.store, settings.data, settings.dead_letter_topic
            lookup = AskedAside("the process that looks up traces", TraceLookup, *directories)
            readers.callback(lookup.close)
        if settings.trace_retain_ms:
            assert settings.store is not None
            storing = StoreProcess(
                StoringSettings(
                    store=settings.store,
                    topic=settings.trace_topic,
                    retain_ms=settings.trace_retain_ms,
                    data=settings.data,
                    bootstrap=settings.bootstrap,
                    kafka=dict(settings.kafka),
                )
            )
            readers.callback(storing.close)
            metrics.add(storing)
        audit = None
        if settings.audit and settings.data is not None:
            audit = AuditProcess(
                AuditSettings(
                    data=settings.data,
                    bootstrap=settings.bootstrap,
                    kafka=settings.kafka,
                    dead_letter_topic=settings.dead_letter_topic,
                    interval_ms=settings.audit_interval_ms,
                    ahead_ms=settings.audit_ahead_ms,
                    others=settings.audit_others,
                )
            )
            readers.callback(audit.close)
            metrics.audit = lambda: audit.report
        administration: TopicAdministration | None = None
        if settings.bootstrap is not None:  # a gateway without Kafka loads none of its clients
            from .rest.kafka_administration import KafkaAdministration
            from .rest.kafka_cluster import KafkaCluster

            cluster = KafkaCluster(settings.bootstrap, settings.kafka)
            administration = KafkaAdministration(cluster)
        yield Services(
            settings=settings,
            client=client,
            policies=policies,
            pages=pages,
            gatherer=gatherer,
            metrics=metrics,
            pool=pool,
            jobs=jobs,
            letters=OneByOne(pool),
            redrives=OneByOne(pool),
            logins=Logins(authenticator, OneByOne(pool, _LOGINS_WAITING).run),
            front=front,
            searcher=searcher,
            lookup=lookup,
            lookup_questions=Questions(),
            fresh=FreshAnswers(),
            audit=audit,
            administration=administration,
            closing=undo,
            authenticator=authenticator,
        )
