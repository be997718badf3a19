//! A small plot as SVG: panels side by side, lines over named places, a logarithmic axis.

use std::fmt::Write as _;

/// One set of axes. All panels share the height of theirs.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    /// Names below the axis, evenly spaced.
    pub(crate) places: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// A value at each place, from the first on.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f64>,
}

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 64.0;
const GAP: f64 = 72.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 36.0;
/// Told apart on white and on black.
const COLOURS: [&str; 6] = [
    "#4269d0", "#d08a00", "#e4572e", "#3a9d8f", "#a463c2", "#888888",
];

pub(crate) fn svg(panels: &[Panel]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name) {
            names.push(line.name);
        }
    }
    let colour = |name: &str| {
        let index = names.iter().position(|known| *known == name);
        COLOURS[index.unwrap_or_default() % COLOURS.len()]
    };
    let scale = Scale::over(panels);

    let width = LEFT + panels.len() as f64 * (WIDTH + GAP);
    let height = TOP + HEIGHT + BOTTOM;
    let mut out = Svg::begin(width, height);
    for (index, name) in names.iter().enumerate() {
        let x = LEFT + index as f64 * 84.0;
        out.circle(x, 12.0, colour(name));
        out.text(x + 8.0, 16.0, "start", name);
    }
    for (index, panel) in panels.iter().enumerate() {
        let left = LEFT + index as f64 * (WIDTH + GAP);
        out.text(left, TOP - 14.0, "start", panel.title);
        for decade in scale.low..=scale.high {
            let value = 10f64.powi(decade);
            let y = scale.y(value);
            out.rule(left, y, left + WIDTH);
            out.text(left - 8.0, y + 4.0, "end", &value.to_string());
        }
        // Places stand in the middle of their part of the axis.
        let x = |place: usize| left + WIDTH * (place as f64 + 0.5) / panel.places.len() as f64;
        for (place, name) in panel.places.iter().enumerate() {
            out.text(x(place), TOP + HEIGHT + 20.0, "middle", name);
        }
        for line in &panel.lines {
            let values = line.values.iter().enumerate();
            let points: Vec<(f64, f64)> = values
                .map(|(place, value)| (x(place), scale.y(*value)))
                .collect();
            out.line(&points, colour(line.name));
        }
    }
    out.end()
}

/// Whole decades around all values.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn over(panels: &[Panel]) -> Self {
        let lines = panels.iter().flat_map(|panel| &panel.lines);
        let exponents: Vec<f64> = lines
            .flat_map(|line| &line.values)
            .filter(|value| value.is_finite() && **value > 0.0)
            .map(|value| value.log10())
            .collect();
        let low = exponents.iter().copied().fold(f64::INFINITY, f64::min);
        let high = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if exponents.is_empty() {
            return Self { low: 0, high: 1 };
        }
        let low = low.floor() as i32;
        Self {
            low,
            high: (high.ceil() as i32).max(low + 1),
        }
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        TOP + HEIGHT * (1.0 - (value.log10() - low) / (high - low))
    }
}

struct Svg(String);

impl Svg {
    fn begin(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        ))
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.put(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#808080\">{text}</text>"
        ));
    }

    fn rule(&mut self, from: f64, y: f64, to: f64) {
        self.put(&format!(
            "<path d=\"M{from:.1} {y:.1}H{to:.1}\" stroke=\"#808080\" stroke-opacity=\"0.3\"/>"
        ));
    }

    fn circle(&mut self, x: f64, y: f64, colour: &str) {
        self.put(&format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
        ));
    }

    fn line(&mut self, points: &[(f64, f64)], colour: &str) {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let step = if index == 0 { 'M' } else { 'L' };
            write!(path, "{step}{x:.1} {y:.1}").expect("a String takes all");
        }
        self.put(&format!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        ));
        for (x, y) in points {
            self.circle(*x, *y, colour);
        }
    }

    fn put(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }

    fn end(mut self) -> String {
        self.put("</svg>");
        self.0
    }
}
