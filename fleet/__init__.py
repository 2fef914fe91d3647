"""Several wheels as one: which wheel a message goes to, and questions that are asked of all.

A *wheel* is one group: a node, or a master and its peers. A *fleet* is a file that names some. It
has no state, and nothing moves between its wheels.
"""
