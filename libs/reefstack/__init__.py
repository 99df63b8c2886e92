"""The embedded stack: the programs of a Reef deployment on one machine, without root.

plan.py, spec.py     programs as data         tansu.py, seaweedfs.py, valkey.py, services.py
ports.py, probes.py  listeners, readiness     object_store.py, objectstore  below the broker
supervisor.py        start, restart, stop     process.py  children
state.py, logs.py    files                    housekeeping.py, merger  care of the log
launch.py, embedded.py  all of it             view.py      display
"""
