"""Evaluation at the silos: the public half. A query, and no method: nothing is made of its releases."""
