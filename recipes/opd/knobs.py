"""The knobs of OPD."""

from pathlib import Path

from pydantic import Field, field_validator

from recipes.distillation.knobs import DistillationKnobs, Divergence

_FILES = ("adapter_config.json", "config.json")


class Knobs(DistillationKnobs):
    teacher: Path = Field(
        description="directory of the teacher: a PEFT adapter on the served base, or a whole model"
        " with the same tokens"
    )
    # One update a batch, on the weights that sampled it: no correction is needed.
    max_staleness: int = Field(0, ge=0, le=0, description="only 0: nothing corrects staleness")
    average_rate: float = Field(0.0, ge=0, le=0, description="only 0: the teacher is frozen")
    divergence: Divergence = "sampled_reverse_kl"

    @field_validator("teacher")
    @classmethod
    def _a_model(cls, value: Path) -> Path:
        if not any((value / name).is_file() for name in _FILES):
            raise ValueError(f"{value} holds neither {' nor '.join(_FILES)}")
        return value
