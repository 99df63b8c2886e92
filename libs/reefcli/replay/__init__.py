"""A second reading of the log into an empty store, by the code that made the first one, and the two held against each other.

log.py      the topics from their beginning to their real end, in the order of time
rebuild.py  the experience service's own handlers on the new store, with nothing sent anywhere, and how far they have come
heads.py    the publisher's own rebuild of the release heads, under other keys
compare.py  what differs between the running store and the new one
run.py      all of it, in order
"""
