"""One forward pass of a PyTorch module with tensors that have shapes but no values, recorded operator by operator.

Tensors say that they are on a GPU, so code takes the paths it takes there. Small tensors of integers and booleans do
carry values, so that code which looks at them (masks, routing) goes on as it would; what depends on weights is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary, finalize

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from infercast.errors import InputError
from infercast.torch_modules.calls import AtenCall, Capture, Tensor

aten = torch.ops.aten
MOST_VALUES = 1 << 20  # Elements of the largest tensor whose values are kept
BLOCK = 512  # Bytes that PyTorch's caching allocator rounds to
RECURRENT = {getattr(aten, name).input: name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
DRAWN_INDICES = {"topk", "sort", "argsort", "argmax", "argmin", "multinomial", "max", "min"}
COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
FUSED_FORMATS = (torch.bfloat16, torch.float16)


class _Block:
    """Memory that tensors share."""

    __slots__ = ("__weakref__",)


class Shaped(torch.Tensor):
    """A tensor of a GPU that is not there: shape, strides and dtype, and values only where ``value`` has them."""

    inner: torch.Tensor
    value: torch.Tensor | None
    block: _Block

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Shaped:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device="meta",
        )  # fmt: skip
        made.inner, made.value = inner, None
        return made  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:
        return f"Shaped({tuple(self.shape)}, {self.dtype})"

    device = property(lambda _: torch.device("cuda:0"))  # for Python alone: this build of PyTorch may not know CUDA
    is_cuda = property(lambda _: True)
    is_meta = property(lambda _: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise InputError("a tensor of this capture was used after its end")


def is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type != "cpu"


class Recorder(TorchDispatchMode):
    """Records every operator on a GPU's tensors; those of the CPU run as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AtenCall] = []
        self.path: list[str] = [""]
        self.assumed: dict[str, None] = {}
        self.held = self.peak = 0
        self._blocks: WeakValueDictionary[int, _Block] = WeakValueDictionary()
        self._draw = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, _ = tree_flatten((args, kwargs))
        if not any(isinstance(each, Shaped) for each in given) and not is_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        if func in RECURRENT:
            return self._recurrent(func, *args)
        if func is aten.scaled_dot_product_attention.default:
            return self._attention(func, args, kwargs)
        if func in WHOLE_LAYERS:
            with self:
                return WHOLE_LAYERS[func](*args, **kwargs)
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            self._record(func, args, kwargs, ())
            return self._scalar(func, args)
        if func in (aten.nonzero.default, aten.masked_select.default, aten.repeat_interleave.Tensor):
            return self._by_values(func, args, kwargs)
        if func is aten.index.Tensor and any(_is_mask(each) for each in args[1]):
            with self:
                places = [each.nonzero().unbind(1) if _is_mask(each) else (each,) for each in args[1]]
                return func(args[0], [place for each in places for place in each])
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSED):
            with self:  # in C++, as PyTorch does where a GPU is; its decompositions in Python differ
                return func._op_dk(COMPOSED, *args, **kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator on meta tensors; its outputs become tensors of the GPU, or of the CPU where they are copied."""
        inner = {**kwargs, "device": torch.device("meta")} if "device" in kwargs else kwargs
        meta_args, meta_kwargs = tree_map(_meta, (args, inner))
        known = {id(each.inner): each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Shaped)}
        try:
            done = func(*meta_args, **meta_kwargs)
        except (NotImplementedError, RuntimeError) as problem:
            if "meta" not in str(problem).lower() and not isinstance(problem, NotImplementedError):
                raise
            raise InputError(f"{func.name()} cannot say the shape of its result without values: {problem}") from None
        to_cpu = "device" in kwargs and kwargs["device"] is not None and not is_gpu(kwargs["device"])
        if to_cpu:
            self._record(func, args, kwargs, done)
            return torch.zeros(done.shape, dtype=done.dtype) if (value := self._value(args[0])) is None else value
        wrapped = tree_map_only(
            torch.Tensor, lambda each: known[id(each)] if id(each) in known else self.wrap(each), done
        )
        if func.is_view and isinstance(wrapped, Shaped) and args[0].requires_grad:
            wrapped.requires_grad_()
        self._record(func, args, kwargs, wrapped)
        self._follow(func, args, kwargs, wrapped)
        return wrapped

    def wrap(self, inner: torch.Tensor) -> Shaped:
        made = Shaped(inner)
        storage = inner.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self._blocks[storage._cdata] = block = _Block()
            self.held += size
            self.peak = max(self.peak, self.held)
            finalize(block, self._free, size)
        made.block = block
        return made

    def _free(self, size: int) -> None:
        self.held -= size

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
        schema = func._schema
        names = [each.name for each in schema.arguments]
        given = {name: _plain(value) for name, value in [*zip(names, args, strict=False), *kwargs.items()]}
        tensors = tuple(_plain(each) for each in tree_flatten(outputs)[0] if isinstance(each, torch.Tensor))
        name = f"{func.namespace}.{schema.name.partition('::')[2]}"
        given = {name: value for name, value in given.items() if value is not None}
        self.calls.append(AtenCall(name, given, tensors, self.path[-1], func.is_view))

    def _value(self, each: Any) -> Any:
        return each.value if isinstance(each, Shaped) else each

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
        """Values of small results, where those of all operands are known; indices of unknown ones are drawn."""
        made = [each for each in tree_flatten(outputs)[0] if isinstance(each, Shaped)]
        mutated = func._schema.is_mutable
        if not made or sum(each.numel() for each in made) > MOST_VALUES:
            for each in made:
                each.value = None
            return
        name = func._schema.name.partition("::")[2]
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if all(self._value(each) is not None for each in given) and not name.startswith(("rand", "empty", "new_empty")):
            moved = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
            plain_args, plain_kwargs = tree_map(self._value, (args, moved))
            values = [each for each in tree_flatten(func(*plain_args, **plain_kwargs))[0] if torch.is_tensor(each)]
            for each, value in zip(made, values, strict=False):
                each.value = value
            return
        for each in made:
            if mutated:
                each.value = None
            if each.dtype == torch.int64 and name.rstrip("_") in DRAWN_INDICES:
                last = args[0].shape[args[2] if name == "topk" and len(args) > 2 else -1] if args[0].dim() else 1
                each.value = torch.randint(max(last, 1), each.shape, generator=self._draw)
                self.assumed[f"{name}: every index is equally likely"] = None

    def _drawn(self, tensor: Shaped) -> torch.Tensor:
        """Its values; unknown conditions hold, and unknown numbers are one."""
        if tensor.value is None:
            self.assumed["conditions on unknown values hold, and unknown numbers are 1"] = None
            tensor.value = torch.ones(tensor.shape, dtype=tensor.dtype)
        return tensor.value

    def _scalar(self, func: Any, args: Any) -> Any:
        values = [self._drawn(each) if isinstance(each, Shaped) else each for each in args]
        return func(*values)

    def _by_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator whose result has as many rows as values say."""
        values, shapes = tree_map_only(Shaped, lambda each: each.value, (args, kwargs)), (args, kwargs)
        if func is aten.masked_select.default:
            count = int(self._drawn(args[1]).expand(torch.broadcast_shapes(args[0].shape, args[1].shape)).sum())
            made = self.wrap(torch.empty(count, dtype=args[0].dtype, device="meta"))
        else:
            known = tree_map_only(Shaped, self._drawn, shapes)
            value = func(*known[0], **known[1])
            made = self.wrap(torch.empty(value.shape, dtype=value.dtype, device="meta"))
            made.value = value
        del values
        self._record(func, args, kwargs, made)
        return made

    def _attention(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Attention as one operator, or, where no kernel does all of it, as the operators that PyTorch falls back to."""
        names = [each.name for each in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        query, value, mask = given["query"], given["value"], given.get("attn_mask")
        grouped = given.get("enable_gqa") and query.shape[-3] != value.shape[-3]
        dims = (query.shape[-1], value.shape[-1])
        step = 8 if query.dtype in FUSED_FORMATS else 4
        is_fused = query.dim() == 4 and (query.dtype in FUSED_FORMATS or not grouped) and query.dtype != torch.float64
        given_tensors = [query, given["key"], value, *([mask] if mask is not None else [])]
        is_fused = is_fused and all(each.stride(-1) == 1 for each in given_tensors)
        if not is_fused or any(each % step for each in dims) or any(t.shape[-2] == 0 for t in (query, value)):
            with self:
                plain = {name: each for name, each in given.items() if name not in ("query", "key", "value")}
                math = aten._scaled_dot_product_attention_math.default
                done, _ = math._op_dk(COMPOSED, query, given["key"], value, **plain)
            return done
        batch, heads, rows = query.shape[:3]
        made = self.wrap(query.inner.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2))
        self._record(
            func, (query, given["key"], value, mask), {k: v for k, v in kwargs.items() if k != "attn_mask"}, made
        )
        return made

    def _recurrent(self, func: Any, x: Any, state: Any, weights: Sequence[Any], *rest: Any) -> Any:
        _, layers, _, _, both, batch_first = rest
        sides = 2 if both else 1
        hidden = weights[1].shape[1]
        first = state[0] if isinstance(state, (tuple, list)) else state
        out = self.wrap(x.inner.new_empty(*x.shape[:-1], sides * (first.shape[-1])))
        states = [self.wrap(x.inner.new_empty(first.shape))]
        if RECURRENT[func] == "lstm":
            states.append(self.wrap(x.inner.new_empty(layers * sides, first.shape[1], hidden)))
        self._record(func, (x, state, weights, *rest), {}, [out])
        del batch_first
        return (out, *states)

    def triton(self, kernel: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        """A Triton kernel, of which only the tensors are known."""
        given = {f"{at}": _plain(each) for at, each in enumerate(arguments)}
        given |= {name: _plain(each) for name, each in named.items()}
        while hasattr(kernel, "fn") and not hasattr(kernel, "__name__"):
            kernel = kernel.fn
        name = getattr(kernel, "__name__", type(kernel).__name__)
        self.calls.append(AtenCall(f"triton.{name}", given, (), self.path[-1]))


def _multi_head(
    query: Any, key: Any, value: Any, size: int, heads: int, weight: Any, bias: Any, out: Any, out_bias: Any,
    mask: Any = None, *_: Any, **__: Any,
) -> Any:  # fmt: skip
    """What ``nn.MultiheadAttention`` runs for inference: one product where all three inputs are the same."""
    linear = torch.nn.functional.linear
    if query is key:
        parts = linear(query, weight, bias).chunk(3, -1)
    else:
        given = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
        parts = tuple(linear(*each) for each in given)
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in parts)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return linear(mixed.transpose(1, 2).flatten(2), out, out_bias), None


def _encoder_layer(
    x: Any, size: int, heads: int, weight: Any, bias: Any, out: Any, out_bias: Any, use_gelu: bool, norm_first: bool,
    eps: float, scale: Any, shift: Any, scale2: Any, shift2: Any, up: Any, up_bias: Any, down: Any, down_bias: Any,
    mask: Any = None, *_: Any, **__: Any,
) -> Any:  # fmt: skip
    """What ``nn.TransformerEncoderLayer`` runs for inference: the activation is part of the first product."""

    def attend(y: Any) -> Any:
        return _multi_head(y, y, y, size, heads, weight, bias, out, out_bias, mask)[0]

    def feed(y: Any) -> Any:
        inner = aten._addmm_activation.default(up_bias, y.flatten(0, -2), up.t(), use_gelu=use_gelu)
        return torch.nn.functional.linear(inner.view(*y.shape[:-1], -1), down, down_bias)

    norm = torch.nn.functional.layer_norm
    if norm_first:
        x = x + attend(norm(x, (size,), scale, shift, eps))
        return x + feed(norm(x, (size,), scale2, shift2, eps))
    x = norm(x + attend(x), (size,), scale, shift, eps)
    return norm(x + feed(x), (size,), scale2, shift2, eps)


WHOLE_LAYERS = {
    aten._native_multi_head_attention.default: _multi_head,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}


def _is_mask(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8)


def _meta(each: Any) -> Any:
    if isinstance(each, Shaped):
        return each.inner
    return each.to("meta") if isinstance(each, torch.Tensor) else each


def _plain(value: Any) -> Any:
    """What is kept of an argument."""
    if isinstance(value, torch.Tensor):
        return Tensor(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _recast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device="meta")


def shaped(recorder: Recorder, tensor: torch.Tensor, dtype: torch.dtype | None) -> Shaped:
    """A tensor of the GPU like this one, with its values if they are few integers."""
    made = recorder.wrap(_recast(tensor, dtype))
    made.requires_grad_(tensor.requires_grad)  # products with weights that could learn are laid out in another way
    is_small = not tensor.is_meta and tensor.numel() <= MOST_VALUES
    if is_small and not tensor.is_floating_point() and not tensor.is_complex():
        made.value = tensor.detach().cpu().clone()
    return made


@contextmanager
def _swapped(module: torch.nn.Module, made: dict[int, Shaped]) -> Iterator[None]:
    """The module with other tensors in the places of its parameters and buffers; afterwards it has its own again."""
    undo: list[Callable[[], None]] = []
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = made[id(tensor)]  # type: ignore[assignment]
                    undo.append(lambda held=held, name=name, tensor=tensor: held.__setitem__(name, tensor))  # type: ignore[misc]
        for key, own in vars(part).items():
            if isinstance(own, list) and any(id(each) in made for each in own):
                vars(part)[key] = [made.get(id(each), each) for each in own]
                undo.append(lambda part=part, key=key, own=own: vars(part).__setitem__(key, own))  # type: ignore[misc]
    try:
        yield
    finally:
        for each in undo:
            each()


def _as_on_gpu(recorder: Recorder, stack: ExitStack, paths: dict[int, str], *, graph: bool) -> None:
    """PyTorch behaves as where a GPU is; Triton kernels are recorded instead of launched; submodules say who runs.

    Hooks would say so too, but layers with hooks skip their fused kernels.
    """
    called = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorder.path.append(paths.get(id(module), recorder.path[-1]))
        try:
            return called(module, *args, **kwargs)
        finally:
            recorder.path.pop()

    stack.enter_context(patch.object(torch.nn.Module, "__call__", call))
    cuda = {"_lazy_init": lambda: None, "is_available": lambda: True, "current_device": lambda: 0}
    cuda |= {"is_current_stream_capturing": lambda: graph, "synchronize": lambda *_: None}
    cuda |= {"get_device_capability": lambda *_: (9, 0), "device_count": lambda: 1}
    for name, value in cuda.items():
        stack.enter_context(patch.object(torch.cuda, name, value))
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:
        return

    def launcher(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **named: recorder.triton(kernel, args, named)

    stack.enter_context(patch.object(KernelInterface, "__getitem__", launcher))


def capture(
    module: torch.nn.Module,
    inputs: Any,
    *,
    dtype: torch.dtype | None = None,
    graph: bool = False,
    training: bool = False,
) -> Capture:
    """Runs ``module`` once on ``inputs`` (a tensor, a tuple or keyword arguments), which may be on any device.

    ``dtype`` is what ``module.to(dtype)`` would do to weights and inputs. ``graph``: as while a CUDA graph is captured,
    when some libraries take other paths.
    """
    recorder, was_training = Recorder(), module.training
    module.train(training)
    held = {id(each): each for part in (module.parameters(), module.buffers()) for each in part}
    paths = {id(part): path for path, part in module.named_modules()}
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            made = {key: shaped(recorder, each, dtype) for key, each in held.items()}
            weight_bytes = recorder.held
            given = tree_map_only(torch.Tensor, lambda each: shaped(recorder, each, dtype), inputs)
            input_bytes = recorder.held - weight_bytes
            args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
            stack.enter_context(_swapped(module, made))
            _as_on_gpu(recorder, stack, paths, graph=graph)
            stack.enter_context(recorder)
            recorder.peak = recorder.held
            module(*(args if isinstance(args, tuple) else (args,)), **kwargs)
    finally:
        module.train(was_training)
    classes = {path: type(part).__name__ for path, part in module.named_modules()}
    parameters = sum(prod(each.shape) for each in module.parameters())
    peak = recorder.peak - weight_bytes
    return Capture(recorder.calls, parameters, weight_bytes, input_bytes, peak, classes, [*recorder.assumed])
