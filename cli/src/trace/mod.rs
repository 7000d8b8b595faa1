//! `chainscope trace`: events of tracepoints, as lines, as JSON, or on the screen.

mod ending;
mod info;
mod lines;
mod live;
mod packets;
mod recording;
mod screen;

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use anyhow::Context as _;
use chainscope_trace::{
    Selection, Source,
    view::{Any, Blocks, Coins, Connections, Flushes, Format, Mempool, Monitor, P2p, Raw, Relay, Utxos, View},
};
use clap::Args;

use self::{
    ending::Ending,
    packets::Packets,
    recording::{Recorder, Recording},
    screen::Screen,
};
use crate::{
    args::{
        Format as OutputFormat, Period, TraceArgs,
        trace::{Options, RawArgs, ViewArgs, What},
    },
    terminal,
};

/// How long what was captured before a signal is still shown.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) fn run(args: TraceArgs) -> anyhow::Result<()> {
    let TraceArgs { what, options } = args;
    match what {
        What::Live(view) => {
            let json = options.is_json()?;
            let selection = selection(&options, &Period { since: None, until: None });
            let mut form = Form::new(&view, json)?;
            let live = view.source();
            let ending = Ending::by_signal(DRAIN)?;
            let mut source = live::attach(live, form.view(), matches!(view, ViewArgs::Raw(_)))?;
            let shown = match live.record.as_deref() {
                None => form.show(&mut source, selection, json, &ending),
                Some(path) => {
                    let mut recorder = Recorder::new(&mut source, path)?;
                    let shown = form.show(&mut recorder, selection, json, &ending);
                    // Also after an error, such as a closed pipe: the recording is complete.
                    recorder.finish()?;
                    shown
                }
            };
            // Those that a screen would have hidden.
            live::show_notices(&mut source);
            shown
        }
        What::Replay(replay) => {
            let json = options.is_json()?;
            let selection = selection(&options, &replay.period);
            let mut recording = Recording::open(&replay.file)?;
            let form = Form::new(&replay.view, json)?;
            form.show(&mut recording, selection, json, &Ending::by_signal(Duration::ZERO)?)?;
            recording.check_ending();
            Ok(())
        }
        What::Info { file } => info::run(&file, options.format() != OutputFormat::Table),
        What::Copy(copy) => {
            let selection = Selection { tracepoints: copy.tracepoint, ..selection(&options, &copy.period) };
            recording::copy(&copy.from, &copy.to, &selection)
        }
    }
}

fn selection(options: &Options, period: &Period) -> Selection {
    Selection {
        tracepoints: Vec::new(),
        conditions: options.filter.clone(),
        since_ns: period.since.map(nanoseconds),
        until_ns: period.until.map(nanoseconds),
    }
}

/// Nanoseconds of seconds or milliseconds since 1970: as in the API, numbers below 10¹¹ are seconds.
fn nanoseconds(time: u64) -> i64 {
    let scale = if time < 100_000_000_000 { 1_000_000_000 } else { 1_000_000 };
    i64::try_from(time.saturating_mul(scale)).unwrap_or(i64::MAX)
}

/// How a view is shown.
enum Form {
    /// As lines or JSON.
    Lines(Box<dyn View>),
    /// On the whole terminal.
    Screen(Box<dyn Screen>),
    /// As packets in a file.
    Packets(Packets),
}

impl Form {
    fn new<S: Args>(args: &ViewArgs<S>, json: bool) -> anyhow::Result<Self> {
        let is_terminal = !json && terminal::is_interactive() && io::stdin().is_terminal();
        Ok(match args {
            ViewArgs::P2pMonitor(_) if is_terminal => Self::Screen(Box::new(screen::Peers::default())),
            ViewArgs::Mempool(_) if is_terminal => Self::Screen(Box::new(screen::Log::default())),
            ViewArgs::Raw(RawArgs { pcapng: Some(path), .. }) => Self::Packets(Packets::new(path)),
            args => Self::Lines(view_of(args)?),
        })
    }

    fn view(&mut self) -> &dyn View {
        match self {
            Self::Lines(view) => &**view,
            Self::Screen(screen) => screen.view(),
            Self::Packets(packets) => packets,
        }
    }

    /// Shows a source.
    fn show(self, source: &mut dyn Source, selection: Selection, json: bool, ending: &Ending) -> anyhow::Result<()> {
        match self {
            Self::Lines(mut view) => lines::run(source, view.as_mut(), selection, json, ending),
            Self::Screen(mut screen) => screen::run(source, &selection, screen.as_mut(), ending),
            Self::Packets(mut packets) => {
                lines::run(source, &mut packets, selection, false, ending)?;
                packets.end()
            }
        }
    }
}

fn view_of<S: Args>(args: &ViewArgs<S>) -> anyhow::Result<Box<dyn View>> {
    Ok(match args {
        ViewArgs::P2p(args) => Box::new(P2p::new(args.decode)),
        ViewArgs::P2pMonitor(args) => Box::new(Monitor::new(false, args.decode)),
        ViewArgs::Raw(args) => Box::new(Raw::new(args.messages.decode)),
        ViewArgs::Blocks(args) => {
            let (first, last) = (i64::from(args.start), i64::from(args.end));
            let blocks = Blocks::new(first, last, args.threshold_ms, args.unit.map(Into::into));
            Box::new(blocks.map_err(anyhow::Error::msg)?)
        }
        ViewArgs::Utxocache(_) => Box::new(Flushes),
        ViewArgs::Utxos(_) => Box::new(Utxos),
        ViewArgs::Mempool(_) => Box::new(Mempool::new(0)),
        ViewArgs::Coins(_) => Box::new(Coins::default()),
        ViewArgs::Connections(_) => Box::new(Connections),
        ViewArgs::Relay(_) => Box::new(Relay::default()),
        ViewArgs::Any(args) => {
            let format = args.format.as_deref().map(Format::parse).transpose();
            let format = format.map_err(anyhow::Error::msg).context("--format")?;
            Box::new(Any::new(vec![args.tracepoints.clone()], format))
        }
    })
}
