"""Kinds of token mixers, one file each."""
