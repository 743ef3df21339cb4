//! Behaviour of utilities, normalisers and measures.
