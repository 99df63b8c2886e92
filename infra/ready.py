#!/usr/local/bin/python3 -IS
"""Health check of a container: exit 0 if the URL answers 200.

Without site-packages it starts in some 20 ms.
"""

import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as response:  # noqa: S310
        sys.exit(0 if response.status == 200 else 1)
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
