"""Speed side by side: every ratio from one process, on one device, on the same work."""
