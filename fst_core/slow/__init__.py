"""Weight updates: TRL's GRPO with contexts inside every group."""
