"""A laboratory without noise: verifiers and drafters in one process, in virtual time.

What sessions, planners, mirrors, drafters and models do is the product's own code. What is not there: threads, sockets and the machine's
speed. A step and an expansion take the time that a cost curve says, a message the time that its wire takes, and everything else takes
none. So a run gives the same digits every time on one machine, and two policies can be compared without repeating anything.
"""
