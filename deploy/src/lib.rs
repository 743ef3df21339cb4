//! Ratewright for operators: the local lab out of network namespaces, topology tools, certificates, status.
