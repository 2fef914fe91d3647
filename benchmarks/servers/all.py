"""Ways to hold messages back, each as its users run it when no message may be lost.

One module a server; each starts it on loopback below a directory of its own, and stops what it
started by its process id. A server that is not installed is named as missing.
"""

from __future__ import annotations

from .beanstalkd import Beanstalkd
from .nats import Nats
from .ours import Ours
from .postgres import Postgres
from .rabbitmq import RabbitMq
from .redis import Redis
from .rocketmq import RocketMq
from .server import Server

ALL: tuple[type[Server], ...] = (Ours, Beanstalkd, Redis, RabbitMq, Postgres, Nats, RocketMq)
OURS = Ours.name
