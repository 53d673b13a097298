"""Estimators of what a study asks, from numbers already measured; nothing here reads a journal.

A value that cannot be had is None, with a sentence in `reason` where the cause is not plain.
"""
