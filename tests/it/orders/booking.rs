//! Exactly once, never more than there is, one per user.

use super::on_both;
use super::world::World;

on_both!(
    two_consumers_book_every_order_once,
    a_batch_that_was_committed_but_not_acknowledged_books_once,
    what_the_ledger_cannot_take_is_refused_by_name,
    void_and_booking_cannot_both_win,
    a_user_gets_no_more_than_the_limit,
    orders_of_an_older_epoch_are_dropped_unbooked,
    totals_move_only_from_where_they_stand,
    a_sale_is_registered_once,
);

mod bodies {
    use futures::future::join_all;
    use seckill_gate::orders::ledger::{BatchBooked, Booked, Dropped, Registered, TotalSet, Voided};
    use seckill_gate::orders::order::{OrderState, Refusal};

    use super::super::world::*;

    pub async fn two_consumers_book_every_order_once(world: World) {
        let n = if world.redis.is_some() { 5_000 } else { 1_000 };
        world.register(1, &[("phone", n as u32)]).await;
        let orders = crowd(n);
        let consumers = [world.consume(world.queue_of("one")), world.consume(world.queue_of("two"))];
        for chunk in orders.chunks(100) {
            for pushed in join_all(chunk.iter().map(|order| world.queue.push(order))).await {
                pushed.unwrap();
            }
        }
        world.queue_is_empty().await;
        assert_eq!((world.rows("pending").await, world.sold("phone").await), (n as u64, n as u64));
        let journal = world.ledger.journal(&sale(), 0, 1_000).await.unwrap();
        assert_eq!(journal.iter().filter(|line| line.kind == "book").count(), n.min(999));
        world.audit_is_clean().await;
        for consumer in consumers {
            consumer.stop().await;
        }
    }

    pub async fn a_batch_that_was_committed_but_not_acknowledged_books_once(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let orders = crowd(10);
        for order in &orders {
            world.queue.push(order).await.unwrap();
        }
        // A process that dies between commit and acknowledgement.
        let dying = world.queue_of("dying");
        let taken = dying.take(&[sale()], 100, std::time::Duration::from_millis(10)).await.unwrap();
        let taken: Vec<_> = taken.into_iter().map(|delivery| delivery.order.unwrap()).collect();
        assert_eq!(taken.len(), 10);
        assert!(matches!(world.ledger.book_batch(&taken).await.unwrap(), BatchBooked::Done(_)));
        drop(dying);

        let consumer = world.consume(world.queue_of("heir"));
        world.queue_is_empty().await;
        assert_eq!((world.rows("pending").await, world.sold("phone").await), (10, 10));
        world.audit_is_clean().await;
        consumer.stop().await;
    }

    pub async fn what_the_ledger_cannot_take_is_refused_by_name(world: World) {
        world.register(1, &[("phone", 3)]).await;
        let mut orders = crowd(8);
        orders[0].sku = "unheard-of".parse().unwrap();
        let consumer = world.consume(world.queue.clone());
        for order in &orders {
            world.queue.push(order).await.unwrap();
        }
        world.queue_is_empty().await;
        assert_eq!((world.rows("pending").await, world.rows("refused").await), (3, 5));
        assert_eq!(world.find(&orders[0]).await.unwrap().reason, "no_such_sku");
        let mut no_stock = 0;
        for order in &orders {
            let found = world.find(order).await.unwrap();
            assert_eq!(found.payload, order.payload, "kept byte for byte");
            no_stock += usize::from(found.reason == "no_stock");
        }
        assert_eq!((no_stock, world.sold("phone").await), (4, 3));
        world.audit_is_clean().await;
        consumer.stop().await;
    }

    pub async fn void_and_booking_cannot_both_win(world: World) {
        world.register(1, &[("phone", 100)]).await;
        let (mut booked, mut voided) = (0, 0);
        for (i, order) in crowd(60).into_iter().enumerate() {
            let booking = world.ledger.book_one(&order);
            let sale = sale();
            let void = world.ledger.void(order.request_id, Some(&sale));
            // Now one goes first, now the other.
            let (booking, void) = if i % 2 == 0 {
                tokio::join!(booking, void)
            } else {
                let (void, booking) = tokio::join!(void, booking);
                (booking, void)
            };
            match (booking.unwrap(), void.unwrap()) {
                (Booked::Booked, Voided::Exists(found)) => {
                    booked += 1;
                    assert_eq!(found.state, OrderState::Pending);
                }
                (Booked::Duplicate, Voided::Void) => voided += 1,
                other => panic!("{other:?}"),
            }
            // Both words are remembered.
            let again = world.ledger.void(order.request_id, None).await.unwrap();
            assert_eq!(again == Voided::Void, world.find(&order).await.unwrap().state == OrderState::Void);
            assert_eq!(world.ledger.book_one(&order).await.unwrap(), Booked::Duplicate);
        }
        assert_eq!((world.sold("phone").await, world.rows("void").await), (booked, voided));
        world.audit_is_clean().await;
    }

    pub async fn a_user_gets_no_more_than_the_limit(world: World) {
        world.register(2, &[("phone", 100), ("case", 100)]).await;
        let mut orders: Vec<_> = (0..4).map(|i| order("Bob", &format!("k{i}"))).collect();
        orders[1].sku = "case".parse().unwrap();
        // Another user, though many a collation thinks otherwise.
        orders.push(order("bob", "k"));
        let mut greedy = order("eve", "k");
        greedy.qty = 3;
        orders.push(greedy);
        assert_eq!(world.ledger.book_batch(&orders).await.unwrap(), BatchBooked::GoRowByRow);
        assert_eq!(world.rows("pending").await, 0, "a batch is all or nothing");
        let mut verdicts = vec![];
        for order in &orders {
            verdicts.push(world.ledger.book_one(order).await.unwrap());
        }
        let refused = Booked::Refused(Refusal::Limit);
        assert_eq!(verdicts, [Booked::Booked, Booked::Booked, refused, refused, Booked::Booked, refused]);
        assert_eq!((world.sold("phone").await, world.sold("case").await), (2, 1));
        world.audit_is_clean().await;
    }

    pub async fn orders_of_an_older_epoch_are_dropped_unbooked(world: World) {
        world.register(1, &[("phone", 10)]).await;
        let mut orders = crowd(3);
        assert_eq!(world.ledger.book_one(&orders[0]).await.unwrap(), Booked::Booked);
        world.execute("UPDATE activities SET epoch = 2, base_epoch = 2").await;
        orders[2].epoch = 2;
        let expected = vec![Booked::Duplicate, Booked::Dropped(Dropped::OldEpoch), Booked::Booked];
        assert_eq!(world.ledger.book_batch(&orders).await.unwrap(), BatchBooked::Done(expected));
        assert_eq!(world.ledger.book_one(&orders[1]).await.unwrap(), Booked::Dropped(Dropped::OldEpoch));
        assert_eq!(world.sold("phone").await, 2);
    }

    pub async fn totals_move_only_from_where_they_stand(world: World) {
        world.register(1, &[("phone", 10)]).await;
        for order in crowd(4) {
            world.ledger.book_one(&order).await.unwrap();
        }
        let sku = "phone".parse().unwrap();
        let rows = [
            (10, 12, TotalSet::Done),
            (10, 12, TotalSet::Already),
            (10, 20, TotalSet::OtherTotal(12)),
            (12, 3, TotalSet::Sold(4)),
            (12, 4, TotalSet::Done),
        ];
        for (from, to, expected) in rows {
            assert_eq!(world.ledger.set_total(&sale(), &sku, from, to).await.unwrap(), expected, "{from} -> {to}");
        }
        let unknown = world.ledger.set_total(&sale(), &"x".parse().unwrap(), 1, 2).await.unwrap();
        assert_eq!(unknown, TotalSet::Unknown);
        let totals: i64 = world
            .ledger
            .journal(&sale(), 0, 99)
            .await
            .unwrap()
            .iter()
            .filter(|line| line.kind == "total")
            .map(|line| line.delta)
            .sum();
        assert_eq!(totals, 4, "the journal adds up to the total");
    }

    pub async fn a_sale_is_registered_once(world: World) {
        let (sale, good) = (sale(), terms(1, &[("phone", 10)]));
        let outcomes = join_all((0..8).map(|_| world.ledger.register(&sale, &good, 0, 1))).await;
        let created = outcomes.iter().filter(|o| **o == Ok(Registered::Created)).count();
        let already = outcomes.iter().filter(|o| **o == Ok(Registered::Already)).count();
        assert_eq!((created, already), (1, 7), "{outcomes:?}");
        let other = terms(2, &[("phone", 10)]);
        let conflict = |orders| Ok(Registered::Conflict { epoch: 1, orders });
        assert_eq!(world.ledger.register(&sale, &other, 0, 1).await, conflict(0));
        assert_eq!(world.ledger.register(&sale, &good, 1, 2).await, conflict(0));
        world.ledger.book_one(&order("a", "k")).await.unwrap();
        assert_eq!(world.ledger.register(&sale, &good, 0, 1).await, conflict(1), "it has sold: rebuild, not preheat");
        let unknown = world.ledger.register(&"new".parse().unwrap(), &good, 3, 4).await;
        assert_eq!(unknown, Ok(Registered::Conflict { epoch: 0, orders: 0 }));
    }
}
