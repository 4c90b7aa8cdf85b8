//! Protocols under a model checker: that of path sets, see `tests/paths/main.rs`, and automatic
//! path migration, see `tests/migration/main.rs`. `make model` runs them.
