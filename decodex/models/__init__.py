"""Models: finding the files, and two forward paths over the paged cache (Llama family, generic)."""
