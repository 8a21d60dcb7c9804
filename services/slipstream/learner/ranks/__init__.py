"""One process or several that train as one."""
