"""A second reading of the log into an empty store, by the services' own code.

log.py      the topics to their real end, in the order of time
rebuild.py  the experience service's handlers on the new store; events are discarded
heads.py    the publisher's rebuild of the release heads, under other keys
compare.py  the differences between both stores
run.py      a whole replay
"""
