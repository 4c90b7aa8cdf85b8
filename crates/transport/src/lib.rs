//! RC, UC and UD queue pairs over sets of paths, without I/O.
