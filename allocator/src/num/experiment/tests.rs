//! Behaviour of the experiments on small networks.
