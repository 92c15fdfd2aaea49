//! Line plots, drawn at three times the size and averaged down so that lines are smooth.

use std::sync::Once;

use plotters::prelude::*;
use plotters::style::{register_font, FontStyle};
use serde::Deserialize;

use crate::{files, Result, UserError};

#[derive(Deserialize)]
struct Picture {
    width: u32,
    height: u32,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    x_label: String,
    y_label: String,
    curves: Vec<Curve>,
}

#[derive(Deserialize)]
struct Curve {
    label: String,
    x: Vec<Option<f64>>,
    y: Vec<Option<f64>>,
    faint: bool,
    dashed: bool,
}

pub(crate) const OVERSAMPLING: u32 = 3;
/// Blue, orange, green, red, violet, brown, pink, grey: distinguishable with weak colour vision.
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(110, 110, 110),
];
pub(crate) const INK: RGBColor = RGBColor(40, 40, 40);
pub(crate) const GRID: RGBColor = RGBColor(226, 226, 226);

fn fonts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular());
        let _ = register_font("sans-serif", FontStyle::Bold, dejavu::sans::bold());
    });
}

impl Curve {
    /// Returns the points in segments without gaps.
    fn pieces(&self) -> Vec<Vec<(f64, f64)>> {
        let mut pieces = vec![Vec::new()];
        for point in self.x.iter().zip(&self.y) {
            match point {
                (Some(x), Some(y)) if x.abs().max(y.abs()) < 1e300 => pieces.last_mut().expect("never empty").push((*x, *y)),
                _ => pieces.push(Vec::new()),
            }
        }
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten, with about `count` steps in the range.
pub(crate) fn nice_step(low: f64, high: f64, count: f64) -> f64 {
    let rough = (high - low) / count;
    let power = 10f64.powf(rough.log10().floor());
    match rough / power {
        r if r < 1.5 => power,
        r if r < 3.5 => 2.0 * power,
        r if r < 7.5 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// Returns the range of the values with a small margin.
fn range(values: impl Iterator<Item = f64>, air: f64) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    // Values that are nearly equal relative to their size get a range with distinct tick labels.
    let size = low.abs().max(high.abs());
    // The range is never so narrow that its steps would not be representable.
    let span = if high > low && high - low > (1e-9 * size).max(1e-250) { high - low } else { 0.1 * size.max(1e-9) };
    let middle = low / 2.0 + high / 2.0;
    (middle - (0.5 + air) * span, middle + (0.5 + air) * span)
}

/// Formats with as many decimals as the step needs, and with exponents for very small or large
/// values.
pub(crate) fn tick_label(value: f64, step: f64) -> String {
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    if value == 0.0 {
        return "0".into();
    }
    if step < 1e-5 || value.abs() >= 1e7 {
        let digits = (value.abs().log10().floor() - step.log10().floor()).max(0.0) as usize;
        return format!("{value:.digits$e}");
    }
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    format!("{value:.decimals$}")
}

/// Returns the multiples of `step` in the range; never more than fit in a plot.
pub(crate) fn ticks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil() as i64;
    (first..).take(1000).map(|i| i as f64 * step).take_while(|v| *v <= high + step * 1e-9).collect()
}

pub(crate) type Area<'a> = DrawingArea<BitMapBackend<'a>, plotters::coord::Shift>;
pub(crate) type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

pub(crate) fn text_style(size: u32, bold: bool) -> TextStyle<'static> {
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let font: FontDesc = ("sans-serif", (size * OVERSAMPLING) as f64, style).into();
    font.color(&INK)
}

/// A line cut into slots of `length` pixels, of which every `count`th is drawn, beginning with
/// `first`. Dashed curves that overlap each other and a plain one stay visible.
#[derive(Clone, Copy)]
struct Dash {
    length: f64,
    first: usize,
    count: usize,
}

fn draw_line(
    area: &Area,
    points: &[(i32, i32)],
    dash: Option<Dash>,
    style: ShapeStyle,
) -> Drawn {
    let Some(dash) = dash else {
        area.draw(&PathElement::new(points.to_vec(), style))?;
        return Ok(());
    };
    let mut left = dash.length;
    let mut slot = 0;
    let mut stroke = vec![points[0]];
    for pair in points.windows(2) {
        let (mut at, to) = ((pair[0].0 as f64, pair[0].1 as f64), (pair[1].0 as f64, pair[1].1 as f64));
        loop {
            let length = (to.0 - at.0).hypot(to.1 - at.1);
            if length < left {
                left -= length;
                stroke.push(pair[1]);
                break;
            }
            at = (at.0 + (to.0 - at.0) * left / length, at.1 + (to.1 - at.1) * left / length);
            stroke.push((at.0.round() as i32, at.1.round() as i32));
            if slot % dash.count == dash.first {
                area.draw(&PathElement::new(std::mem::take(&mut stroke), style))?;
            }
            stroke = vec![(at.0.round() as i32, at.1.round() as i32)];
            slot += 1;
            left = dash.length;
        }
    }
    if slot % dash.count == dash.first && stroke.len() > 1 {
        area.draw(&PathElement::new(stroke, style))?;
    }
    Ok(())
}

/// Returns colour, width and dash of a curve. A faint curve, which holds raw points, has the colour
/// of the next one.
fn curve_style(curves: &[Curve], index: usize) -> (ShapeStyle, Option<Dash>) {
    let curve = &curves[index];
    let place = curves[..index].iter().filter(|other| !other.faint).count();
    let colour = COLOURS[place % COLOURS.len()];
    let scale = OVERSAMPLING as f64;
    let colour = if curve.faint { colour.mix(0.35) } else { colour.mix(1.0) };
    let width = if curve.faint { scale } else { 2.0 * scale };
    let dash = curve.dashed.then(|| Dash {
        length: 7.0 * scale,
        first: curves[..index].iter().filter(|other| other.dashed).count(),
        count: curves.iter().filter(|other| other.dashed).count() + 1,
    });
    (ShapeStyle { color: colour, filled: false, stroke_width: width as u32 }, dash)
}

fn draw_legend(area: &Area, panel: &Panel, right: i32, top: i32, scale: i32) -> Drawn {
    let style = text_style(12, false);
    let named: Vec<_> =
        panel.curves.iter().enumerate().filter(|(_, curve)| !curve.label.is_empty()).collect();
    let mut width = 0;
    for (_, curve) in &named {
        width = width.max(area.estimate_text_size(&curve.label, &style)?.0 as i32);
    }
    if named.is_empty() {
        return Ok(());
    }
    let (row, pad, sample) = (18 * scale, 8 * scale, 35 * scale);
    let left = right - width - sample - 3 * pad;
    let bottom = top + row * named.len() as i32 + pad;
    area.draw(&Rectangle::new([(left, top), (right, bottom)], WHITE.mix(0.85).filled()))?;
    area.draw(&Rectangle::new([(left, top), (right, bottom)], GRID.stroke_width(scale as u32)))?;
    for (place, (index, curve)) in named.iter().enumerate() {
        let middle = top + pad / 2 + row * place as i32 + row / 2;
        let (line, dash) = curve_style(&panel.curves, *index);
        let ends = [(left + pad, middle), (left + pad + sample, middle)];
        draw_line(area, &ends, dash, line)?;
        let at = (left + 2 * pad + sample, middle - 4 * scale);
        area.draw_text(&curve.label, &style, at)?;
    }
    Ok(())
}

fn draw_panel(area: &Area, panel: &Panel) -> Drawn {
    let scale = OVERSAMPLING as i32;
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width as i32, height as i32);
    let pieces: Vec<_> = panel.curves.iter().map(Curve::pieces).collect();
    let points = || pieces.iter().flatten().flatten();
    let (x0, x1) = range(points().map(|p| p.0), 0.02);
    let (y0, y1) = range(points().map(|p| p.1), 0.05);

    // The frame: the space that title, numbers and axis labels leave.
    let small = text_style(12, false);
    let y_step = nice_step(y0, y1, 6.0);
    let y_ticks: Vec<(f64, String)> =
        ticks(y0, y1, y_step).into_iter().map(|v| (v, tick_label(v, y_step))).collect();
    let mut numbers = 0;
    for (_, label) in &y_ticks {
        numbers = numbers.max(area.estimate_text_size(label, &small)?.0 as i32);
    }
    let left = 34 * scale + numbers;
    let right = width - 18 * scale;
    let top = if panel.title.is_empty() { 16 } else { 42 } * scale;
    let bottom = height - 52 * scale;
    let x_step = nice_step(x0, x1, ((right - left) as f64 / (90 * scale) as f64).max(2.0));
    let pixel = |x: f64, y: f64| {
        (
            left + ((x - x0) / (x1 - x0) * (right - left) as f64).round() as i32,
            bottom - ((y - y0) / (y1 - y0) * (bottom - top) as f64).round() as i32,
        )
    };

    let thin = |colour: RGBColor| colour.stroke_width(scale as u32);
    for (value, label) in &y_ticks {
        let y = pixel(x0, *value).1;
        area.draw(&PathElement::new(vec![(left, y), (right, y)], thin(GRID)))?;
        let size = area.estimate_text_size(label, &small)?.0 as i32;
        area.draw_text(label, &small, (left - 7 * scale - size, y - 4 * scale))?;
    }
    for value in ticks(x0, x1, x_step) {
        let x = pixel(value, y0).0;
        area.draw(&PathElement::new(vec![(x, top), (x, bottom)], thin(GRID)))?;
        let label = tick_label(value, x_step);
        let size = area.estimate_text_size(&label, &small)?.0 as i32;
        area.draw_text(&label, &small, (x - size / 2, bottom + 7 * scale))?;
    }
    let corner = vec![(left, top), (left, bottom), (right, bottom)];
    area.draw(&PathElement::new(corner, thin(RGBColor(120, 120, 120))))?;

    let label = text_style(13, false);
    let middle = (left + right) / 2;
    let size = area.estimate_text_size(&panel.x_label, &label)?.0 as i32;
    area.draw_text(&panel.x_label, &label, (middle - size / 2, bottom + 27 * scale))?;
    let size = area.estimate_text_size(&panel.y_label, &label)?.0 as i32;
    let upright = label.transform(FontTransform::Rotate270);
    area.draw_text(&panel.y_label, &upright, (8 * scale, (top + bottom) / 2 + size / 2))?;
    let bold = text_style(15, true);
    let size = area.estimate_text_size(&panel.title, &bold)?.0 as i32;
    area.draw_text(&panel.title, &bold, (middle - size / 2, 14 * scale))?;

    for faint in [true, false] {
        for (index, _) in panel.curves.iter().enumerate().filter(|(_, c)| c.faint == faint) {
            let (style, dash) = curve_style(&panel.curves, index);
            for piece in &pieces[index] {
                let line: Vec<_> = piece.iter().map(|p| pixel(p.0, p.1)).collect();
                if let [point] = line[..] {
                    area.draw(&Circle::new(point, 2 * scale, style.color.filled()))?;
                } else {
                    draw_line(area, &line, dash, style)?;
                }
            }
        }
    }
    draw_legend(area, panel, right - 8 * scale, top + 8 * scale, scale)
}

/// Averages squares of OVERSAMPLING x OVERSAMPLING pixels (RGB bytes).
fn shrink(large: &[u8], width: usize, height: usize) -> Vec<u8> {
    let n = OVERSAMPLING as usize;
    let mut small = vec![0u8; width * height * 3];
    for (i, out) in small.iter_mut().enumerate() {
        let (y, x, c) = (i / (width * 3), i / 3 % width, i % 3);
        let mut sum = 0;
        for dy in 0..n {
            for dx in 0..n {
                sum += large[((y * n + dy) * width * n + x * n + dx) * 3 + c] as usize;
            }
        }
        *out = ((sum + n * n / 2) / (n * n)) as u8;
    }
    small
}

/// Draws at OVERSAMPLING times the size and writes the PNG.
pub(crate) fn draw_png(png_path: &str, size: (u32, u32), draw: impl FnOnce(&Area) -> Drawn) -> Result<()> {
    fonts();
    let (width, height) = (size.0.clamp(100, 4000), size.1.clamp(100, 4000));
    let large = (width * OVERSAMPLING, height * OVERSAMPLING);
    let mut buffer = vec![255u8; (large.0 * large.1 * 3) as usize];
    {
        let root = BitMapBackend::with_buffer(&mut buffer, large).into_drawing_area();
        root.fill(&WHITE).expect("drawing in memory");
        draw(&root).expect("drawing in memory");
        root.present().expect("drawing in memory");
    }
    let pixels = shrink(&buffer, width as usize, height as usize);

    let failed = |e: &dyn std::fmt::Display| UserError(format!("Cannot write {png_path}: {e}"));
    let file = files::create(std::path::Path::new(png_path)).map_err(|e| failed(&e))?;
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(|e| failed(&e))?;
    writer.write_image_data(&pixels).map_err(|e| failed(&e))?;
    writer.finish().map_err(|e| failed(&e))
}

pub fn write(png_path: &str, plot_json: &str) -> Result<()> {
    let picture: Picture = serde_json::from_str(plot_json).expect("a picture as promised");
    draw_png(png_path, (picture.width, picture.height), |root| {
        let areas = root.split_evenly((1, picture.panels.len().max(1)));
        for (area, panel) in areas.iter().zip(&picture.panels) {
            draw_panel(area, panel)?;
        }
        Ok(())
    })
}
