"""The result of a proof, as values, as JSON and as a page."""
