"""Real servers, real workers: `make test-e2e`."""
