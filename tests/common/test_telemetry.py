"""What every service says of itself."""

import errno
import io
import os
import sys
from typing import cast

import pytest
import structlog

from reefkit.telemetry import _Stderr


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_line_that_the_disk_refuses_is_lost_and_not_the_work_that_told_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loop that tells of a failure, to try again then, would end with the log line; and so would what ends its process."""
    log = structlog.WriteLogger(cast("io.TextIOWrapper", _Stderr()))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Full())
        log.info("lost")
    log.info("said")
    assert capsys.readouterr().err == "said\n"
