//! Bar charts: a row for each compared item, with panels side by side that share the row names.

use plotters::prelude::*;
use serde::Deserialize;

use crate::plot::{draw_png, nice_step, text_style, tick_label, ticks, Area, Drawn, COLOURS, GRID, INK, OVERSAMPLING};
use crate::Result;

#[derive(Deserialize)]
struct Picture {
    width: u32,
    height: u32,
    title: String,
    rows: Vec<String>,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    x_label: String,
    /// Segments of a bar, stacked.
    parts: Vec<Part>,
    /// Text after the bar of each row.
    notes: Vec<String>,
    /// A mark across the bar of each row.
    marks: Vec<Option<f64>>,
    mark_label: String,
}

#[derive(Deserialize)]
struct Part {
    label: String,
    values: Vec<Option<f64>>,
}

const SCALE: i32 = OVERSAMPLING as i32;

/// Negative, missing and absurd values give no bar.
fn length(value: Option<&Option<f64>>) -> f64 {
    value.copied().flatten().filter(|v| *v > 0.0 && *v < 1e300).unwrap_or(0.0)
}

impl Panel {
    fn total(&self, row: usize) -> f64 {
        self.parts.iter().map(|part| length(part.values.get(row))).sum()
    }

    fn largest(&self, num_rows: usize) -> f64 {
        let longest = |row| self.total(row).max(length(self.marks.get(row)));
        (0..num_rows).map(longest).fold(0.0, f64::max)
    }
}

/// Positions of the rows, shared by the panels of a chart.
struct Rows {
    top: i32,
    bottom: i32,
    count: usize,
}

impl Rows {
    fn step(&self) -> f64 {
        (self.bottom - self.top) as f64 / self.count.max(1) as f64
    }
    fn middle(&self, row: usize) -> i32 {
        self.top + ((row as f64 + 0.5) * self.step()) as i32
    }
    fn half_bar(&self) -> i32 {
        ((self.step() * 0.32) as i32).min(14 * SCALE)
    }
}

fn text_width(area: &Area, text: &str, size: u32) -> std::result::Result<i32, Box<dyn std::error::Error>> {
    Ok(area.estimate_text_size(text, &text_style(size, false))?.0 as i32)
}

/// Draws samples and names of the segments and of the mark, in one line from `left` at height `y`.
fn draw_legend(area: &Area, panel: &Panel, left: i32, y: i32) -> Drawn {
    let style = text_style(11, false);
    let mut x = left;
    let named = panel.parts.iter().enumerate().filter(|(_, part)| !part.label.is_empty());
    for (index, part) in named {
        let colour = COLOURS[index % COLOURS.len()];
        area.draw(&Rectangle::new([(x, y), (x + 10 * SCALE, y + 10 * SCALE)], colour.filled()))?;
        area.draw_text(&part.label, &style, (x + 14 * SCALE, y + SCALE))?;
        x += 26 * SCALE + text_width(area, &part.label, 11)?;
    }
    if !panel.mark_label.is_empty() {
        let stroke = INK.stroke_width(2 * SCALE as u32);
        area.draw(&PathElement::new(vec![(x + 4 * SCALE, y), (x + 4 * SCALE, y + 10 * SCALE)], stroke))?;
        area.draw_text(&panel.mark_label, &style, (x + 12 * SCALE, y + SCALE))?;
    }
    Ok(())
}

fn draw_panel(area: &Area, panel: &Panel, left: i32, right: i32, rows: &Rows) -> Drawn {
    let small = text_style(11, false);
    let mut room = 0;  // for the longest note after its bar
    for note in &panel.notes {
        room = room.max(text_width(area, note, 11)? + 8 * SCALE);
    }
    let end = (right - room).max(left + 30 * SCALE);
    let largest = panel.largest(rows.count);
    let high = if largest > 0.0 { largest } else { 1.0 };
    let pixel = |value: f64| left + (value / high * (end - left) as f64).round() as i32;

    let step = nice_step(0.0, high, ((end - left) as f64 / (70 * SCALE) as f64).max(2.0));
    for value in ticks(0.0, high, step) {
        let x = pixel(value);
        area.draw(&PathElement::new(vec![(x, rows.top), (x, rows.bottom)], GRID.stroke_width(SCALE as u32)))?;
        let label = tick_label(value, step);
        let width = text_width(area, &label, 11)?;
        area.draw_text(&label, &small, (x - width / 2, rows.bottom + 6 * SCALE))?;
    }
    let middle = (left + end) / 2;
    let width = text_width(area, &panel.x_label, 12)?;
    area.draw_text(&panel.x_label, &text_style(12, false), (middle - width / 2, rows.bottom + 24 * SCALE))?;
    area.draw_text(&panel.title, &text_style(13, true), (left, rows.top - 42 * SCALE))?;
    draw_legend(area, panel, left, rows.top - 20 * SCALE)?;

    for row in 0..rows.count {
        let (y, half) = (rows.middle(row), rows.half_bar());
        let mut from = 0.0;
        for (index, part) in panel.parts.iter().enumerate() {
            let value = length(part.values.get(row));
            let colour = COLOURS[index % COLOURS.len()];
            if value > 0.0 {
                let corners = [(pixel(from), y - half), (pixel(from + value), y + half)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
            }
            from += value;
        }
        let mut behind = from;
        if let Some(mark) = panel.marks.get(row).copied().flatten().filter(|m| *m > 0.0 && *m < 1e300) {
            let x = pixel(mark);
            let stroke = INK.stroke_width(2 * SCALE as u32);
            area.draw(&PathElement::new(vec![(x, y - half - 3 * SCALE), (x, y + half + 3 * SCALE)], stroke))?;
            behind = behind.max(mark);
        }
        if let Some(note) = panel.notes.get(row) {
            area.draw_text(note, &small, (pixel(behind) + 5 * SCALE, y - 4 * SCALE))?;
        }
    }
    let axis = INK.stroke_width(SCALE as u32);
    area.draw(&PathElement::new(vec![(left, rows.top), (left, rows.bottom)], axis))?;
    Ok(())
}

fn draw(root: &Area, picture: &Picture) -> Drawn {
    let (width, height) = root.dim_in_pixel();
    let (width, height) = (width as i32, height as i32);
    let rows = Rows {
        top: if picture.title.is_empty() { 58 } else { 88 } * SCALE,
        bottom: height - 48 * SCALE,
        count: picture.rows.len(),
    };
    let mut names = 0;
    for name in &picture.rows {
        names = names.max(text_width(root, name, 12)?);
    }
    let style = text_style(12, false);
    for (row, name) in picture.rows.iter().enumerate() {
        let x = 14 * SCALE + names - text_width(root, name, 12)?;
        root.draw_text(name, &style, (x, rows.middle(row) - 5 * SCALE))?;
    }
    root.draw_text(&picture.title, &text_style(15, true), (14 * SCALE, 14 * SCALE))?;
    let (first, gap) = (names + 26 * SCALE, 26 * SCALE);
    let share = (width - 8 * SCALE - first) / picture.panels.len().max(1) as i32;
    for (index, panel) in picture.panels.iter().enumerate() {
        let left = first + share * index as i32;
        draw_panel(root, panel, left, left + share - gap, &rows)?;
    }
    Ok(())
}

pub fn write(png_path: &str, bars_json: &str) -> Result<()> {
    let picture: Picture = serde_json::from_str(bars_json).expect("a picture as promised");
    draw_png(png_path, (picture.width, picture.height), |root| draw(root, &picture))
}
