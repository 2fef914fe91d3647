"""slotwheel holds messages that must reach a Kafka topic later, and hands each one over on time."""

__version__ = "0.1.0"
