"""A small multilayer perceptron with Adam in numpy, whose two outputs become a utilisation between 0 and 1."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from points import Array

Head = Callable[[Array, Array], tuple[Array, Array]]
"""(outputs, waves) -> (log utilisation, its derivative by each output)."""

HIDDEN, STEPS, BATCH, RATE = (128, 128), 5000, 256, 3e-3


def bounded_by_waves(outputs: Array, waves: Array) -> tuple[Array, Array]:
    """u = alpha - beta / waves with 0 < beta < alpha < 1: full rounds hide latency better."""
    alpha, beta = _sigmoid(outputs[:, 0]), _sigmoid(outputs[:, 1])
    rest = 1.0 - beta / waves + 1e-9
    slope = np.stack([1.0 - alpha, -beta * (1.0 - beta) / waves / rest], axis=1)
    return np.log(alpha) + np.log(rest), slope


def efficiency(outputs: Array, waves: Array) -> tuple[Array, Array]:
    """u between 0 and 1 from the first output alone."""
    value = _sigmoid(outputs[:, 0])
    return np.log(value), np.stack([1.0 - value, np.zeros_like(waves)], axis=1)


def _sigmoid(values: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0))))


class Network:
    """log latency = log(limit) - log utilisation, fitted to the least mean absolute error of log latency."""

    def __init__(self, head: Head, seed: int = 0) -> None:
        self._head = head
        self._random = np.random.default_rng(seed)

    def fit(self, features: Array, limit: Array, waves: Array, seconds: Array) -> "Network":
        self._least, self._most = features.min(axis=0), features.max(axis=0)
        self._middle, self._spread = features.mean(axis=0), features.std(axis=0) + 1e-6
        inputs, target = self._scaled(features), np.log(limit / seconds).astype(np.float32)
        widths = (inputs.shape[1], *HIDDEN, 2)
        self._weights: list[Any] = []
        for fan_in, fan_out in pairwise(widths):
            self._weights.append(self._random.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out)).astype(np.float32))
            self._weights.append(np.zeros(fan_out, dtype=np.float32))
        first, second = [np.zeros_like(w) for w in self._weights], [np.zeros_like(w) for w in self._weights]
        for step in range(1, STEPS + 1):
            chosen = self._random.integers(0, len(inputs), BATCH)
            rate = RATE * 0.5 * (1.0 + np.cos(np.pi * step / STEPS))
            for number, slope in enumerate(self.gradient(inputs[chosen], waves[chosen], target[chosen])):
                first[number] = 0.9 * first[number] + 0.1 * slope
                second[number] = 0.999 * second[number] + 0.001 * slope**2
                scale = np.sqrt(second[number] / (1 - 0.999**step)) + 1e-8
                self._weights[number] -= rate * (first[number] / (1 - 0.9**step)) / scale
        return self

    def gradient(self, inputs: Array, waves: Array, target: Array) -> list[Array]:
        """Of the mean absolute error of log utilisation, by every weight."""
        layers = self._forward(inputs)
        found, slope = self._head(layers[-1], waves)
        back = (np.sign(found - target)[:, None] * slope / len(inputs)).astype(np.float32)
        gradients: list[Array] = []
        for number in range(len(self._weights) - 2, -1, -2):
            before = layers[number // 2]
            gradients = [before.T @ back, back.sum(axis=0), *gradients]
            if number:
                back = (back @ self._weights[number].T) * (before > 0)
        return gradients

    def seconds(self, features: Array, limit: Array, waves: Array) -> Array:
        outputs = self._forward(self._scaled(features))[-1]
        return np.asarray(limit * np.exp(-self._head(outputs, waves)[0]))

    def _forward(self, inputs: Array) -> list[Array]:
        """The inputs and what each layer makes of them."""
        layers = [inputs]
        for number in range(0, len(self._weights), 2):
            values = layers[-1] @ self._weights[number] + self._weights[number + 1]
            layers.append(np.maximum(values, 0.0) if number + 2 < len(self._weights) else values)
        return layers

    def _scaled(self, features: Array) -> Array:
        """Standardised; what lies outside of the known rows is taken for their edge, where a network still answers."""
        inside = np.clip(features, self._least, self._most)
        return np.asarray(((inside - self._middle) / self._spread).astype(np.float32))
