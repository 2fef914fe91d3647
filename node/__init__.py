"""One running node: puts the rooms together, and owns threads, signals, metrics and health."""
