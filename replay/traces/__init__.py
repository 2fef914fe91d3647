"""Spark over traces: DataFrames of events and departures in, figures, anomalies and chains out.

The figures are those of ``trace/chains``, on as many events as Spark can read.
"""
