"""The servers and deployments that flows run with: local services, what `make deploy` applies."""
