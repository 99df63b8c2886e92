from pydantic import BaseModel, Field

from reefcommon.meanings import meaning


class Base(BaseModel):
    pace: float = 1.0
    """seconds between
    two looks"""
    size: int = Field(3, description="of a batch")
    bare: int = 0
    last: int = 0


class Own(Base):
    more: str = ""
    """said here"""


def test_a_field_means_the_string_below_it_or_its_description():
    found = {name: meaning(Own, name) for name in Own.model_fields}
    said = {"pace": "seconds between two looks", "size": "of a batch", "more": "said here"}
    assert found == {**said, "bare": "", "last": ""}


def test_a_class_without_a_file_means_nothing():
    made = type("Made", (BaseModel,), {"__annotations__": {"key": int}, "key": 1})
    assert meaning(made, "key") == ""


def test_a_class_whose_source_cannot_be_read_alone_means_nothing():
    class Inner(BaseModel):
        key: int = 1
        """below it
at the margin: the source of the class alone is no Python"""

    assert meaning(Inner, "key") == ""
