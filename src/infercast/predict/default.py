"""The predictor that every command uses unless it is told otherwise."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from infercast.bundled import DATA
from infercast.errors import UnknownNameError
from infercast.predict.artifact.artifact import Artifact, load_artifact
from infercast.predict.identity import DEFAULT_ENGINE
from infercast.predict.learned import Learned
from infercast.predict.profile import kernel_profile
from infercast.predict.roofline import Predictor, Roofline

PREDICTORS = ("learned", "roofline")


@lru_cache
def default_artifact() -> Artifact:
    """The artefact that comes with infercast."""
    return load_artifact(DATA / "fitted/kernels.npz")


def make_predictor(name: str = "learned", engine: str = DEFAULT_ENGINE) -> Predictor:
    """A predictor by name, or a learned one from an artefact's path, of the kernels that an engine chooses."""
    if name == "roofline":
        return Roofline()
    if name == "learned":
        return Learned(default_artifact(), kernel_profile(engine))
    if name.endswith(".npz"):
        return Learned(load_artifact(Path(name)), kernel_profile(engine))
    raise UnknownNameError("predictor", name, PREDICTORS, hint=", or the path of an artefact (.npz)")
