//! The progress bar of a run.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

fn style(times: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("{{bar:28.cyan/blue}} {{pos}}/{{len}}  {{msg}}  {times}"))
        .expect("a template written here")
        .progress_chars("━╸─")
}

pub struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar of `total` steps on stderr. `start` steps are already done and do not count
    /// for the speed.
    pub fn new(total: u64, start: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        bar.set_style(style("{elapsed} < {eta} left"));
        bar.set_position(start);
        bar.reset_eta();
        Progress(bar)
    }

    pub fn update(&self, position: u64, message: &str) {
        self.0.set_message(message.to_string());
        self.0.set_position(position);
    }

    pub fn print(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    pub fn finish(&self) {
        self.0.set_style(style("{elapsed}"));
        self.0.abandon();
    }
}
