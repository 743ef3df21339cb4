//! Datacenter topologies for Ratewright: hosts, racks, links, Clos builders, ECMP paths, failures and block partitions.
