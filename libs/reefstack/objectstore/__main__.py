"""`python -m reefstack.objectstore`."""

from reefstack.objectstore.app import main

main()
