//! The path-set protocol under a model checker: see `tests/paths/main.rs`. `make model` runs it.
