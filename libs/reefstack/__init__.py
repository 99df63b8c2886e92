"""The embedded stack: every program that a Reef deployment needs, on one machine, without containers and without root.

plan.py        what to start, as data            spec.py      the shape of that data
tansu.py, seaweedfs.py, valkey.py, services.py   one program each
ports.py       which ports                       probes.py    when a program counts as ready
supervisor.py  start, restart, stop              process.py   one child and its process group
state.py       what is kept on disk              sweep.py     what an earlier run left behind
embedded.py    all of it together                view.py      what a person sees while it starts
"""
