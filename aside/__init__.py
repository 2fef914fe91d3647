"""Processes beside another one: started, given their settings, watched, and ended.

Comes in: a function of a module, and its arguments. Goes out: values that the function sends, and
the end of its process.
"""
