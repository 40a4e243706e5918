//! `unisono simulate`: predicts the time of every algorithm of a collective on a given fabric.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use clap::builder::NonEmptyStringValueParser;
use unisono::dtype::Dtype;
use unisono_schedule::{
    Collective,
    algorithm::{Algorithm, Plan},
    cost::Fabric,
    price::Effort,
    select::Choice,
};

use super::{About, Case, Priced, Result, describe, fastest, fit, goal, sizes, why_not_the_fastest};
use crate::{
    bench,
    chart::{self, Panel, PanelLine, schedule},
    progress::Bar,
    words,
};

/// With more ranks than this, less is simulated, because many ranks take long.
const MANY: usize = 2000;

/// A prediction that takes longer than this shows its progress on a terminal; and the time between two updates.
const AFTER: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(200);
/// Without a terminal, a prediction that takes longer than this prints one line: shorter ones are not worth a line.
const LONG: Duration = Duration::from_secs(5);

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  unisono simulate all_reduce --ranks 1000 --bytes 16M --fabric ndr400
  unisono simulate broadcast --ranks 64 --bytes 1G --fabric hdr --algorithm ring --chunk 1M --lanes 4
  unisono simulate all_reduce --ranks 8 --bytes 1M --fabric tcp --ranks-per-host 8 --cores 2
  unisono simulate all_reduce --hosts 2 --ranks-per-host 4 --bytes 16M --fabric tcp-1g
  unisono simulate all_reduce --ranks 8 -b 8 -e 16M -f 8 --fabric hdr              several sizes, as a table
  unisono simulate all_gather --ranks 256 --bytes 1M --fabric efa --plot all_gather.svg
  unisono simulate all_reduce --ranks 8 --bytes 1M --measure --provider tcp        fitted to this machine";

/// Predicts the time of every algorithm for a collective, on any fabric, also one that you do not have.
///
/// A cost model (docs/cost.md) runs the schedules that the library would execute: those of all ranks or, if all ranks do the
/// same, that of one. Elements are f32.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Simulate {
    #[command(flatten)]
    about: About,
    /// The smallest size in bytes, for a table of several sizes, with -e or -f [default: 8]
    #[arg(short = 'b', long, value_name = "BYTES", conflicts_with_all = ["bytes", "goal", "draw"], value_parser = unisono::config::parse_size)]
    min_bytes: Option<usize>,
    /// The largest size in bytes, for a table of several sizes [default: 64M]
    #[arg(short = 'e', long, value_name = "BYTES", conflicts_with_all = ["bytes", "goal", "draw"], value_parser = unisono::config::parse_size)]
    max_bytes: Option<usize>,
    /// The factor from one size to the next [default: 8]
    #[arg(short = 'f', long, value_name = "N", conflicts_with_all = ["bytes", "goal", "draw"], value_parser = clap::value_parser!(u32).range(2..))]
    factor: Option<u32>,
    /// The fabric: shm, ndr400, hdr, efa, tcp, tcp-1g, tcp-10g, tcp-25g, tcp-100g
    #[arg(long, value_name = "NAME", value_parser = super::parse_fabric, required_unless_present = "measure")]
    fabric: Option<Fabric>,
    /// Instead of --fabric, use this machine with all ranks on it, as short runs measure it, which take some seconds
    #[arg(long, conflicts_with = "fabric")]
    measure: bool,
    /// The provider to measure
    #[arg(long, value_name = "NAME", conflicts_with = "fabric", value_parser = NonEmptyStringValueParser::new())]
    provider: Option<String>,
    /// Predict only this algorithm
    #[arg(long, value_name = "NAME", value_parser = super::parse_algorithm)]
    algorithm: Option<&'static Algorithm>,
    /// The largest message in bytes [default: the library's choice]
    #[arg(long, value_name = "BYTES", value_parser = super::parse_chunk)]
    chunk: Option<usize>,
    /// The number of lanes [default: the library's choice]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    lanes: Option<u32>,
    /// Also draw time against size, from 8 B to 1 GiB or as -b and -e say, to this file (SVG, or PNG by its name)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also write the schedules of all ranks to this folder, a file for each algorithm, as GOAL: for LogGOPSim and other simulators
    #[arg(long, value_name = "FOLDER")]
    goal: Option<PathBuf>,
    /// Also draw the schedules of all ranks to this folder, COLLECTIVE-ALGORITHM.svg for each algorithm, of at most 8 ranks and 16 elements
    #[arg(long, value_name = "FOLDER")]
    draw: Option<PathBuf>,
}

impl Simulate {
    pub(crate) fn run(self) -> Result<()> {
        let case = Case::new(self.about.collective, 1, self.about.bytes, Dtype::F32);
        if let Some(algorithm) = self.algorithm.filter(|it| !it.supports(self.about.collective)) {
            let able: Vec<_> = case.plans().map(|(algorithm, _)| algorithm.name).collect();
            let (name, collective) = (algorithm.name, self.about.collective.name());
            return Err(format!("--algorithm {name}: {collective} can be done by {}", able.join(", ")).into());
        }
        let sizes = self.sizes()?;
        if self.about.collective == Collective::Barrier {
            let of_sizes = [("-b, -e and -f", sizes.is_some()), ("--plot", self.plot.is_some())];
            if let Some((option, _)) = of_sizes.iter().find(|(_, given)| *given) {
                return Err(format!("{option}: a barrier has no size").into());
            }
        }
        let fabric = match self.fabric {
            Some(fabric) => fabric,
            None => fit::fabric(self.provider.as_deref())?,
        };
        let (ranks, fabric) = self.about.hosts(&fabric)?;
        let of = |bytes| Case::new(self.about.collective, ranks, bytes, Dtype::F32).on(&fabric);
        if self.measure {
            fit::print(&fabric)?;
        }
        let effort = if ranks > MANY { Effort::QUICK } else { Effort::EXACT };
        let mut out = io::stdout().lock();
        let mut cells;
        if let Some(sizes) = sizes {
            cells = self.cells(&super::distinct(sizes, of), effort);
            sizes::table(&mut out, &cells)?;
        } else {
            cells = self.cells(&[of(self.about.bytes)], effort);
            self.one(&mut out, &cells[0])?;
            if self.plot.is_some() {
                // Fewer sizes, because many ranks take long.
                let factor = if ranks > MANY { 8 } else { 2 };
                cells = self.cells(&super::distinct(bench::sweep(8, 1 << 30, factor), of), Effort::QUICK);
            }
        }
        match &self.plot {
            Some(file) => draw(file, &cells),
            None => Ok(()),
        }
    }

    /// Prints all about one size, and writes its schedules.
    fn one(&self, out: &mut impl Write, (case, priced): &(Case, Vec<Priced>)) -> Result<()> {
        table(out, case, priced)?;
        self.hint(out, case, priced)?;
        if let Some(folder) = &self.goal {
            let save = |it: &Priced| goal::save(&folder.join(it.name()).with_extension("goal"), case, it);
            let saved = fs::create_dir_all(folder).and_then(|()| priced.iter().try_for_each(save));
            saved.map_err(|error| format!("--goal {}: {error}", folder.display()))?;
        }
        if let Some(folder) = &self.draw {
            let draw = |it: &Priced| -> Result<()> {
                let picture = schedule::picture(it.name(), it.plan, &case.job(it.plan, &it.choice))?;
                Ok(fs::write(folder.join(format!("{}-{}.svg", case.collective.name(), it.name())), picture)?)
            };
            let drawn = fs::create_dir_all(folder).map_err(Into::into);
            let drawn = drawn.and_then(|()| priced.iter().try_for_each(draw));
            drawn.map_err(|error| format!("--draw {}: {error}", folder.display()))?;
        }
        Ok(())
    }

    /// The sizes of a table, where several are wanted.
    fn sizes(&self) -> Result<Option<Vec<usize>>> {
        if (self.min_bytes, self.max_bytes, self.factor) == (None, None, None) {
            return Ok(None);
        }
        let (least, most) = (self.min_bytes.unwrap_or(8), self.max_bytes.unwrap_or(64 << 20));
        bench::check_sizes(least, most)?;
        Ok(Some(bench::sweep(least, most, self.factor.unwrap_or(8))))
    }

    /// Prints what the library chooses, why that is not the fastest, and the command that shows more.
    fn hint(&self, out: &mut impl Write, case: &Case, priced: &[Priced]) -> io::Result<()> {
        let Some(choice) = case.chosen() else { return Ok(()) };
        // Steps that are not those of the library do not show why.
        let as_chosen = self.algorithm.is_none() && self.chunk.is_none() && self.lanes.is_none();
        let why = why_not_the_fastest(case, choice.algorithm, priced).filter(|_| as_chosen);
        write!(out, "The library takes {}", why.as_deref().unwrap_or(choice.algorithm.name))?;
        // A measured fabric has no name to pass to `explain`.
        if self.fabric.is_some() {
            let (Case { ranks, fabric, .. }, About { collective, bytes, .. }) = (case, &self.about);
            let (each, cores) = (fabric.ranks_per_host, fabric.cores);
            let hosts = format!("--ranks {ranks} --ranks-per-host {each} --cores {cores}");
            let (collective, fabric) = (collective.name(), fabric.name);
            let before = if why.is_some() { "\nIn full: " } else { ": " };
            write!(out, "{before}unisono explain {collective} {hosts} --bytes {bytes} --fabric {fabric}")?;
        }
        writeln!(out)
    }

    /// The plans and choices that are priced: as the library makes them, unless the options say otherwise.
    fn choices(&self, case: &Case) -> Vec<(Case, &'static Plan, Choice)> {
        let wanted = |algorithm: &Algorithm| self.algorithm.is_none_or(|only| only.code == algorithm.code);
        let choice = |(algorithm, plan)| {
            let usual = case.choice(algorithm);
            let chunk_bytes = self.chunk.unwrap_or(usual.chunk_bytes);
            let lanes = self.lanes.map_or(usual.lanes, |lanes| lanes as usize);
            (*case, plan, Choice { chunk_bytes, lanes, ..usual })
        };
        case.plans().filter(|(algorithm, _)| wanted(algorithm)).map(choice).collect()
    }

    /// The prices of all algorithms in their order, for each case, on all cores.
    fn cells(&self, cases: &[Case], effort: Effort) -> Vec<(Case, Vec<Priced>)> {
        let jobs: Vec<_> = cases.iter().flat_map(|case| self.choices(case)).collect();
        let watch = Mutex::new(Watch::new(jobs.len(), cases[0].ranks));
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel();
        let work = || {
            while let index = next.fetch_add(1, Ordering::Relaxed)
                && let Some(&(case, plan, choice)) = jobs.get(index)
            {
                drop(sender.send((index, Priced::of(&case, plan, choice, effort))));
                if let Ok(mut watch) = watch.lock() {
                    watch.done();
                }
            }
        };
        thread::scope(|scope| {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            for _ in 1..cores.min(jobs.len()) {
                // Where no thread can be started, the others do its part.
                drop(thread::Builder::new().spawn_scoped(scope, work));
            }
            work();
        });
        drop(sender);
        let mut priced: Vec<_> = receiver.into_iter().collect();
        priced.sort_by_key(|(index, _)| *index);
        let mut priced = priced.into_iter().map(|(_, priced)| priced);
        // Each case has the same algorithms.
        let each = jobs.len() / cases.len();
        cases.iter().map(|case| (*case, priced.by_ref().take(each).collect())).collect()
    }
}

/// Draws the times of all algorithms in these cases.
fn draw(file: &Path, cells: &[(Case, Vec<Priced>)]) -> Result<()> {
    let (Case { collective, ranks, fabric, .. }, algorithms) = &cells[0];
    let line = |(index, it): (usize, &Priced)| {
        let point = |(case, priced): &(Case, Vec<Priced>)| Some((case.whole(), priced[index].seconds()?));
        PanelLine { name: it.name().to_owned(), points: cells.iter().filter_map(point).collect() }
    };
    let lines = algorithms.iter().enumerate().map(line).filter(|line| !line.points.is_empty()).collect();
    let points = cells.iter().map(|(case, _)| (case.whole(), case.bound())).collect();
    let bound = Some(PanelLine { name: "lower bound".to_owned(), points });
    let title = format!("{} among {}, {}", collective.name(), words::some(*ranks, "rank"), fabric.name);
    chart::draw(file, &[Panel { title: &title, values: "time", label: words::time, lines, bound }])
}

/// Shows how far a prediction is: a bar on a terminal, and one line elsewhere.
struct Watch {
    bar: Bar,
    begun: Instant,
    /// The number of prices that are there, and of all.
    done: usize,
    all: usize,
    ranks: usize,
    /// True if the line has been printed, or is not wanted.
    said: bool,
}

impl Watch {
    fn new(all: usize, ranks: usize) -> Self {
        let bar = Bar::new("{wide_bar} {pos} of {len} prices, {elapsed}", true, AFTER, EVERY);
        Self { bar, begun: Instant::now(), done: 0, all, ranks, said: io::stderr().is_terminal() }
    }

    fn done(&mut self) {
        self.done += 1;
        self.bar.draw((self.done as u64, self.all as u64), String::new);
        if let Some(line) = self.line(self.begun.elapsed()) {
            crate::complain!("{line}");
        }
        if self.done == self.all {
            self.bar.end();
        }
    }

    /// The line that is due after this time.
    fn line(&mut self, elapsed: Duration) -> Option<String> {
        let Self { done, all, ranks, .. } = *self;
        if self.said || elapsed <= LONG || done >= all {
            return None;
        }
        self.said = true;
        let ranks = words::some(ranks, "rank");
        Some(format!("unisono simulate: {all} schedules of {ranks} are simulated; {done} are done"))
    }
}

fn table(out: &mut impl Write, case: &Case, priced: &[Priced]) -> io::Result<()> {
    let bound = case.bound();
    writeln!(out, "{}", case.describe())?;
    writeln!(out, "{}", describe(&case.fabric, case.ranks))?;
    writeln!(out, "no algorithm can take less than {}\n", words::time(bound))?;
    writeln!(
        out,
        "  {:<19} {:>9} {:>5} {:>10} {:>8} {:>12} {:>12} {:>10}",
        "algorithm", "chunk", "lanes", "time", "x bound", "messages", "sent", "memory"
    )?;
    let best = fastest(priced);
    for (index, it) in priced.iter().enumerate() {
        let mark = if best == Some(index) { '*' } else { ' ' };
        let (name, chunk, lanes) = (it.name(), words::size(it.choice.chunk_bytes), it.choice.lanes);
        match &it.cost {
            Ok(cost) => {
                let ratio = if bound > 0.0 { format!("{:.2}", cost.seconds / bound) } else { "-".to_owned() };
                writeln!(
                    out,
                    "{mark} {name:<19} {chunk:>9} {lanes:>5} {:>10} {ratio:>8} {:>12} {:>12} {:>10}",
                    it.time(),
                    cost.messages.most,
                    words::size64(cost.bytes.most),
                    words::size(cost.memory)
                )?;
            }
            Err(why) => writeln!(out, "{mark} {name:<19} {chunk:>9} {lanes:>5} {:>10}  {why}", it.time())?,
        }
    }
    writeln!(
        out,
        "\n* the fastest; messages, bytes sent and registered memory are those of the rank with the most"
    )?;
    if priced.iter().any(|it| it.cost.is_ok_and(|cost| cost.extrapolated)) {
        writeln!(out, "~ extrapolated from smaller sizes")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(said: bool) -> Watch {
        Watch { said, ..Watch::new(8, 10_000) }
    }

    #[test]
    fn a_long_prediction_says_once_how_far_it_is() {
        let mut watch = watch(false);
        assert_eq!(watch.line(LONG), None, "too soon");
        watch.done();
        let message = watch.line(LONG + EVERY).unwrap();
        assert_eq!(message, "unisono simulate: 8 schedules of 10000 ranks are simulated; 1 are done");
        watch.done();
        assert_eq!(watch.line(3 * LONG), None, "it has been said");
    }

    #[test]
    fn what_has_ended_or_has_a_bar_says_nothing() {
        let mut ended = watch(false);
        (0..8).for_each(|_| ended.done());
        assert_eq!(ended.line(2 * LONG), None);
        assert_eq!(watch(true).line(2 * LONG), None, "on a terminal");
    }
}
