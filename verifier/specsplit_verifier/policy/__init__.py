"""How much to speculate: how many nodes each session brings to the next step, and what that costs and brings.

It may import `drafters`, `sessions`, `target` and `records`.
Others use `Planner`, which decides; `StepCost`, what it knows of the device.
"""
