"""A file that a worker imports late hides nothing: its failures are told, and a file without tests ends no worker."""

import pytest


def test_late_files_are_told_as_if_imported_at_first(pytester: pytest.Pytester):
    pytester.makeini(
        "[pytest]\nmarkers = e2e: whole stack\nasyncio_default_fixture_loop_scope = function\n"
    )
    pytester.makepyfile(
        test_1_without="import pytest\n@getattr(pytest.mark, 'e2e')\ndef test_left_out(): assert False",
        test_2_fails="import sys\ndef test_fails(): assert False\n"
        "def test_goes_on(): assert 'test_4_passes' not in sys.modules",
        test_3_cannot_be_read="import nothing_of_this_name",
        test_4_passes="def test_passes(): pass",
    )
    words = ("-p", "tests.late_imports", "-n", "1", "--dist", "loadfile", "-m", "not e2e")
    found = pytester.runpytest(*words)
    found.assert_outcomes(passed=2, failed=1, errors=1)
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.stdout.fnmatch_lines(["*No module named 'nothing_of_this_name'*"])
