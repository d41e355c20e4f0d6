"""Training of draft heads: the target's own answers in, checkpoints in the public layouts out."""
