// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that move amounts between accounts, by iceoryx2: a server of its own owns the accounts, and is asked.
//!
//!     transfer serve        transfer NUMBER TRANSFERS
use std::error::Error;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use iceoryx2::prelude::*;

const ACCOUNTS: usize = 16;
const EACH: u64 = 1000;
/// Who waits asks that often who has died.
const PATIENCE: Duration = Duration::from_millis(100);

/// From an account to itself: nothing is moved.
#[derive(Debug, Clone, Copy, ZeroCopySend)]
#[repr(C)]
struct Transfer {
    from: usize,
    to: usize,
    amount: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    set_log_level(LogLevel::Fatal);
    let arguments: Vec<String> = std::env::args().collect();
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    // The answer is the total.
    let service = node
        .service_builder(&"compare/transfer".try_into()?)
        .request_response::<Transfer, u64>()
        .open_or_create()?;
    let people = || service.dynamic_config();
    let mut asked = Instant::now();
    if arguments[1] == "serve" {
        let server = service.server_builder().create()?;
        let mut balance = [EACH; ACCOUNTS];
        let mut served = false;
        while !served || people().number_of_clients() > 0 {
            if let Some(request) = server.receive()? {
                let Transfer { from, to, amount } = *request.payload();
                if from >= ACCOUNTS || to >= ACCOUNTS {
                    continue;
                }
                let amount = amount.min(balance[from]);
                balance[from] -= amount;
                balance[to] += amount;
                // Who has asked may be dead.
                let _ = request.send_copy(balance.iter().sum());
                served = true;
                continue;
            }
            if asked.elapsed() > PATIENCE {
                node.try_cleanup_dead_nodes();
                asked = Instant::now();
            }
            yield_now();
        }
        println!("transfer: served, total {}", balance.iter().sum::<u64>());
        return Ok(());
    }
    let (number, transfers): (u64, u64) = (arguments[1].parse()?, arguments[2].parse()?);
    let client = service.client_builder().create()?;
    while people().number_of_servers() == 0 {
        yield_now();
    }
    let mut ask = |transfer| -> Result<u64, Box<dyn Error>> {
        let pending = client.send_copy(transfer)?;
        loop {
            if let Some(total) = pending.receive()? {
                return Ok(*total);
            }
            if asked.elapsed() > PATIENCE {
                node.try_cleanup_dead_nodes();
                if people().number_of_servers() == 0 {
                    return Err("the server has died".into());
                }
                asked = Instant::now();
            }
            yield_now();
        }
    };
    let mut seed = number + 1;
    let mut random = |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..transfers {
        ask(Transfer { from: random(16) as usize, to: random(16) as usize, amount: random(10) })?;
    }
    let total = ask(Transfer { from: 0, to: 0, amount: 0 })?;
    println!("transfer: process {number}: {transfers} transfers, total {total}");
    Ok(())
}
