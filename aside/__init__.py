"""Processes beside another one: started, given their settings, watched, and ended.

Comes in: a function of a module, and what it is called with.
Goes out: what the function sends, and how its process ended.
"""
