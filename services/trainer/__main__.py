"""`python -m services.trainer`."""

from services.trainer.app import main

if __name__ == "__main__":
    main()
