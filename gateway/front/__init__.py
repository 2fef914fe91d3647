"""A gateway over a fleet: what it asks the gateways of its wheels, and how it joins the answers."""
