//! What was said once is said for ever: after restarts, with entries still in the queue, whoever wins a race.

use super::on_both;
use super::world::World;

on_both!(
    a_word_outlives_restarts_and_entries_left_in_the_queue,
    of_void_and_booking_one_wins_and_everybody_hears_the_same,
);

mod bodies {
    use std::time::Duration;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use reqwest::Method;
    use seckill_gate::orders::ledger::{BatchBooked, Booked, Voided};
    use seckill_gate::orders::order::NewOrder;

    use super::super::world::*;

    type Told = (u16, Option<String>, Option<String>, String);

    async fn told(service: &Served, order: &NewOrder) -> Told {
        let answer = service.post_until_told(order).await;
        (answer.status, answer.order, answer.reason, answer.body)
    }

    pub async fn a_word_outlives_restarts_and_entries_left_in_the_queue(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let service = world.serve().await;
        let [booked, expired, cancelled] = ["u1", "u2", "u3"].map(|user| order(user, "k"));
        let (refused, dead) = (order("u1", "other"), order("u4", "k"));
        for order in [&booked, &expired, &cancelled] {
            assert_eq!(told(&service, order).await.0, 200);
        }
        for (order, state) in [(&expired, "expired"), (&cancelled, "cancelled")] {
            world
                .execute(&format!("UPDATE orders SET state = '{state}' WHERE request_id = '{}'", order.request_id))
                .await;
        }
        assert_eq!(told(&service, &refused).await.2.as_deref(), Some("limit"));
        service.running.stop().await;
        // Void while it waits.
        world.queue.push(&dead).await.unwrap();
        assert_eq!(world.ledger.void(dead.request_id, Some(&sale())).await, Ok(Voided::Void));
        let service = world.serve().await;
        world.queue_is_empty().await;

        let orders = [booked, expired, cancelled, refused, dead];
        let mut first = vec![];
        for order in &orders {
            first.push(told(&service, order).await);
        }
        let words: Vec<_> = first.iter().map(|(_, word, reason, _)| (word.as_deref(), reason.as_deref())).collect();
        let (refused, ended) = (Some("refused"), Some("ended"));
        assert_eq!(
            words,
            [
                (None, None),
                (ended, Some("expired")),
                (ended, Some("cancelled")),
                (refused, Some("limit")),
                (refused, Some("void"))
            ]
        );
        service.running.stop().await;
        // Each lies in the queue again, where that is possible twice, and two consumers meet there.
        for _ in 0..2 {
            for order in &orders {
                world.queue.push(order).await.unwrap();
            }
            if let Some(redis) = &world.redis {
                redis.command(&["DEL", "skq:{sale}:waiting"]).unwrap();
            }
        }
        let sold = world.sold("phone").await;
        let (service, other) = (world.serve().await, world.consume(world.queue_of("two")));
        world.queue_is_empty().await;
        for (order, first) in orders.iter().zip(&first) {
            assert_eq!(&told(&service, order).await, first, "byte for byte");
        }
        assert_eq!((world.sold("phone").await, world.rows("pending").await, world.rows("void").await), (sold, 1, 1));
        other.stop().await;
        service.running.stop().await;
    }

    pub async fn of_void_and_booking_one_wins_and_everybody_hears_the_same(world: World) {
        const RUNS: u64 = 25;
        world.register(1, &[("phone", 10_000)]).await;
        let service = world.serve().await;
        let (mut won, mut voided) = (0, 0);
        // How long a void waits at most; it follows the outcomes, so that on any machine the two stay neck and neck.
        let mut patience_us = 2_000;
        for seed in 0..RUNS {
            let mut random = StdRng::seed_from_u64(seed);
            let contested = order(&format!("u{seed}"), "k");
            let mut batch: Vec<_> =
                (0..random.random_range(1..20)).map(|n| order(&format!("b{seed}-{n}"), "k")).collect();
            batch.insert(random.random_range(0..=batch.len()), contested.clone());
            let mut wait = |most_us| Duration::from_micros(random.random_range(0..most_us));
            let (in_batch, alone, void) = (wait(2_000), wait(2_000), wait(patience_us));
            let booking = {
                let (ledger, batch) = (world.ledger.clone(), batch.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(in_batch).await;
                    ledger.book_batch(&batch).await.unwrap()
                })
            };
            let single = {
                let (ledger, order) = (world.ledger.clone(), contested.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(alone).await;
                    ledger.book_one(&order).await.unwrap()
                })
            };
            tokio::time::sleep(void).await;
            let answer = service.api(Method::POST, &format!("/orders/{}/void", contested.request_id), "").await;
            let (BatchBooked::Done(verdicts), single) = (booking.await.unwrap(), single.await.unwrap()) else {
                panic!("seed {seed}: nothing here needs to go row by row")
            };
            let bookings = verdicts.iter().zip(&batch).filter(|(_, order)| **order == contested);
            let bookings = bookings.map(|(verdict, _)| *verdict).chain([single]);
            let bookings = bookings.filter(|verdict| *verdict == Booked::Booked).count();
            match (answer.status, bookings) {
                (200, 0) => {
                    voided += 1;
                    patience_us = (patience_us * 3 / 2).min(1_000_000);
                }
                (409, 1) => {
                    won += 1;
                    patience_us = (patience_us * 2 / 3).max(1_000);
                }
                other => panic!("seed {seed}: {other:?}"),
            }
            // Gate, operator and late repetitions all hear the same now.
            let again = service.api(Method::POST, &format!("/orders/{}/void", contested.request_id), "").await;
            assert_eq!((again.status, &again.body), (answer.status, &answer.body), "seed {seed}");
            let word = told(&service, &contested).await;
            let expected = if bookings == 1 { (200, None) } else { (409, Some("void".to_owned())) };
            assert_eq!((word.0, word.2), expected, "seed {seed}");
            assert_eq!(world.ledger.book_one(&contested).await.unwrap(), Booked::Duplicate, "seed {seed}");
        }
        assert!(won > 0 && voided > 0, "{won} won, {voided} were voided: the race was none");
        world.audit_is_clean().await;
        service.running.stop().await;
    }
}
