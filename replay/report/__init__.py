"""What a proof says, as values, as JSON and as a page."""
