"""Kinds of feed-forward halves, one file each."""

from infercast.models.feed_forward.dense import DenseFeedForward
from infercast.models.feed_forward.experts import ExpertFeedForward
from infercast.models.feed_forward.feed_forward import UNPADDED, FeedForward, Multiples
from infercast.models.feed_forward.none import NoFeedForward

__all__ = ["UNPADDED", "DenseFeedForward", "ExpertFeedForward", "FeedForward", "Multiples", "NoFeedForward"]
