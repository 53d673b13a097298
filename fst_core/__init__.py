"""Fast-Slow Training: two interleaved learning loops over one language model."""
