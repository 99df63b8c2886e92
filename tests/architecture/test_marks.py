"""A test without the mark of a real store cannot reach it; one with the mark of e2e is found."""

from pathlib import Path

import pytest

from tests.conftest import E2E


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def test_x(redis_url): pass", "redis_url needs the mark `redis`"),
        ("def test_x(kafka_bootstrap): pass", "kafka_bootstrap needs the mark `broker`"),
        (
            "import clickhouse_connect\n"
            "def test_x(): clickhouse_connect.get_client(interface='chdb', path='x')",
            "chDB needs the mark `store`",
        ),
    ],
)
def test_an_unmarked_test_is_refused(pytester: pytest.Pytester, body, said):
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest(
        "import pytest\n"
        "from tests.conftest import real_stores_need_their_mark\n"
        "@pytest.fixture\ndef redis_url(): return 'redis://nowhere'\n"
        "@pytest.fixture\ndef kafka_bootstrap(): return 'nowhere'\n"
    )
    pytester.makepyfile(body)
    found = pytester.runpytest()
    assert found.parseoutcomes().keys() & {"errors", "failed"}
    found.stdout.fnmatch_lines([f"*{said}*"])


def test_a_marked_test_goes_through(pytester: pytest.Pytester):
    pytester.makeini(
        "[pytest]\nmarkers = redis: real\nasyncio_default_fixture_loop_scope = function\n"
    )
    pytester.makeconftest(
        "import pytest\n"
        "from tests.conftest import real_stores_need_their_mark\n"
        "@pytest.fixture\ndef redis_url(): return 'redis://nowhere'\n"
    )
    pytester.makepyfile("import pytest\n@pytest.mark.redis\ndef test_x(redis_url): pass")
    pytester.runpytest().assert_outcomes(passed=1)


def test_the_tests_of_the_whole_stack_lie_where_they_are_looked_for():
    tests = Path(__file__).parents[1]
    mark = "mark." + "e2e"
    found = {p.relative_to(tests).parts[0] for p in tests.rglob("*.py") if mark in p.read_text()}
    assert found == set(E2E)
