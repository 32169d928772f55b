"""What an engine is: all that one serving engine, or one release of it, does otherwise than the next.

`infercast.engines.registry` knows them by name. docs/extending.md tells how another one is added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from infercast.engines.settings import Resolved, Settings, setting_types
from infercast.hardware import Gpu
from infercast.models.feed_forward import UNPADDED, Multiples
from infercast.models.layout import ParallelLayout
from infercast.models.spec import ModelConfig
from infercast.serve import Replica
from infercast.serve.step import HostCost, StepTimer

if TYPE_CHECKING:
    from infercast.engines.deployment import Deployment
    from infercast.engines.expert_launches import ExpertLaunches
    from infercast.engines.host import HostCosts
    from infercast.engines.memory import Memory

Tell = Callable[[str], None]


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

    def cost(self, launch: Launch, num_sequences: int, num_tokens: int) -> HostCost:
        """The host's part of a step."""

    def borrowed_share(self, model: str) -> float:
        """The share of what launching a prompt costs that was seen in one other model only."""


@dataclass(frozen=True, slots=True)
class Names:
    """What an engine calls things that others have, too; the first of each is its default."""

    kv_cache_dtypes: Mapping[str, str]
    dtypes: Mapping[str, str]
    """Of weights that are not quantised; nothing for the checkpoint's own."""
    moe_backends: tuple[str, ...]
    """Whose kernels multiply routed experts."""
    all2all_backends: tuple[str, ...]
    """How replicas that share experts exchange tokens; all but the first send each token to its experts alone."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What a pasted command that starts the engine may hold, without the dashes in front."""

    options: frozenset[str]
    """Options of ours, with underscores, that mean something to this engine."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Flags that are settings of the engine and no options of ours."""
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Flags that are options of ours under another name."""
    lists: frozenset[str] = frozenset()
    """Flags of ours that the engine takes with several values behind them."""
    switches: frozenset[str] = frozenset()
    """Flags without a value that change nothing; ``no-`` may be before each."""
    values: frozenset[str] = frozenset()
    """Flags with a value that change nothing."""
    not_modelled: Mapping[str, str] = field(default_factory=dict)
    """Flags that change a forecast and are not modelled, with what they are about."""


Asked = TypeVar("Asked", bound=Settings)
Filled = TypeVar("Filled", bound=Resolved)


class Engine(ABC, Generic[Asked, Filled]):
    """One release of an engine."""

    name: str
    """With its version: ``vllm@0.25``."""
    note: str = ""
    """What to know of a release whose costs were not measured."""
    title: ClassVar[str]
    """As its makers write it."""
    load_balancer: ClassVar[str]
    """What it has before several replicas, by the names of `infercast.serve.fleet.router`."""
    names: ClassVar[Names]
    flags: ClassVar[Flags]
    settings_type: ClassVar[type[Any]]
    host_type: ClassVar[type[HostCosts]]
    expert_launches: ClassVar[ExpertLaunches | None] = None
    """How it launches Triton's kernel for routed experts, where that can be tuned."""

    @property
    def family(self) -> str:
        """The name without the version, which is that of its folder of data."""
        return self.name.partition("@")[0]

    def settings(self, given: Mapping[str, Any] | None = None, tell: Tell = lambda _: None) -> Asked:
        """Settings from what was given by name; ``tell`` hears what is left aside."""
        made: Asked = self.settings_type(engine=self.name, **(given or {}))
        return made

    @property
    def setting_types(self) -> dict[str, type]:
        """Settings that can be written as one word, by name."""
        return setting_types(self.settings_type)

    @abstractmethod
    def room_for(self, num_tokens: int, num_sequences: int, longest: int) -> dict[str, int]:
        """Settings that allow steps of so many tokens and sequences, each of ``longest`` tokens at most."""

    @abstractmethod
    def resolve(self, settings: Asked, model: ModelConfig, gpu: Gpu) -> Filled:
        """What the engine would choose where nothing is asked for; an error where it would refuse."""

    @abstractmethod
    def describe(self, settings: Filled) -> str:
        """The settings that matter most, for people."""

    @abstractmethod
    def shown(self, settings: Filled) -> dict[str, Any]:
        """The same by the engine's own names, for programs."""

    @abstractmethod
    def plan_memory(self, model: ModelConfig, layout: ParallelLayout, gpu: Gpu, settings: Filled) -> Memory:
        """How it divides the memory of one GPU at its start; there may be no room for a single KV block."""

    def tokens_under_way(self, settings: Filled, layout: ParallelLayout) -> int:
        """Tokens of a sequence that its blocks have to have room for beside its window."""
        return settings.max_num_batched_tokens

    @abstractmethod
    def graphs(self, settings: Filled) -> Graphs:
        """The CUDA graphs it records at its start."""

    @abstractmethod
    def default_host(self) -> HostCosts:
        """What it costs the host it was measured on."""

    @abstractmethod
    def host_model(self, host: Any, model: ModelConfig, layout: ParallelLayout, gpu: Gpu) -> HostModel:
        """What a model costs a host of `host_type`."""

    @abstractmethod
    def replica(self, deployment: Deployment, settings: Filled, timer: StepTimer, *, warmed_up: bool) -> Replica:
        """The engine as the simulation sees it, with its limits and its way of scheduling."""

    @abstractmethod
    def shared_seconds(self, deployment: Deployment) -> Callable[[float], float]:
        """Seconds that replicas that share experts spend together in a step, by the tokens each of them brings."""

    def check_gpu(self, gpu: Gpu) -> None:
        """Refuse a GPU that the engine does not run on."""

    def fuses_norms(self, gpu: Gpu) -> bool:
        """Whether its all-reduces carry the norm that follows, unless it is told otherwise."""
        return False

    def expert_multiples(self, model: ModelConfig, gpu: Gpu) -> Multiples:
        """What its kernels round the hidden size and the width of experts up to."""
        return UNPADDED
