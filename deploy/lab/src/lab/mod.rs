//! The lab that scenarios run in.
//!
//! | module | what |
//! |---|---|
//! | [`preflight`] | refuses with one clear line when something is missing |
//! | [`lock`] | one lab at a time |
//! | [`context`] | options, directories, the live view, the user's wish to leave |
//! | [`testbed`] | one built network with its traffic programs and measurements |
//! | [`control`] | the allocator and the daemons of a site: starting, killing, asking |

pub mod context;
pub mod control;
pub mod lock;
pub mod preflight;
pub mod testbed;
