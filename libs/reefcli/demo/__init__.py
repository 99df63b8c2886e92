"""`reef demo`: the whole loop on this machine, with simulated users, shown live."""
