//! The order service on real Redis and MariaDB, and the same expectations on its embedded SQLite.

mod aside;
mod booking;
mod crash;
mod faults;
mod http;
mod outage;
mod processes;
mod sticky;
mod world;

pub use world::settings;

/// Makes two tests of each named body: on Redis and MariaDB, and embedded.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_redis_and_mariadb() {
                super::bodies::$name(super::World::servers().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded() {
                super::bodies::$name(super::World::embedded()).await;
            }
        }
    )*};
}
use on_both;
