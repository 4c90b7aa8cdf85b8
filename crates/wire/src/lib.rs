//! Every header and message that Polypath sends or receives, parsed and built.
