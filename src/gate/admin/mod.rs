//! The admin listener: who may change what, and every operator's change. Places for win log and rebuild are files beside
//! these.
//!
//! [`auth`] lets requests in, [`world`] is what they act on, [`problem`] how they fail, [`own_task`] how every
//! change runs to its end; the rest are the routes.

mod activities;
pub mod auth;
mod body;
mod changes;
mod dead_letters;
mod foresee;
pub mod health;
mod own_task;
mod preheat;
mod problem;
mod releases;
mod reload;
mod totals;
mod wins;
pub mod world;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

pub use auth::AdminAuth;
pub use problem::Problem;
pub use world::{AdminState, AdminWorld, Managed};

/// All routes of the admin listener.
pub fn router(state: impl Into<AdminState>, auth: AdminAuth) -> Router {
    let guarded = Router::new()
        .route("/admin/activities", get(activities::list))
        .route("/admin/activities/{id}", get(activities::show))
        .route("/admin/activities/{id}/wins", get(wins::page))
        .route("/admin/activities/{id}/wins/{request_id}", get(wins::one))
        .route("/admin/activities/{id}/preheat", post(preheat::preheat))
        .route("/admin/activities/{id}/pause", post(changes::pause))
        .route("/admin/activities/{id}/resume", post(changes::resume))
        .route("/admin/activities/{id}/stop-sku", post(changes::stop_sku))
        .route("/admin/activities/{id}/start-sku", post(changes::start_sku))
        .route("/admin/activities/{id}/totals", post(totals::set_total))
        .route("/admin/activities/{id}/releases", post(releases::release))
        .route("/admin/activities/{id}/dead-letters", get(dead_letters::page))
        .route("/admin/activities/{id}/dead-letters/retry-all", post(dead_letters::retry_all))
        .route("/admin/activities/{id}/dead-letters/{request_id}/retry", post(dead_letters::retry))
        .route("/admin/activities/{id}/dead-letters/{request_id}/release", post(dead_letters::release))
        .route("/admin/reload", post(reload::reload))
        .fallback(|| async { Problem::not_found("NOT_FOUND", "no such route") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(axum::middleware::from_fn_with_state(Arc::new(auth), auth::guard));
    // Probes come from orchestrators that hold no token and address the listener by whatever name they like.
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .merge(guarded)
        .with_state(state.into())
}
