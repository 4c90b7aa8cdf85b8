//! Path manager: which paths lead to a peer, which live, which carries traffic; without I/O.
