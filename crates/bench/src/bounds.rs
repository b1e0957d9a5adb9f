//! All bounds in one file, docs/figures/promises.json. By it `scripts/figures` judges the records of the documentation, which keep the
//! bounds of their own day.

use std::path::Path;

use isthmus_run::mpi::Flavour;
use serde::Serialize;

use crate::promise::{Promise, Side};
use crate::rank::What;
use crate::subject::Modes;
use crate::{fluid, modes, objects, onecopy, peers};

/// A promise, and how to find its figure among the records of `bench mpi` where that takes it, too.
#[derive(Debug, PartialEq, Serialize)]
struct Bound {
    what: String,
    /// Of which MPI, in whatever version.
    mpi: Option<&'static str>,
    side: Side,
    required: f64,
    aim: f64,
    of: Option<Of>,
}

/// The keys of a record.
#[derive(Debug, PartialEq, Serialize)]
struct Of {
    benchmark: &'static str,
    bytes: u64,
    depth: Option<u32>,
    subject: &'static str,
    peer: &'static str,
    vms: u32,
}

fn bound(what: String, mpi: Option<&'static str>, promise: Promise, of: Option<Of>) -> Bound {
    let Promise { side, required, aim } = promise;
    Bound { what, mpi, side, required, aim, of }
}

fn of_messages(it: peers::Wanted, mpi: Option<&'static str>) -> Bound {
    bound(it.what, mpi, it.promise, None)
}

fn of_mpi(it: peers::Wanted, mpi: Option<&'static str>, vms: u32) -> Bound {
    let peers::Wanted { what, promise, benchmark, bytes, depth, peer, subject } = it;
    let of = peer.map(|peer| Of { benchmark, bytes, depth, subject, peer, vms });
    bound(what, mpi, promise, of)
}

fn all() -> Vec<Bound> {
    let mut all = Vec::new();
    let (lanes, memory) = peers::promises_of_none();
    all.extend(lanes.into_iter().map(|it| of_messages(it, None)));
    let flavours = [Flavour::OpenMpi, Flavour::OpenMpi4, Flavour::Mpich, Flavour::Intel];
    for flavour in flavours {
        let mpi = Some(flavour.title());
        all.extend(peers::promises_of(flavour).into_iter().map(|(it, vms)| of_mpi(it, mpi, vms)));
        // The first MPI of the command line.
        all.extend(memory.iter().map(|(what, promise)| bound(what.clone(), mpi, *promise, None)));
        for vms in [0, 2] {
            let of_vms = onecopy::wanted(vms, flavour).into_iter();
            all.extend(of_vms.map(|(_, it)| of_messages(it, mpi)));
        }
        for modes in [Modes::Isolated, Modes::Dax] {
            all.extend(modes::wanted(modes).into_iter().map(|it| of_messages(it, mpi)));
        }
    }
    for modes in [Modes::Isolated, Modes::Dax] {
        let boots = modes.boots(false).iter();
        all.extend(boots.map(|(vms, _)| bound(modes::boot_promise(modes, *vms), None, modes::BOOT, None)));
    }
    for what in [What::Barrier, What::Counter, What::Ivc, What::Wait, What::Sysv, What::Doorbell] {
        for it in objects::wanted(what) {
            let place = objects::Place { processes: it.processes, vms: it.vms };
            all.push(bound(format!("{}, {}", it.what, place.name()), None, it.promise, None));
        }
    }
    all.push(bound(fluid::promise_of(65_536), None, fluid::PROMISE, None));
    // Two versions of one MPI have the same promises.
    let mut once: Vec<Bound> = Vec::new();
    for it in all {
        if !once.contains(&it) {
            once.push(it);
        }
    }
    once
}

#[test]
fn the_documentation_has_the_bounds_of_today_and_one_for_each_promise() {
    let all = all();
    for (at, it) in all.iter().enumerate() {
        let same = |other: &&Bound| (&other.what, other.mpi) == (&it.what, it.mpi);
        // Natively and in VMs one may be promised under one name.
        let bounds = |it: &Bound| (it.side, it.required, it.aim);
        assert!(all[..at].iter().filter(same).all(|other| bounds(other) == bounds(it)), "two bounds: {it:?}");
    }
    let lines: Vec<String> = all.iter().map(|it| serde_json::to_string(it).unwrap()).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures/promises.json");
    if std::env::var_os("ISTHMUS_WRITE_PROMISES").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == text,
        "docs/figures/promises.json has other bounds than the program: ISTHMUS_WRITE_PROMISES=1 cargo test -p isthmus-bench \
         bounds writes it, and scripts/figures write the tables"
    );
}
