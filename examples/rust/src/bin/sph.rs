//! A dam breaks: a fluid of particles in a box, computed by as many processes as there are, on the host or in VMs.
//!
//! ```sh
//! isthmus run --vms 2 -n 2 -- target/release/sph --particles 8192 --steps 1000
//! ```
//!
//! The method is smoothed-particle hydrodynamics as M. Müller, D. Charypar and M. Gross have it in "Particle-Based Fluid
//! Simulation for Interactive Applications" (2003): each particle carries a piece of the fluid, and what the fluid is like at a
//! place is a weighted sum over the particles within a radius `h` of it. The box is divided into cells as wide as `h`, and a
//! table says which particles are in each, so that only nine cells are searched. All units are those of the SI.
//!
//! The owner computes: each process moves some particles, the same ones all the time. It has a copy of all others, and a segment
//! is where copies are exchanged. A step has two phases with a barrier behind each; what is published in one is not read before
//! the next, and not published again before all have read it:
//!
//! | phase | computes for its own | publishes |
//! |---|---|---|
//! | densities | how many are near | density and pressure |
//! | movement | forces from pressures around, then velocity and position | these three |
//!
//! The result is the same to the last bit, however many processes compute, and the same as that of `examples/c/sph.c`, which
//! works in the segment itself and draws pictures: particles of a cell are listed by number, so all sums have one order, and
//! they use nothing but `+ - * /` and the square root, which are rounded alike everywhere.
#![forbid(unsafe_code)]

use std::env;
use std::f64::consts::PI;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use isthmus::{Attachment, Kind, Parameters, Participant, Segment, Value, Waiting};

const BOX_WIDTH: f64 = 1.5; // m
const BOX_HEIGHT: f64 = 1.0; // m; the box is open above, so this is only what the table covers
const COLUMN_WIDTH: f64 = 0.5; // m; the water, before the dam breaks
const COLUMN_HEIGHT: f64 = 0.8; // m
const GRAVITY: f64 = 9.81; // m/s^2
const REST_DENSITY: f64 = 1000.0; // kg/m^3
const SOUND: f64 = 10.0; // m/s; slower than in real water, which would need tiny steps

/// Breaks a dam.
#[derive(Parser)]
struct Options {
    /// How many particles.
    #[arg(long, default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    particles: u32,
    /// How many steps.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// How many processes compute together; as many as the launcher has started, else 1.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: Option<u32>,
}

/// What moves of a particle.
#[derive(Debug, Clone, Copy, Default)]
struct Motion {
    position: [f64; 2], // m, from the lower left corner
    velocity: [f64; 2], // m/s
    force: [f64; 2],    // N/m^3
}

/// What the fluid is like where a particle is.
#[derive(Debug, Clone, Copy, Default)]
struct Fluid {
    density: f64,  // kg/m^3
    pressure: f64, // Pa above that of the air
}

/// The whole part of a number; 0 if it is negative.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // that is what `as` gives for all others
fn whole(number: f64) -> usize {
    number as usize
}

impl Value for Motion {
    const BYTES: usize = <[[f64; 2]; 3]>::BYTES;

    fn put(self, bytes: &mut [u8]) {
        [self.position, self.velocity, self.force].put(bytes);
    }

    fn take(bytes: &[u8]) -> Self {
        let [position, velocity, force] = Value::take(bytes);
        Self { position, velocity, force }
    }
}

impl Value for Fluid {
    const BYTES: usize = <[f64; 2]>::BYTES;

    fn put(self, bytes: &mut [u8]) {
        [self.density, self.pressure].put(bytes);
    }

    fn take(bytes: &[u8]) -> Self {
        let [density, pressure] = Value::take(bytes);
        Self { density, pressure }
    }
}

/// All that follows from the number of particles.
struct Plan {
    spacing: f64,   // m between two particles at rest
    h: f64,         // m, the radius of the kernels
    mass: f64,      // kg of a particle
    tick: f64,      // s of a step: sound comes no farther than a fraction of the radius
    viscosity: f64, // Pa s; more than real water's, as little as keeps so coarse a fluid calm
    /// The constant factors of the three kernels of the paper, which make their integral over a plane 1.
    poly6: f64,
    spiky: f64,
    laplacian: f64,
    /// Cells of a row, and rows.
    cells: [usize; 2],
}

impl Plan {
    fn new(particles: u32) -> Self {
        let spacing = (COLUMN_WIDTH * COLUMN_HEIGHT / f64::from(particles)).sqrt();
        let h = 2.0 * spacing;
        let h2 = h * h;
        let h5 = h2 * h2 * h;
        Self {
            spacing,
            h,
            mass: REST_DENSITY * spacing * spacing,
            tick: 0.3 * h / SOUND,
            viscosity: 0.04 * REST_DENSITY * SOUND * h,
            poly6: 4.0 / (PI * h2 * h2 * h2 * h2), // W = poly6 (h^2 - r^2)^3: smooth, for densities
            spiky: 30.0 / (PI * h5),               // |grad W| = spiky (h - r)^2: pushes apart what is close
            laplacian: 40.0 / (PI * h5), // laplace W = laplacian (h - r): never negative, only brakes
            cells: [BOX_WIDTH, BOX_HEIGHT].map(|side| whole(side / h) + 1),
        }
    }

    /// Where a particle is before the dam breaks: in the column, row by row from below.
    fn start(&self, number: usize) -> Motion {
        let columns = whole(COLUMN_WIDTH / self.spacing).max(1);
        let position = [number % columns, number / columns].map(|at| (at as f64 + 0.5) * self.spacing);
        Motion { position, ..Motion::default() }
    }

    /// The cell that a place is in; what is outside is in one, too.
    fn cell(&self, position: [f64; 2]) -> [usize; 2] {
        [0, 1].map(|axis| whole(position[axis] / self.h).min(self.cells[axis] - 1))
    }

    /// How a wall pushes what is so far away from it, in m/s^2: a short spring, about as stiff as the fluid.
    fn wall(&self, distance: f64) -> f64 {
        let reach = self.h / 4.0;
        if distance < reach { SOUND * SOUND / self.h * (1.0 - distance / reach) } else { 0.0 }
    }
}

/// Which particles are in each cell, by number.
struct Table {
    /// For each cell, where its particles begin in `sorted`; and where the last one's end.
    first: Vec<usize>,
    sorted: Vec<usize>,
}

impl Table {
    fn new(plan: &Plan, motions: &[Motion]) -> Self {
        let [across, rows] = plan.cells;
        let cell_of = |motion: &Motion| {
            let [x, y] = plan.cell(motion.position);
            y * across + x
        };
        let mut first = vec![0; across * rows + 1];
        for motion in motions {
            first[cell_of(motion) + 1] += 1;
        }
        for cell in 1..first.len() {
            first[cell] += first[cell - 1];
        }
        let (mut next, mut sorted) = (first.clone(), vec![0; motions.len()]);
        for (number, motion) in motions.iter().enumerate() {
            let place = &mut next[cell_of(motion)];
            sorted[*place] = number;
            *place += 1;
        }
        Self { first, sorted }
    }

    /// The particles in the nine cells around a place, row by row from below.
    fn around(&self, plan: &Plan, position: [f64; 2]) -> impl Iterator<Item = usize> {
        let ([x, y], [across, rows]) = (plan.cell(position), plan.cells);
        let (left, right) = (x.saturating_sub(1), (x + 1).min(across - 1));
        (y.saturating_sub(1)..=(y + 1).min(rows - 1)).flat_map(move |row| {
            self.sorted[self.first[row * across + left]..self.first[row * across + right + 1]].iter().copied()
        })
    }
}

/// Where processes exchange what each has computed.
struct Meeting {
    segment: Segment,
    seat: Participant,
    waited: Duration,
}

impl Meeting {
    /// Publishes this process's part of `all`, which begins at `offset` of the segment, and reads the other parts once all have
    /// published theirs.
    fn exchange<T: Value>(&mut self, offset: usize, all: &mut [T], mine: &Range<usize>) -> Result<()> {
        let place = |number: usize| (offset + number * T::BYTES) as u64;
        self.segment.set_all(place(mine.start), &all[mine.clone()])?;
        let begin = Instant::now();
        self.seat.wait()?;
        self.waited += begin.elapsed();
        self.segment.get_all(place(0), &mut all[..mine.start])?;
        self.segment.get_all(place(mine.end), &mut all[mine.end..])?;
        Ok(())
    }
}

/// What one process knows of the run.
struct World {
    plan: Plan,
    motions: Vec<Motion>,
    fluids: Vec<Fluid>,
    mine: Range<usize>,
    meeting: Meeting,
}

impl World {
    fn density(&self, table: &Table, number: usize) -> Fluid {
        let (plan, own) = (&self.plan, &self.motions[number]);
        let mut sum = 0.0;
        for other in table.around(plan, own.position) {
            let [dx, dy] = difference(own.position, self.motions[other].position);
            let left = plan.h * plan.h - dx * dx - dy * dy;
            if left > 0.0 {
                sum += left * left * left;
            }
        }
        let density = plan.mass * plan.poly6 * sum;
        // It never pulls, or drops would shrink to points.
        Fluid { density, pressure: (SOUND * SOUND * (density - REST_DENSITY)).max(0.0) }
    }

    /// From high pressure to low, along with the neighbours, and away from the walls.
    fn force(&self, table: &Table, number: usize) -> [f64; 2] {
        let (plan, own, fluid) = (&self.plan, &self.motions[number], self.fluids[number]);
        let mut force = [0.0, 0.0];
        for other in table.around(plan, own.position) {
            let (motion, near) = (&self.motions[other], self.fluids[other]);
            let apart = difference(own.position, motion.position);
            let r2 = apart[0] * apart[0] + apart[1] * apart[1];
            // Particles in the same place have no direction away from each other; a particle is also its own neighbour.
            if r2 >= plan.h * plan.h || r2 == 0.0 {
                continue;
            }
            let (r, volume) = (r2.sqrt(), plan.mass / near.density);
            let left = plan.h - r;
            let push = volume * (fluid.pressure + near.pressure) / 2.0 * plan.spiky * left * left / r;
            let drag = volume * plan.viscosity * plan.laplacian * left;
            let faster = difference(motion.velocity, own.velocity);
            for axis in 0..2 {
                force[axis] += push * apart[axis] + drag * faster[axis];
            }
        }
        let [x, y] = own.position;
        [
            force[0] + fluid.density * (plan.wall(x) - plan.wall(BOX_WIDTH - x)),
            force[1] + fluid.density * (plan.wall(y) - GRAVITY),
        ]
    }

    /// A particle that a wall's spring does not hold stops at the wall; there is none above.
    fn moved(&self, number: usize) -> Motion {
        let (mut motion, density) = (self.motions[number], self.fluids[number].density);
        for (axis, most) in [BOX_WIDTH, f64::INFINITY].into_iter().enumerate() {
            motion.velocity[axis] += self.plan.tick * motion.force[axis] / density;
            motion.position[axis] += self.plan.tick * motion.velocity[axis];
            if motion.position[axis] < 0.0 || motion.position[axis] > most {
                motion.position[axis] = if motion.position[axis] < 0.0 { 0.0 } else { most };
                motion.velocity[axis] = 0.0;
            }
        }
        motion
    }

    /// One step: two phases.
    fn advance(&mut self) -> Result<()> {
        let table = Table::new(&self.plan, &self.motions);
        for number in self.mine.clone() {
            self.fluids[number] = self.density(&table, number);
        }
        self.meeting.exchange(self.motions.len() * Motion::BYTES, &mut self.fluids, &self.mine)?;
        for number in self.mine.clone() {
            self.motions[number].force = self.force(&table, number);
        }
        for number in self.mine.clone() {
            self.motions[number] = self.moved(number);
        }
        self.meeting.exchange(0, &mut self.motions, &self.mine)
    }

    /// All bits of all particles (FNV-1a).
    fn checksum(&self) -> u64 {
        let mut bytes = [0; Motion::BYTES + Fluid::BYTES];
        let mut sum = 0xcbf2_9ce4_8422_2325_u64;
        for (motion, fluid) in self.motions.iter().zip(&self.fluids) {
            motion.put(&mut bytes[..Motion::BYTES]);
            fluid.put(&mut bytes[Motion::BYTES..]);
            for byte in bytes {
                sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        sum
    }
}

fn difference(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}

/// How many processes the launcher has started, by the names that Open MPI, MPICH and Intel MPI give it.
fn launched() -> Option<u32> {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().find_map(|name| env::var(name).ok()?.parse().ok())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let processes = options.processes.or_else(launched).unwrap_or(1);
    let count = options.particles as usize;
    let here = Attachment::open()?;
    let bytes = count * (Motion::BYTES + Fluid::BYTES);
    let segment = here.segment("sph").ends_with_creator().or_create(bytes as u64)?;
    ensure!(segment.len() == bytes as u64, "segment sph is of another run, with other --particles");
    let meeting =
        here.named("sph").ends_with_creator().barrier(Parameters::new(processes, Waiting::Hybrid))?;
    let mut seat = meeting.participate().context("another run has all its processes")?;
    let me = seat.index() as usize;
    seat.wait()?;
    // All processes have them open, so their names are not needed any more.
    if me == 0 {
        here.unlink(Kind::Segment, "sph")?;
        here.unlink(Kind::Barrier, "sph")?;
    }

    let plan = Plan::new(options.particles);
    let motions = (0..count).map(|number| plan.start(number)).collect();
    let part = |number: usize| number * count / processes as usize;
    let (mine, fluids) = (part(me)..part(me + 1), vec![Fluid::default(); count]);
    let meeting = Meeting { segment, seat, waited: Duration::ZERO };
    let mut world = World { plan, motions, fluids, mine, meeting };
    let start = Instant::now();
    for step in 1..=options.steps {
        world.advance().with_context(|| format!("number {me} in step {step}"))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let part = 100.0 * world.meeting.waited.as_secs_f64() / seconds;
    println!("number {me} on {}: {part:.1} % of the time at barriers", here.member()?.name);
    if me == 0 {
        let Options { particles, steps, .. } = options;
        let rate = f64::from(steps) / seconds;
        println!("{particles} particles, {processes} processes: {steps} steps, {rate:.1} steps per second");
        println!("checksum {:016x}", world.checksum());
    }
    Ok(())
}
