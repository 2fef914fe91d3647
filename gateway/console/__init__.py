"""The console: pages on which people look at a node, its messages and its dead letters, and act.

In: requests of browsers. Out: HTML that is readable without scripts. What a page shows and does is
what ``gateway/v1`` says and does.
"""
