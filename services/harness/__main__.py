"""`python -m services.harness`."""

from services.harness.app import main

if __name__ == "__main__":
    main()
