//! The connection manager, simulated.

mod abi;
mod apps;
mod case;
mod draw;
mod expect;
mod forge;
mod host;
mod life;
mod model;
mod run;
mod shrink;

pub use case::{
    AttemptPlan, CmCase, CmFault, Decision, EndPlan, Forgery, ListenPlan, Place, Quit, Service,
};
pub use run::{CmReport, CmSimulation, run};
pub use shrink::shrink;
