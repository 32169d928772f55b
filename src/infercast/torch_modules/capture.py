"""One forward pass of a PyTorch module with tensors that have shapes but no values, recorded operator by operator.

Tensors say that they are on a GPU, so code takes the paths it takes there. Small tensors of integers and booleans do
carry values, so that code which looks at them (masks, routing) goes on as it would; what depends on weights is drawn.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary, finalize

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from infercast.errors import InputError, UnknownNameError
from infercast.torch_modules.lower import AtenCall, Capture, Tensor

aten, linear = torch.ops.aten, torch.nn.functional.linear
MOST_VALUES = 1 << 20  # Elements of the largest tensor whose values are kept
BLOCK = 512  # Bytes that PyTorch's caching allocator rounds to
COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
RECURRENT = tuple(getattr(aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
DRAWN_INDICES = {"topk", "sort", "argsort", "argmax", "argmin", "multinomial", "max", "min"}
TYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")


class _Block:
    """Memory that tensors share."""

    __slots__ = ("__weakref__",)


class Shaped(torch.Tensor):  # type: ignore[misc]
    """A tensor of a GPU that is not there: shape, strides and dtype, and values only where ``value`` has them."""

    inner: Any
    value: Any
    block: _Block

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        laid = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device="meta", **laid)
        made.inner, made.value = inner, None
        return made

    # For Python alone: C++ would look for a driver.
    device = property(lambda _: torch.device("cuda:0"))
    is_cuda = property(lambda _: True)
    is_meta = property(lambda _: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise InputError("a tensor of a capture was used after its end")


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records every operator on a GPU's tensors; those of the CPU run as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AtenCall] = []
        self.path: list[str] = [""]
        self.assumed: dict[str, None] = {}
        self.held = self.peak = 0
        self._blocks: WeakValueDictionary[int, _Block] = WeakValueDictionary()
        self._draw = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: PLR0911
        kwargs = kwargs or {}
        if not any(isinstance(each, Shaped) for each in _tensors((args, kwargs))) and not _is_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        if func in RECURRENT:
            return self._recurrent(func, *args)
        if func is aten.scaled_dot_product_attention.default:
            return self._attention(func, args, kwargs)
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            self._record(func, args, kwargs, ())
            return func(*tree_map_only(Shaped, self._drawn, args))
        if func in (aten.nonzero.default, aten.masked_select.default, aten.repeat_interleave.Tensor):
            return self._by_values(func, args, kwargs)
        with self:
            if func in WHOLE_LAYERS:
                return WHOLE_LAYERS[func](*args)
            if func is aten.index.Tensor and any(_is_mask(each) for each in args[1]):
                places = [each.nonzero().unbind(1) if _is_mask(each) else (each,) for each in args[1]]
                return func(args[0], [place for each in places for place in each])
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSED):
                return func._op_dk(COMPOSED, *args, **kwargs)  # in C++; decompositions in Python differ
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator on meta tensors; its outputs become tensors of the GPU, or of the CPU where they are copied."""
        moved = {**kwargs, "device": torch.device("meta")} if "device" in kwargs else kwargs
        known = {id(each.inner): each for each in _tensors((args, kwargs)) if isinstance(each, Shaped)}
        meta_args, meta_kwargs = tree_map(_meta, (args, moved))
        try:
            done = func(*meta_args, **meta_kwargs)
        except NotImplementedError as problem:
            raise InputError(f"{func.name()} cannot say the shape of its result without values: {problem}") from None
        if kwargs.get("device") is not None and not _is_gpu(kwargs["device"]):
            self._record(func, args, kwargs, done)
            return torch.zeros(done.shape, dtype=done.dtype) if args[0].value is None else args[0].value
        made = tree_map_only(torch.Tensor, lambda each: known[id(each)] if id(each) in known else self.wrap(each), done)
        if func.is_view and isinstance(made, Shaped) and args[0].requires_grad:
            made.requires_grad_()
        self._record(func, args, kwargs, made)
        self._follow(func, args, kwargs, made)
        return made

    def wrap(self, inner: Any) -> Any:
        made, storage = Shaped(inner), inner.untyped_storage()
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
        names = (each.name for each in func._schema.arguments)
        given = {name: _plain(value) for name, value in [*zip(names, args, strict=False), *kwargs.items()]}
        given = {name: value for name, value in given.items() if value is not None}
        name = f"{func.namespace}.{func._schema.name.partition('::')[2]}"
        self.calls.append(AtenCall(name, given, tuple(map(_plain, _tensors(outputs))), self.path[-1], func.is_view))

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
        """Values of small results, where those of all operands are known; indices of unknown ones are drawn."""
        made = [each for each in _tensors(outputs) if isinstance(each, Shaped)]
        name = func._schema.name.partition("::")[2]
        is_small = sum(each.numel() for each in made) <= MOST_VALUES
        is_known = all(_value(each) is not None for each in _tensors((args, kwargs)))
        if is_small and is_known and not name.startswith(("rand", "empty", "new_empty")):
            moved = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
            plain_args, plain_kwargs = tree_map(_value, (args, moved))
            with suppress(NotImplementedError, RuntimeError):  # not every operator is one of the CPU's
                for each, value in zip(made, _tensors(func(*plain_args, **plain_kwargs)), strict=False):
                    each.value = value
                return
        for each in made:
            if func._schema.is_mutable:
                each.value = None
            if is_small and each.dtype == torch.int64 and name in DRAWN_INDICES:
                most = max((1, *args[0].shape[-1:]))
                each.value = torch.randint(most, each.shape, generator=self._draw)
                self.assumed[f"of {name}, every index is equally likely"] = None

    def _drawn(self, tensor: Shaped) -> Any:
        if tensor.value is None:
            self.assumed["conditions on unknown values hold, and unknown numbers are 1"] = None
            tensor.value = torch.ones(tensor.shape, dtype=tensor.dtype)
        return tensor.value

    def _by_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operator with as many rows in its result as values say."""
        known_args, known_kwargs = tree_map_only(Shaped, self._drawn, (args, kwargs))
        value = func(*known_args, **known_kwargs)
        made = self.wrap(torch.empty(value.shape, dtype=value.dtype, device="meta"))
        made.value = None if value.is_floating_point() else value
        self._record(func, args, kwargs, made)
        return made

    def _attention(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Attention as one operator, or as the operators that PyTorch falls back to where no kernel does all of it."""
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        query, key, value = (given.pop(name) for name in ("query", "key", "value"))
        half, mask = query.dtype in (torch.bfloat16, torch.float16), given.get("attn_mask")
        tensors = [query, key, value, *([] if mask is None else [mask])]
        in_order = all(each.stride(-1) == 1 and each.shape[-2] for each in tensors)
        aligned = not any(each.shape[-1] % (8 if half else 4) for each in (query, value))
        grouped = given.get("enable_gqa") and query.shape[-3] != value.shape[-3]
        if query.dim() != 4 or not in_order or not aligned or (grouped and not half) or query.dtype == torch.float64:
            with self:
                math = aten._scaled_dot_product_attention_math.default
                return math._op_dk(COMPOSED, query, key, value, **given)[0]
        batch, heads, rows = query.shape[:3]
        made = self.wrap(query.inner.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2))
        self._record(func, (query, key, value), given, made)
        return made

    def _recurrent(self, func: Any, x: Any, state: Any, weights: Sequence[Any], *rest: Any) -> Any:
        states = [*state] if isinstance(state, tuple | list) else [state]
        sides = 2 if rest[4] else 1
        out = self.wrap(x.inner.new_empty(*x.shape[:-1], sides * states[0].shape[-1]))
        self._record(func, (x, state, weights, *rest), {}, [out])
        return (out, *(self.wrap(x.inner.new_empty(each.shape)) for each in states))

    def triton(self, kernel: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        """A Triton kernel, of which only the tensors are known."""
        while hasattr(kernel, "fn") and not hasattr(kernel, "__name__"):
            kernel = kernel.fn
        given = {str(name): _plain(each) for name, each in [*enumerate(arguments), *named.items()]}
        name = getattr(kernel, "__name__", type(kernel).__name__)
        self.calls.append(AtenCall(f"triton.{name}", given, (), self.path[-1]))


def _multi_head(
    query: Any, key: Any, value: Any, size: int, heads: int, weight: Any, bias: Any, out: Any, out_bias: Any,
    mask: Any = None, *_: Any,
) -> Any:  # fmt: skip
    """What ``nn.MultiheadAttention`` runs for inference: one product where all three inputs are the same."""
    if query is key:
        parts = linear(query, weight, bias).chunk(3, -1)
    else:
        parts = [linear(*each) for each in zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)]
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in parts)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return linear(mixed.transpose(1, 2).flatten(2), out, out_bias), None


def _encoder_layer(
    x: Any, size: int, heads: int, weight: Any, bias: Any, out: Any, out_bias: Any, use_gelu: bool, norm_first: bool,
    eps: float, scale: Any, shift: Any, scale2: Any, shift2: Any, up: Any, up_bias: Any, down: Any, down_bias: Any,
    mask: Any = None, *_: Any,
) -> Any:  # fmt: skip
    """What ``nn.TransformerEncoderLayer`` runs for inference: the activation is part of the first product."""

    def attend(y: Any) -> Any:
        return _multi_head(y, y, y, size, heads, weight, bias, out, out_bias, mask)[0]

    def feed(y: Any) -> Any:
        inner = aten._addmm_activation.default(up_bias, y.flatten(0, -2), up.t(), use_gelu=use_gelu)
        return linear(inner.view(*y.shape[:-1], -1), down, down_bias)

    norm = torch.nn.functional.layer_norm
    if norm_first:
        x = x + attend(norm(x, (size,), scale, shift, eps))
        return x + feed(norm(x, (size,), scale2, shift2, eps))
    x = norm(x + attend(x), (size,), scale, shift, eps)
    return norm(x + feed(x), (size,), scale2, shift2, eps)


WHOLE_LAYERS: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: _multi_head,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}


def _tensors(nested: Any) -> list[Any]:
    return [each for each in tree_flatten(nested)[0] if isinstance(each, torch.Tensor)]


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type != "cpu"


def _is_mask(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8)


def _value(each: Any) -> Any:
    return each.value if isinstance(each, Shaped) else each


def _meta(each: Any) -> Any:
    if isinstance(each, Shaped):
        return each.inner
    return each.to("meta") if isinstance(each, torch.Tensor) else each


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Tensor(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def shaped(recorder: Recorder, tensor: Any, dtype: Any) -> Any:
    """A tensor of the GPU like this one, with its values if they are few integers."""
    is_float = tensor.is_floating_point() or tensor.is_complex()
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    made = recorder.wrap(torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device="meta"))
    made.requires_grad_(tensor.requires_grad)  # products with weights that could learn are laid out in another way
    if not is_float and not tensor.is_meta and tensor.numel() <= MOST_VALUES:
        made.value = tensor.detach().cpu().clone()
    return made


@contextmanager
def _swapped(module: Any, made: dict[int, Shaped]) -> Iterator[None]:
    """The module with other tensors in the places of its parameters and buffers; afterwards it has its own again."""
    undo: list[tuple[Any, Any, Any]] = []
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            undo += [(held, name, tensor) for name, tensor in held.items() if tensor is not None]
        lists = [(key, own) for key, own in part.__dict__.items() if isinstance(own, list)]
        undo += [(part.__dict__, key, own) for key, own in lists if any(id(each) in made for each in own)]
    try:
        for held, name, own in undo:
            held[name] = [made.get(id(each), each) for each in own] if isinstance(own, list) else made[id(own)]
        yield
    finally:
        for held, name, own in undo:
            held[name] = own


def _as_on_gpu(recorder: Recorder, stack: ExitStack, paths: dict[int, str], *, graph: bool) -> None:
    """PyTorch behaves as on a GPU, Triton kernels are recorded, and calls name submodules (hooks unfuse layers)."""
    called = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.path.append(paths.get(id(module), recorder.path[-1]))
        try:
            return called(module, *args, **kwargs)
        finally:
            recorder.path.pop()

    stack.enter_context(patch.object(torch.nn.Module, "__call__", call))
    stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is made on the CPU and moved
    cuda: dict[str, Any] = {"_lazy_init": None, "synchronize": None, "is_available": True, "current_device": 0}
    cuda |= {"is_current_stream_capturing": graph, "get_device_capability": (9, 0), "device_count": 1}
    for name, value in cuda.items():
        stack.enter_context(patch.object(torch.cuda, name, lambda *_, value=value: value))
    try:
        from triton.runtime.jit import KernelInterface  # noqa: PLC0415 - not on every platform
    except ImportError:
        return

    def launcher(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **named: recorder.triton(kernel, args, named)

    stack.enter_context(patch.object(KernelInterface, "__getitem__", launcher))


def capture(module: Any, inputs: Any, *, dtype: str | None = None, graph: bool = False) -> Capture:
    """Runs ``module`` once, for inference, on ``inputs``: a tensor, a tuple or keyword arguments, of any device.
    ``dtype`` is what ``module.to(dtype)`` would do to weights and inputs. ``graph``: as while a CUDA graph is captured,
    when some libraries take other paths.
    """
    recorder, was_training = Recorder(), module.training
    kind = getattr(torch, dtype) if dtype is not None else None
    held = {id(each): each for part in (module.parameters(), module.buffers()) for each in part}
    paths = {id(part): path for path, part in module.named_modules()}
    module.eval()
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            made = {key: shaped(recorder, each, kind) for key, each in held.items()}
            weight_bytes = recorder.held
            given = tree_map_only(torch.Tensor, lambda each: shaped(recorder, each, kind), inputs)
            args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
            stack.enter_context(_swapped(module, made))
            _as_on_gpu(recorder, stack, paths, graph=graph)
            stack.enter_context(recorder)
            recorder.peak = recorder.held
            module(*(args if isinstance(args, tuple) else (args,)), **kwargs)
    finally:
        module.train(was_training)
    parameters = sum(each.numel() for each in module.parameters())
    return Capture(recorder.calls, parameters, weight_bytes, recorder.peak - weight_bytes, [*recorder.assumed])


# Modules by name and inputs by their shapes, as written on a command line: the user's own Python code runs.


def load_module(text: str) -> Any:
    """``package.module:name``, ``file.py:name`` or ``hf:CONFIG`` of transformers, built without weights if it allows
    that.
    """
    source, _, name = text.partition(":") if text.startswith("hf:") else text.rpartition(":")
    if not source or not name:
        raise InputError(f"MODULE must be package.module:name, file.py:name or hf:config.json, not {text!r}")
    try:
        make = (lambda: _from_config(Path(name))) if source == "hf" else _named(source, name)
        if isinstance(make, torch.nn.Module):
            return make
        try:
            with torch.device("meta"):
                made = make()
        except (NotImplementedError, RuntimeError):  # its code looks at values
            made = make()
    except InputError:
        raise
    except Exception as problem:
        raise InputError(f"{text} cannot be made: {type(problem).__name__}: {problem}") from None
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"{text} must make a torch.nn.Module, not {type(made).__name__}")
    return made


def _named(source: str, name: str) -> Any:
    path = Path(source)
    sys.path.insert(0, str(path.resolve().parent if path.suffix == ".py" else Path.cwd()))
    if path.suffix == ".py":  # whatever else has its name
        spec: Any = importlib.util.spec_from_file_location(f"traced_{path.stem}", path)
        found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(source)
    for each in name.split("."):
        if not hasattr(found, each):
            known = [known for known in getattr(found, "__dict__", ()) if not known.startswith("_")]
            raise UnknownNameError(f"name in {source}", each, known)
        found = getattr(found, each)
    return found


def _from_config(path: Path) -> Any:
    """The model of a config of transformers, by its architecture; no weights are read."""
    if importlib.util.find_spec("transformers") is None:
        raise InputError("hf: needs transformers, which is not installed: pip install transformers")
    import transformers  # noqa: PLC0415 - few need it

    if not path.exists():
        raise InputError(f"{path} does not exist: hf: takes a folder with a config.json, or such a file")
    config = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False
    names = getattr(config, "architectures", None) or []
    known = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    return known(config) if known is not None else transformers.AutoModel.from_config(config)


def read_inputs(module: Any, texts: list[str]) -> Any:
    """``8x3x224x224``, ``int64:8x128`` or ``input_ids:int64:8x128``: shapes in order, or keyword arguments by name."""
    read = [_read_input(text) for text in texts]
    named = {name: tensor for name, tensor in read if name}
    if not named:
        return tuple(tensor for _, tensor in read)
    if len(named) != len(read):
        raise InputError("--input: either every input has a name of its own, or none has one")
    known = inspect.signature(module.forward).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        for name in named:
            if name not in known:
                raise UnknownNameError("input", name, known)
    return named


def _read_input(text: str) -> tuple[str, Any]:
    *before, shape = text.split(":")
    kind = getattr(torch, before.pop() if before and before[-1] in TYPES else "float32")
    sizes = shape.split("x")
    if len(before) > 1 or not all(size.isdecimal() for size in sizes):
        types = ", ".join(TYPES)
        raise InputError(f"--input must be like 8x3x224x224, int64:8x128 or name:int64:8x128 ({types}), not {text!r}")
    lengths, name = [int(size) for size in sizes], before[0] if before else ""
    if kind.is_floating_point:
        return name, torch.empty(lengths, dtype=kind, device="meta")
    largest_token = 100  # Values of integer inputs are small, so that every table has them
    most = 2 if kind is torch.bool else largest_token
    return name, torch.randint(1, most, lengths, dtype=kind, generator=torch.Generator().manual_seed(0))
