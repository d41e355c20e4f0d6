"""Features of the row pipeline: each changes logits rows of the slots that use it, as a function of the row."""
