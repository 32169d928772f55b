"""What an engine is: all that one serving engine, or one release of it, does otherwise than the next.

`infercast.engines.registry` knows them by name. docs/extending.md tells how another one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from infercast.engines.host import HostCosts, bundled_host
from infercast.engines.measured import Fields, MeasuredSetup, ProfiledStep
from infercast.engines.release import VERSION, numbers
from infercast.engines.settings import TYPES, Resolved, Settings
from infercast.engines.words import NO_COMMANDS, Commands, Flags, Names
from infercast.errors import FileFormatError
from infercast.hardware import Gpu
from infercast.models.adapters import AdapterSlots
from infercast.models.feed_forward import Multiples
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.ops import Op
from infercast.serve import Replica
from infercast.serve.step import HostCost, StepTimer

if TYPE_CHECKING:
    from infercast.engines.deployment import Deployment
    from infercast.engines.expert_launches import ExpertLaunches
    from infercast.engines.memory import Memory
    from infercast.engines.speculation import Drafting

Tell = Callable[[str], None]
Version = tuple[int, ...]


class Launch(Enum):
    """How a step's kernels reach the GPU."""

    FULL_GRAPH = "full graph"
    """The whole step is one graph: steps in which every sequence computes one token."""
    PIECEWISE_GRAPHS = "piecewise graphs"
    """Attention is launched by hand between graphs of the rest."""
    EAGER = "eager"
    """Every kernel is launched by itself."""


class Graphs(Protocol):
    """The CUDA graphs an engine recorded at its start."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Token counts of the steps they are for; none: no graphs."""

    def launch(self, num_tokens: int, is_decode: bool) -> tuple[Launch, int]:
        """How a step of that many tokens is launched, and how many tokens are then computed."""


class HostModel(Protocol):
    """A host that runs one model."""

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one step."""

    @property
    def waited_share(self) -> float:
        """The share of the GPU's time of a step with prompts that the host waits for while it launches."""

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int, num_prompts: int) -> HostCost:
        """The host's part of a step, without such waits."""

    def borrowed_share(self, model: str) -> float:
        """The share of what launching a prompt costs that was seen in one other model only."""

    def rests_on(self) -> list[str]:
        """Sentences: which of its times were seen in few models or under special conditions."""


class DraftPasses(Protocol):
    """How passes that draft reach the GPU."""

    @property
    def gap_seconds(self) -> float:
        """What the GPU idles between the kernels of one pass."""

    def padded(self, num_sequences: int) -> int:
        """Sequences that a later pass computes for so many."""

    def cost(self, launch: Launch, passes: int, num_sequences: int, *, has_prompts: bool) -> HostCost:
        """What a step that is launched in some way costs the host more, which verifies and drafts by so many passes."""


def no_measured_files(config: Fields) -> MeasuredSetup:
    """Of an engine whose measured runs nobody has."""
    raise FileFormatError(config.path, f"holds runs of {config.word('engine')}, whose files cannot be read")


def plain_sizes(layout: ParallelLayout) -> dict[str, Any]:
    """A layout by the names of its sizes."""
    sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data}
    found: dict[str, Any] = {f"{name}_parallel_size": size for name, size in sizes.items() if size > 1}
    return {**found, "enable_expert_parallel": True} if layout.experts else found


Asked = TypeVar("Asked", bound=Settings)
Filled = TypeVar("Filled", bound=Resolved)


@dataclass(frozen=True, kw_only=True, eq=False)
class Engine(Generic[Asked, Filled]):
    """One release of an engine: its facts and its rules."""

    name: str
    """With its version: ``vllm@0.25``."""
    title: str
    """As its makers write it."""
    note: str = ""
    """What to know of a release whose costs were not measured."""
    is_measured: bool = True
    """Whether its costs were measured; those of another release stand in otherwise, and intervals are wider."""
    close_since: Version = ()
    """Since which release its kind is close to the measured one: published runs of these are about as far off."""
    is_new_kernel: Callable[[Op, Gpu], bool] = lambda *_: False
    """Whether this release runs a kernel of its own for an operator that nobody measured; an older one stands in."""
    has_new_runner: Callable[[ModelConfig], bool] = lambda _: False
    """Whether this release launches a model by other code than the one whose host times were measured."""
    load_balancer: str
    """What it has before several replicas, by the names of `infercast.serve.fleet.router`."""
    servers_by_rank: bool = False
    """Whether it starts an API server for each copy of data parallelism, and not one for all of them."""
    names: Names
    flags: Flags
    shares_copies: bool = True
    """Whether copies of data parallelism share experts, and an exchange of tokens needs such copies."""
    commands: Commands = NO_COMMANDS

    settings_type: type[Asked]
    settings_from: Callable[[Mapping[str, Any], Tell], dict[str, Any]]
    """Settings by name from the values of flags; what is left aside is told."""
    bounds: tuple[str, str, str]
    """Settings that bound the tokens and the sequences of a step, and the tokens of a sequence."""
    shown: tuple[str, ...]
    """Settings that reports tell."""
    describe: Callable[[Filled], str]
    """The same in words."""
    resolve: Callable[[Asked, ModelConfig, ParallelLayout, Gpu], Filled]
    """What the engine would choose where nothing is asked for; an error where it would refuse."""

    spread: Callable[[Asked, ModelConfig, ParallelLayout, Gpu], ParallelLayout] = lambda _, __, layout, ___: layout
    """The layout that it makes of the sizes that it is given."""
    sizes_for: Callable[[ParallelLayout], dict[str, Any]] = plain_sizes
    """What it is told to have a layout: options of `deploy` and settings by name, defaults left out."""
    tried: Sequence[tuple[tuple[str, Any], ...]] = ((),)
    """Settings that a plan tries, each in order of names."""

    check_gpu: Callable[[Gpu], None]
    """Refuse a GPU that the engine does not run on."""
    fuses_norms: Callable[[ModelConfig, Gpu], bool]
    """Whether its all-reduces carry the norm that follows, unless it is told otherwise."""
    choose_kernels: Callable[[ModelConfig, Gpu, ParallelLayout], ModelConfig] = lambda model, *_: model
    """The model with kernels that it chooses by more than formats and the GPU, which `data/engines` says."""
    expert_multiples: Callable[[ModelConfig, Gpu], Multiples]
    """What its kernels round the hidden size and the width of experts up to."""
    expert_launches: ExpertLaunches | None = None
    """How it launches Triton's kernel for routed experts, where that can be tuned."""
    graphs: Callable[[Filled], Graphs]
    """The CUDA graphs it records at its start."""

    drafts: Callable[[Asked], bool] = lambda _: False
    """Whether settings ask for speculative decoding."""
    most_tokens: Callable[[Mapping[str, Any]], int] = lambda _: 1
    """Tokens that a step may yield of a sequence, by settings by name."""
    adapters: Callable[[Any, ModelConfig, ParallelLayout], AdapterSlots | None] = lambda *_: None
    """Room for LoRA adapters that the settings ask for."""

    drafting: Callable[[Filled], Drafting | None] = lambda _: None
    """Speculative decoding as the settings have it ..."""
    draft_passes: Callable[[Deployment], DraftPasses] | None = None
    """... and how its passes reach the GPU, of an engine that can be asked for it."""

    plan_memory: Callable[[ModelConfig, ParallelLayout, Gpu, Filled], Memory]
    """How it divides the memory of one GPU at its start; there may be no room for a single KV block."""
    check_memory: Callable[[ModelConfig, Filled, Memory], None] = lambda *_: None
    """Refuse a plan under which the engine would not start, though sequences fit."""
    tokens_under_way: Callable[[Filled, ParallelLayout], int]
    """Tokens of a sequence that its blocks have to have room for beside its window."""

    host_type: type[HostCosts]
    host_model: Callable[[Any, ModelConfig, ParallelLayout, Gpu, Filled], HostModel]
    """What a model costs a host of `host_type`."""

    replica: Callable[[Deployment, Filled, StepTimer, bool], Replica]
    """The engine as the simulation sees it, with its limits and its way of scheduling; warmed up, or just started."""
    shared_seconds: Callable[[Deployment], Callable[[float], float]]
    """Seconds that replicas that share experts spend together in a step, by the tokens that each of them brings."""

    measured_setup: Callable[[Fields], MeasuredSetup] = no_measured_files
    """How it was set up, from the ``config`` of a file of measured runs."""
    before: Callable[[Version, ModelConfig], tuple[Mapping[str, Any], Mapping[str, Any]]] = lambda *_: ({}, {})
    """What a release before this one did by default with a model of that name: settings, and options of `deploy`."""
    tuned_since: Mapping[str, Version] = field(default_factory=dict)
    """By the kernels of an architecture: the release from which on they are as good as estimates take them to be."""
    ties_groups: bool = True
    """Whether it ranks experts of groups in a format in which scores of untrained weights are equal."""
    profiled_step: Callable[[str], ProfiledStep | None] = lambda _: None
    """What a step held, from its name in a profile; None where the name is not of a step."""

    @property
    def family(self) -> str:
        """The name without the version, which is that of its folder of data."""
        return self.name.partition("@")[0]

    @property
    def version(self) -> Version:
        """As numbers, as far as the name has it."""
        found = VERSION.fullmatch(self.name.partition("@")[2])
        return numbers(found[1]) if found else ()

    def settings(self, given: Mapping[str, Any] | None = None, tell: Tell = lambda _: None) -> Asked:
        """Settings from the values of flags by name; ``tell`` hears what is left aside."""
        make: Callable[..., Asked] = self.settings_type
        return make(engine=self.name, **self.settings_from(given or {}, tell))

    @property
    def setting_types(self) -> dict[str, type]:
        """Settings that can be written as one word, by name."""
        kind: Any = self.settings_type
        written = {each.name: str(each.type).removesuffix(" | None") for each in fields(kind)}
        return {name: TYPES[text] for name, text in written.items() if text in TYPES}

    def room_for(self, *bounds: int) -> dict[str, int]:
        """Settings that allow so many tokens and sequences a step and tokens a sequence."""
        return dict(zip(self.bounds, bounds, strict=True))

    def default_host(self) -> HostCosts:
        """What it costs the host it was measured on."""
        return bundled_host(self.host_type, self.family)
