"""The plain API below ``/v1``: messages, search, jobs, status, dead letters, policies."""
