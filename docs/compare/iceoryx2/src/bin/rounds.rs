// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that compute on one array in rounds, by iceoryx2: each publishes its part of the array, and has got it all when
//! there is a part of everybody. There is no array that all write, and no barrier.
//!
//!     rounds NUMBER PARTIES ROUNDS
use std::error::Error;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use iceoryx2::prelude::*;

const CELLS: usize = 16;
/// Who waits asks that often who has died.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, ZeroCopySend)]
#[repr(C)]
struct Part {
    number: usize,
    round: usize,
    cells: [u64; CELLS],
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
    let arguments: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let [number, parties, rounds] = arguments[..] else {
        return Err("rounds NUMBER PARTIES ROUNDS".into());
    };
    let (all, first) = (parties * CELLS, number * CELLS);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node
        .service_builder(&"compare/rounds".try_into()?)
        .publish_subscribe::<Part>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(4)
        .max_publishers(parties)
        .max_subscribers(parties)
        .open_or_create()?;
    let subscriber = service.subscriber_builder().create()?;
    let publisher = service
        .publisher_builder()
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?;
    while service.dynamic_config().number_of_publishers() < parties {
        yield_now();
    }
    // Of this round and of the next one, of which there may be parts already.
    let mut cells = [vec![0; all], vec![0; all]];
    let mut here = [0; 2];
    let mut mine = std::array::from_fn(|i| (first + i) as u64);
    for round in 0..=rounds {
        publisher.loan_uninit()?.write_payload(Part { number, round, cells: mine }).send()?;
        let mut asked = Instant::now();
        while here[round % 2] < parties {
            if let Some(part) = subscriber.receive()? {
                cells[part.round % 2][part.number * CELLS..][..CELLS].copy_from_slice(&part.cells);
                here[part.round % 2] += 1;
                continue;
            }
            if asked.elapsed() > PATIENCE {
                if somebody_died() || service.dynamic_config().number_of_publishers() < parties {
                    return Err(format!("somebody died before the end of round {round}").into());
                }
                asked = Instant::now();
            }
            yield_now();
        }
        here[round % 2] = 0;
        let now = &cells[round % 2];
        mine = std::array::from_fn(|i| {
            let i = first + i;
            now[(i + all - 1) % all].wrapping_add(now[i]).wrapping_add(now[(i + 1) % all]).wrapping_add(1)
        });
    }
    let sum =
        (1..).zip(&cells[rounds % 2]).fold(0u64, |sum, (i, cell)| sum.wrapping_add(cell.wrapping_mul(i)));
    println!("rounds: process {number}: {rounds} rounds, sum {sum}");
    Ok(())
}
