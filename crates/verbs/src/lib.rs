//! The verbs object model: the trait that every Polypath device implements.
