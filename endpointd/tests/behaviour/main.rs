//! The daemon as a whole: with a kernel that is scripted, and with the real one in network
//! namespaces.
//!
//! All of it is one program, because that is linked once. What is of the whole process is either
//! the same for all tests or counted (`netns::cubic`): tests enter namespaces by threads of their
//! own, and a SIGHUP makes every allocator of the process read its file again.
#![allow(unreachable_pub, clippy::disallowed_methods)]
// Modules of a program have no public items; tests wait by the wall clock.

mod backends;
mod daemon;
mod earlier_files;
mod left_overs;
mod netns;
mod observe_live;
mod pods;
mod site;
mod stampede_model;
