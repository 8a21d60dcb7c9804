"""How no process outlives the process that started it.

parent_death   the kernel kills a child when its parent dies (Linux)
cleanup        a command kills what its children have left behind when it ends
watchdog       does the same for a command that was killed itself
"""
