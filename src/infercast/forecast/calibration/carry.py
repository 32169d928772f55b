"""What a calibration says of a deployment, which need not be the one that was measured.

Host times depend on the machine: its factor, and the seconds of API server and network, hold for whatever runs there.
Factors of GPU times hold for the same GPU, engine and format of weights. Where something else differs (model, layout,
KV cache) they hold less surely, and on another GPU or in another format not at all.
"""

from __future__ import annotations

from math import hypot

from infercast.engines.corrections import Corrections, Factor
from infercast.engines.registry import engine_named
from infercast.errors import InputError
from infercast.forecast.calibration.record import Calibration, Fingerprint, Learned

ELSEWHERE = 0.5
"""For another model, layout or engine on the same machine: so much of what was unknown before is unknown again. An
assumption, between all (nothing is learned) and nothing (all of it is the machine's)."""
ON_ANOTHER_GPU = 1.0
"""The same of the host where the GPU is another one, so the machine is, too, for all we know."""


def carried(calibration: Calibration, asked: Fingerprint) -> Corrections:
    """The corrections of a deployment, with a note where it is not the one that was measured."""
    known = calibration.deployment
    if not asked.host.startswith(known.host):  # a what-if says behind it how many times as fast
        raise InputError(
            f"calibration {calibration.title or 'given'} is on top of the host times of {known.host!r}, not of "
            f"{asked.host!r}; leave --host out, or give the one it was made with"
        )
    same_engine = engine_named(asked.engine).family == engine_named(known.engine).family
    same_gpu = asked.gpu == known.gpu
    same_steps = same_gpu and same_engine and asked.weights == known.weights
    other_model = (asked.model, asked.layout, asked.kv_cache, asked.engine) != (
        known.model, known.layout, known.kv_cache, known.engine,
    )  # fmt: skip
    of_host = ON_ANOTHER_GPU if not same_gpu else 0.0 if same_engine else ELSEWHERE
    of_gpu = ELSEWHERE if other_model else 0.0
    return Corrections(
        host=_less_sure(calibration.host, of_host),
        prompts=_less_sure(calibration.prefill, of_gpu) if same_steps else None,
        decodes=_less_sure(calibration.decode, of_gpu) if same_steps else None,
        path=_less_sure(calibration.path, of_host) if asked.api_server == known.api_server else None,
        title=calibration.title,
        notes=tuple(_notes(known, asked, same_steps=same_steps)),
    )


def _less_sure(learned: Learned, share: float) -> Factor:
    return Factor(
        learned.value, min(hypot(learned.spread, share * learned.before), max(learned.before, learned.spread))
    )


def _notes(known: Fingerprint, asked: Fingerprint, *, same_steps: bool) -> list[str]:
    """What differs, and what is therefore not used."""
    names = {
        "gpu": "GPU", "engine": "engine", "model": "model", "weights": "weights", "layout": "layout",
        "kv_cache": "KV cache", "api_server": "API server",
    }  # fmt: skip
    other = [
        f"{title} {getattr(known, name)} (asked: {getattr(asked, name)})"
        for name, title in names.items()
        if getattr(known, name) != getattr(asked, name)
    ]
    if not other:
        return []
    held = "host and GPU factors are used, less surely" if same_steps else "host factors alone are used"
    network = "" if known.api_server == asked.api_server else ", and nothing of API server and network"
    return [f"The calibration is of another deployment, with {', '.join(other)}: {held}{network}."]
