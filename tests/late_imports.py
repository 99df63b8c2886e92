"""A worker of the whole suite imports a test file when it runs it: all of them take half a minute of CPU in each worker."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class LateFile(pytest.File):
    """A test file that is imported later. The scheduler sees one item."""

    def collect(self) -> Iterator[pytest.Item]:
        yield LateItem.from_parent(self, name="all")


class LateItem(pytest.Item):
    def runtest(self) -> None:
        raise AssertionError("the tests of the file run in its place")


def _is_late(config: pytest.Config) -> bool:
    """Only if files are handed out whole, and no test is chosen by its name or mark."""
    chosen = config.option.keyword or any("::" in argument for argument in config.args)
    whole = getattr(config, "workerinput", {}).get("whole_files", False)
    return whole and not chosen and config.option.markexpr in ("", "not e2e")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker's own options say `--dist no`."""
    node.workerinput["whole_files"] = node.config.option.dist == "loadfile"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LateFile | None:
    return LateFile.from_parent(parent, path=module_path) if _is_late(parent.config) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    # Torch makes so many objects that the usual thresholds cost a tenth of the CPU.
    gc.set_threshold(10_000, 20, 20)
    gc.disable()
    try:
        return (yield)
    finally:
        _keep_imports()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, LateItem):
        return None
    session, hook = item.session, item.config.hook
    module = pytest.Module.from_parent(item.parent.parent, path=item.path)
    # A collection while a file is parsed may run code of earlier tests, which parses too: a SystemError.
    gc.collect()
    gc.disable()
    try:
        items = list(session.genitems(module))
    finally:
        _keep_imports()
    hook.pytest_collection_modifyitems(session=session, config=item.config, items=items)
    # xdist asks for the name of the item that it has sent, in each report.
    place = session.items.index(item)
    try:
        # None if all are left out, or if the import failed, which the collection has told.
        for one, following in zip(items, [*items, nextitem][1:], strict=True):
            session.items[place] = one
            hook.pytest_runtest_protocol(item=one, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
    finally:
        session.items[place] = item
    return True


def _keep_imports() -> None:
    """What imports have made stays: no later collection goes through it again."""
    gc.freeze()
    gc.enable()
