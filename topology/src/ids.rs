//! Dense ids: each is the index of its object in the topology's slice of that kind.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into the topology's slice.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "#{}"), self.0)
            }
        }
    };
}

id!(
    /// A host: its index in [`Topology::hosts`](crate::Topology::hosts).
    HostId, "host"
);
id!(
    /// A rack: its index in [`Topology::racks`](crate::Topology::racks).
    RackId, "rack"
);
id!(
    /// A switch: its index in [`Topology::switches`](crate::Topology::switches).
    SwitchId, "switch"
);
id!(
    /// A directed link: its index in [`Topology::links`](crate::Topology::links).
    LinkId, "link"
);
