"""Replicated wheels: one master, standbys that hold the same log, failover without loss."""
