"""The embedded stack: the programs of a Reef deployment on one machine, without root.

plan.py        the programs, as data             spec.py      the shape of that data
tansu.py, seaweedfs.py, valkey.py, services.py   one program each
object_store.py  the store below the broker      objectstore  a small S3 of our own
ports.py       a port for each listener          probes.py    whether a program is ready, or lives
supervisor.py  start, restart, stop              process.py   a child and its process group
watch.py       waits for a child                 state.py     the files of the state directory
sweep.py       ends the rest of a killed run     housekeeping.py, merger  care of the log
launch.py, embedded.py  all of it together       view.py      the display of a start
"""
