// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream of records from a producer to a consumer, by iceoryx2: publish and subscribe, where nothing may be lost.
//!
//!     stream produce COUNT        stream consume
use std::error::Error;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use iceoryx2::port::BackpressureAction;
use iceoryx2::prelude::*;

const END: u64 = u64::MAX;
/// Who waits asks that often who has died.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, ZeroCopySend)]
#[repr(C)]
struct Record {
    number: u64,
    words: [u64; 7],
}

fn somebody_died() -> bool {
    let mut dead = false;
    let listed = Node::<ipc::Service>::list(Config::global_config(), |state| {
        dead |= matches!(state, NodeState::Dead(_));
        CallbackProgression::Continue
    });
    dead || listed.is_err()
}

fn main() -> Result<(), Box<dyn Error>> {
    set_log_level(LogLevel::Fatal);
    let arguments: Vec<String> = std::env::args().collect();
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node
        .service_builder(&"compare/stream".try_into()?)
        .publish_subscribe::<Record>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(1024)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()?;
    if arguments[1] == "produce" {
        let count: u64 = arguments[2].parse()?;
        let publisher = service
            .publisher_builder()
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .set_backpressure_handler(|info| {
                if info.elapsed_time > PATIENCE && somebody_died() {
                    return BackpressureAction::DiscardDataAndFail;
                }
                yield_now();
                BackpressureAction::Retry
            })
            .create()?;
        while service.dynamic_config().number_of_subscribers() == 0 {
            yield_now();
        }
        for number in (0..count).chain([END]) {
            let words = std::array::from_fn(|i| number.wrapping_mul(i as u64 + 3));
            // What nobody got: the subscriber is known, but has not connected yet, and its buffer is full; or it is gone.
            while publisher.loan_uninit()?.write_payload(Record { number, words }).send()? == 0 {
                if service.dynamic_config().number_of_subscribers() == 0 {
                    return Err("the consumer is gone".into());
                }
                yield_now();
            }
        }
        println!("stream: {count} records sent");
        return Ok(());
    }
    let subscriber = service.subscriber_builder().create()?;
    let (mut sum, mut records, mut asked) = (0, 0, Instant::now());
    loop {
        let Some(record) = subscriber.receive()? else {
            if asked.elapsed() > PATIENCE {
                if somebody_died() {
                    return Err("the producer has died".into());
                }
                asked = Instant::now();
            }
            yield_now();
            continue;
        };
        if record.number == END {
            break;
        }
        for (i, word) in record.words.iter().enumerate() {
            if record.number != records || *word != records * (i as u64 + 3) {
                return Err(format!("record {records} is wrong").into());
            }
        }
        sum += record.words[6];
        records += 1;
    }
    println!("stream: {records} records, sum {sum}");
    Ok(())
}
