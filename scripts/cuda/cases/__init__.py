"""One file a kernel: `variants` it needs, `check` (label, passed, detail), `measure` (rows of the table)."""
