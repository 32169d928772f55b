"""Traffic classes with their own priority and SLO, LoRA adapters and images, drawn over requests of a workload."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infercast.errors import InputError, require
from infercast.serve.workload.request import Adapters, Image, Request, Segment, SloClass, Workload

LIMITED = ("ttft", "tpot", "e2e")
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0}
EXAMPLE = "chat:0.7:priority=0:ttft=0.5,tpot=0.05"
MOST_ADAPTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class ClassShare:
    of: SloClass
    share: float | None = None  # Relative to the other shares; None if the workload names the class of each request


def parse_class(text: str) -> ClassShare:
    """Read ``NAME[:SHARE][:priority=N][:ttft=SECONDS,tpot=SECONDS,e2e=SECONDS]``."""
    name, *parts = text.split(":")
    if not re.fullmatch(r"[\w.-]{1,40}", name):
        raise InputError(f"class {text!r} must begin with a name, such as {EXAMPLE}")
    share, priority, limits = None, None, {}
    for part in (each.strip() for each in ",".join(parts).split(",") if each.strip()):
        key, equals, value = part.partition("=")
        if not equals:
            if share is not None:
                raise InputError(f"class {text!r} has two shares, {share:g} and {part}; give one")
            share = _number(text, "the share", part)
            require(share > 0, f"class {text!r}: the share", "be above 0", part)
        elif key == "priority":
            is_whole = re.fullmatch(r"-?\d{1,9}", value)
            require(is_whole, f"class {text!r}: priority", "be a whole number", repr(value))
            priority = int(value)
        elif key in LIMITED:
            limits[key] = _seconds(text, key, value)
        else:
            raise InputError(f"class {text!r}: unknown {key!r}; known: a share, priority, {', '.join(LIMITED)}")
    return ClassShare(SloClass(name, priority, tuple(limits.items())), share)


def _seconds(text: str, key: str, value: str) -> float:
    match = re.fullmatch(r"([\d.eE+-]+)\s*(s|ms|min|)", value.strip())
    if match is None:
        raise InputError(f"class {text!r}: {key} must be seconds such as 0.5 or 500ms, not {value!r}")
    seconds = _number(text, key, match[1]) * UNITS[match[2]]
    require(seconds > 0, f"class {text!r}: {key}", "be above 0", repr(value))
    return seconds


def _number(text: str, what: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"class {text!r}: {what} must be a number, not {value!r}; write {EXAMPLE}")
    return number


def with_classes(workload: Workload, classes: Sequence[ClassShare], *, seed: int = 0) -> Workload:
    """Assign classes at random in these shares, whole sessions together, or keep those the workload names."""
    names = [each.of.name for each in classes]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"class {repeated[0]!r} is given twice; say it once")
    said = {request.slo_class for request in workload.requests} - {""}
    if said and any(each.share is not None for each in classes):
        raise InputError(
            f"the workload names the classes of its requests ({', '.join(sorted(said)[:9])}); leave out shares"
        )
    if missing := sorted({name for name in names if said and name not in said}):
        raise InputError(f"class {missing[0]!r} is not in the workload; it has {', '.join(sorted(said)[:9])}")
    if not said and any(each.share is None for each in classes):
        raise InputError(f"class {names[0]!r} needs a share of the requests, such as {EXAMPLE}")
    if len(classes) == 1 and (classes[0].share or 0.0) > 1:
        raise InputError(
            f"class {names[0]!r} is {classes[0].share:g} of all requests; give a share of up to 1, or the other classes"
        )
    requests = workload.requests if said else _drawn(workload.requests, classes, seed)
    priorities = {each.of.name: each.of.priority for each in classes if each.of.priority is not None}
    limits = {each.of.name: dict(each.of.limits).get("ttft", math.inf) for each in classes}
    requests = tuple(
        replace(each, priority=priorities.get(each.slo_class, each.priority), due=limits.get(each.slo_class, math.inf))
        for each in requests
    )
    others = tuple(SloClass(name) for name in sorted(said - {*names}))
    description = f"{workload.description}; classes {', '.join(each.name for each in (*_of(classes), *others))}"
    return replace(workload, requests=requests, classes=(*_of(classes), *others), description=description)


def _of(classes: Sequence[ClassShare]) -> tuple[SloClass, ...]:
    shares = [each.share for each in classes]
    total = sum(share or 0.0 for share in shares)
    return tuple(replace(each.of, share=None if each.share is None else each.share / total) for each in classes)


def _drawn(requests: Sequence[Request], classes: Sequence[ClassShare], seed: int) -> tuple[Request, ...]:
    shares = np.array([each.share for each in classes], dtype=float)
    class_stream = 7919  # combined with the seed: classes have a random stream of their own
    rng = np.random.default_rng((seed, class_stream))
    drawn = rng.choice(len(classes), size=len(requests), p=shares / shares.sum()).tolist()
    of_sessions: dict[int, int] = {}
    found = []
    for request, number in zip(requests, drawn, strict=True):
        chosen = number if request.session is None else of_sessions.setdefault(request.session, number)
        found.append(replace(request, slo_class=classes[chosen].of.name))
    return tuple(found)


def reclassed(workload: Workload, other: Workload, *, seed: int) -> Workload:
    """Another draw of a workload, in the same classes."""
    if not workload.classes or any(each.share is None for each in workload.classes):
        return other
    return with_classes(other, [ClassShare(each, each.share) for each in workload.classes], seed=seed)


# LoRA adapters by request: some are far more popular than others.


def asking_for(request: Request, adapter: int | None) -> Request:
    """The request with an adapter: its KV can be shared only with requests for the same one."""
    if adapter is None or not request.prefix:
        return replace(request, adapter=adapter)
    first, *others = request.prefix
    name_bits = 20  # bits of the first segment's name that distinguish adapters
    renamed = Segment((first.content << name_bits) + adapter + 1, first.num_tokens)
    return replace(request, adapter=adapter, prefix=(renamed, *others))


def with_adapters(workload: Workload, mix: Adapters, *, seed: int = 0) -> Workload:
    """Assign adapters at random, the same one throughout a session."""
    require(1 <= mix.count <= MOST_ADAPTERS, "adapters", f"be 1 to {MOST_ADAPTERS:,}", mix.count)
    if not (0 <= mix.skew <= 10 and 0 < mix.share <= 1):
        raise InputError(f"the skew of adapters must be 0 to 10 and their share above 0 and up to 1, not {mix!r}")
    if any(request.adapter is not None for request in workload.requests):
        raise InputError("the workload names the adapters of its requests; leave out --adapters")
    adapter_stream = 104_729  # combined with the seed: adapters have a random stream of their own
    rng = np.random.default_rng((seed, adapter_stream))
    weights = np.arange(1, mix.count + 1, dtype=float) ** -mix.skew
    count = len(workload.requests)
    chosen = rng.choice(mix.count, size=count, p=weights / weights.sum()).tolist()
    asks = (rng.random(count) < mix.share).tolist()
    of_sessions: dict[int, int | None] = {}
    found = []
    for request, number, does in zip(workload.requests, chosen, asks, strict=True):
        adapter = number if does else None
        if request.session is not None:
            adapter = of_sessions.setdefault(request.session, adapter)
        found.append(asking_for(request, adapter))
    shared = "" if mix.share == 1.0 else f" for {mix.share:.0%} of requests"
    words = f"{workload.description}; {mix.count:,} LoRA adapters, Zipf {mix.skew:g}{shared}"
    return replace(workload, requests=tuple(found), adapters=mix, description=words)


# Images in prompts: behind what a prompt shares with others, and in a session behind its first part, from then on.


def with_images(workload: Workload, mix: Sequence[tuple[float, Image]], *, seed: int = 0) -> Workload:
    """Add images to prompts, this many of each kind on average; of a session, to its first prompt."""
    image_stream = 15_485_867  # combined with the seed: images have a random stream of their own
    rng = np.random.default_rng((seed, image_stream))
    chances, count = rng.random((len(workload.requests), len(mix))).tolist(), 0
    of_sessions: dict[int, list[Image]] = {}
    found = []
    for request, drawn in zip(workload.requests, chances, strict=True):
        images = None if request.session is None else of_sessions.get(request.session)
        if images is None:
            kinds = [[image] * int(mean + chance) for (mean, image), chance in zip(mix, drawn, strict=True)]
            kept = [image for kind in kinds for image in kind]
            first, count = count + (1 << 90) + (seed << 40), count + len(kept)
            images = [image._replace(content=-first - number) for number, image in enumerate(kept)]
            if request.session is not None:
                of_sessions[request.session] = images
        found.append(showing(request, images) if images else request)
    kinds_of = " and ".join(f"{mean:g} of {image.num_tokens:,} tokens" for mean, image in mix)
    words = f"{workload.description}; images in prompts: {kinds_of}"
    return replace(workload, requests=tuple(found), images=tuple(mix), description=words)


def showing(request: Request, images: Sequence[Image]) -> Request:
    """A request with these images before its text, or before what a conversation says."""
    place = len(request.prefix) if request.session is None else min(1, len(request.prefix))
    before, after = request.prefix[:place], request.prefix[place:]
    start, placed = sum(segment.num_tokens for segment in before), []
    for image in images:
        placed.append(image._replace(start=start))
        start += image.num_tokens
    shown = tuple(Segment(image.content, image.num_tokens) for image in images)
    added = sum(image.num_tokens for image in images)
    prefix = (*before, *shown, *after) if request.session is not None else before
    return replace(request, num_input=request.num_input + added, prefix=prefix, images=tuple(placed))
