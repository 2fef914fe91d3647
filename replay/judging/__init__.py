"""From facts to judgements: what became of each message, held against what was accepted."""
