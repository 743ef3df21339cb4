//! The live picture: rates per flow as bars and history, link use, Jain's index, events.

use std::io;
use std::os::fd::AsFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Gauge, Paragraph, Sparkline};
use ratewright_cli::clock::now_ns;

use super::live::{Live, Moment, Stage, moment};
use crate::cancel::Cancel;

const FRAME: Duration = Duration::from_millis(100);
const HISTORY: usize = 120;
const COLOURS: [Color; 8] = [
    Color::Blue,
    Color::LightRed,
    Color::Green,
    Color::Magenta,
    Color::Cyan,
    Color::Yellow,
    Color::LightBlue,
    Color::LightGreen,
];

/// Shows the picture until `stop` is set. The terminal is restored in every case: here at the end,
/// in a panic hook, and by the lab's watchdog should the lab be killed.
///
/// # Errors
/// When the terminal cannot be set up, or was closed.
pub fn show(live: &Live, cancel: &Cancel, stop: &AtomicBool) -> io::Result<()> {
    restore_on_panic();
    let mut terminal = ratatui::try_init()?;
    let mut history: Vec<u64> = Vec::new();
    let outcome = loop {
        if stop.load(Ordering::Relaxed) {
            break Ok(());
        }
        let stage = live.stage().clone();
        let (now, events) = match &stage.recording {
            Some(recording) => {
                let recording = recording.lock();
                (moment(&recording, now_ns()), recording.events.clone())
            }
            None => (Moment::default(), Vec::new()),
        };
        history.push((now.utilization * 1000.0) as u64);
        // A sliding window of the newest frames.
        let excess = history.len().saturating_sub(HISTORY);
        history.drain(..excess);
        let picture = Picture {
            live,
            stage: &stage,
            now: &now,
            events: &events,
            history: &history,
        };
        // A closed terminal fails here: the caller then goes on in lines.
        if let Err(error) = terminal.draw(|frame| picture.draw(frame)) {
            break Err(error);
        }
        match wants_to_leave() {
            Ok(true) => cancel.set(),
            Ok(false) => {}
            Err(error) => break Err(error),
        }
    };
    // A terminal that is gone needs nothing.
    let _ = ratatui::try_restore();
    outcome
}

fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let _ = ratatui::try_restore();
            before(info);
        }));
    });
}

/// Waits for a frame's time; true if the user pressed q, Escape or Ctrl-C.
fn wants_to_leave() -> io::Result<bool> {
    if !has_input()? {
        return Ok(false);
    }
    while event::poll(Duration::ZERO)? {
        let Event::Key(key) = event::read()? else {
            continue;
        };
        let control_c =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if something was typed within a frame's time. It polls the terminal itself, because
/// `event` reads from a closed one for ever.
fn has_input() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match poll(&mut terminal, FRAME.as_millis() as u16) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let seen = terminal[0].revents().unwrap_or(PollFlags::empty());
    if seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(seen.contains(PollFlags::POLLIN))
}

struct Picture<'a> {
    live: &'a Live,
    stage: &'a Stage,
    now: &'a Moment,
    events: &'a [(u64, String)],
    history: &'a [u64],
}

impl Picture<'_> {
    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, gauges, middle, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(3),
            Constraint::Min(4),
            Constraint::Length(8),
        ])
        .areas(frame.area());
        let title = Line::from(vec![
            Span::styled(
                self.live.title.clone(),
                Style::new().add_modifier(Modifier::BOLD),
            ),
            Span::raw("   q: leave"),
        ]);
        frame.render_widget(Paragraph::new(title), head);
        self.draw_gauges(frame, gauges);
        self.draw_rates(frame, middle);
        self.draw_log(frame, foot);
    }

    fn draw_gauges(&self, frame: &mut Frame<'_>, area: Rect) {
        let [link, fairness, history] = Layout::horizontal([
            Constraint::Percentage(35),
            Constraint::Percentage(25),
            Constraint::Percentage(40),
        ])
        .areas(area);
        let used = self.now.utilization.clamp(0.0, 1.0);
        frame.render_widget(
            Gauge::default()
                .block(
                    Block::new()
                        .borders(Borders::ALL)
                        .title("bottleneck in use"),
                )
                .gauge_style(Color::Blue)
                .ratio(used)
                .label(format!("{:.1} %", self.now.utilization * 100.0)),
            link,
        );
        let jain = self.now.jain;
        frame.render_widget(
            Gauge::default()
                .block(Block::new().borders(Borders::ALL).title("Jain's index"))
                .gauge_style(if jain.is_some_and(|j| j >= 0.99) {
                    Color::Green
                } else {
                    Color::Yellow
                })
                .ratio(jain.unwrap_or(0.0).clamp(0.0, 1.0))
                .label(jain.map_or("–".to_owned(), |j| format!("{j:.4}"))),
            fairness,
        );
        frame.render_widget(
            Sparkline::default()
                .block(
                    Block::new()
                        .borders(Borders::ALL)
                        .title("link use, last 12 s"),
                )
                .max(1000)
                .data(self.history),
            history,
        );
    }

    fn draw_rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let title = if self.stage.phase.is_empty() {
            "rates"
        } else {
            &self.stage.phase
        };
        let block = Block::new().borders(Borders::ALL).title(title);
        let inner = block.inner(area);
        let most = self
            .now
            .flows
            .iter()
            .map(|(_, rate)| *rate)
            .fold(1.0, f64::max);
        let width = self
            .now
            .flows
            .iter()
            .map(|(label, _)| label.chars().count())
            .max()
            .unwrap_or(0);
        // 16 cells are for the space and the rate behind the bar.
        let room = usize::from(inner.width).saturating_sub(width + 16);
        let lines: Vec<Line<'_>> = self
            .now
            .flows
            .iter()
            .enumerate()
            .map(|(i, (label, rate))| {
                let cells = ((rate / most) * room as f64).round() as usize;
                Line::from(vec![
                    Span::raw(format!("{label:>width$} ")),
                    Span::styled("█".repeat(cells), COLOURS[i % COLOURS.len()]),
                    Span::raw(format!(" {:.1} Mbit/s", rate / 1e6)),
                ])
            })
            .collect();
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn draw_log(&self, frame: &mut Frame<'_>, area: Rect) {
        let block = Block::new().borders(Borders::ALL).title("events");
        let rows = usize::from(block.inner(area).height);
        let mut all: Vec<&(u64, String)> = self.stage.log.iter().chain(self.events).collect();
        // The scenario's messages and the recording's events come from two lists.
        all.sort_by_key(|(at, _)| *at);
        let begin = all.first().map_or(0, |(at, _)| *at);
        let lines: Vec<Line<'_>> = all
            .iter()
            .skip(all.len().saturating_sub(rows))
            .map(|(at, text)| {
                Line::raw(format!(
                    "{:7.2} s  {text}",
                    at.saturating_sub(begin) as f64 / 1e9
                ))
            })
            .collect();
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }
}
