"""Pure rules of the serving node: no I/O, clock, torch or threads."""
