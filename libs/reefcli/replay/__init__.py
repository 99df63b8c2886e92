"""A second reading of the log into an empty store, by the services' own code.

log.py      the topics from their beginning to their real end, in the order of time
rebuild.py  the experience service's handlers on the new store; its events are discarded
heads.py    the publisher's rebuild of the release heads, under other keys
compare.py  the differences between the running store and the new store
run.py      a whole replay, in order
"""
