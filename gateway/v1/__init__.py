"""The plain API below ``/v1``: messages, search, schedules, jobs, status, dead
letters, policies."""
