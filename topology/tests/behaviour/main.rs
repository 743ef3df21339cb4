//! Behaviour of topologies across modules: paths, spreading, failures, files, counts, blocks.

mod addresses;
mod bad_files;
mod counts;
mod earlier_files;
mod frames;
mod groups;
mod nets;
mod partition;
mod paths;
mod pictures;
mod places;
mod reference_page;
mod round_trip;
mod spreading;
